"""bench-fairness: tenants beside one that takes all it can, over the same with equal ones.

A TaskManager in a process of its own, and two, four or eight tenants with a token each, each in a
process of its own too. For each resource there are turns in which all are ordinary applications,
and turns in which one tenant is greedy, with 16 applications; each round has both, in changing
order. The ordinary ones write map outputs, read and release them.

* ``RESOURCE_share``: the share of the ordinary application that got least, over the mean share
  of the same applications in the equal turn of the round; the worst of all numbers of applications.
  The share is the rate of bytes that it moved; for ``memory_tier`` it is the bytes of the tier that
  it holds. It misses its aim if the greedy application takes more than an equal one would have.
* ``RESOURCE_p99_over_quiet``: the 99th percentile of the time of a 1 KiB exchange of an application
  beside the greedy one, over that while the greedy one rests. It misses its aim if what the greedy
  one does delays the data path.
* ``smallest_share`` and ``innocent_p99``: the worst of all resources.
* ``innocent_errors``: all errors of ordinary applications. Each is a failed exchange.
* ``equal_share``: the smallest share among equal applications over their mean. So much of a
  missing share is the machine's doing: with more applications than cores the kernel decides.

Resources, each with settings that make it scarce; quotas have the parts of it that they have by
default:

* ``segments``: 400 gates that are never read, and pipelined partitions without a reader.
* ``memory_tier``: 16 connections that keep twice the tier, beside applications that keep 0.8 of
  their equal parts and release the oldest; looked at when they have written twice what they keep:
  what was refused while the greedy application held the tier has left the disk by then.
* ``disk_write``, ``disk_read``: 16 connections with large map outputs, beside applications of four
  tasks. There is no memory tier, and the disk moves 64 MiB a second (``benchmarks/slow_disk.py``).
  With the page cache of the machine for a disk they would compete for the processor.
* ``connections``, ``open_partitions``: as many as it gets. Others connect for each exchange.
* ``control_memory``: 64 connections with halves of long messages. Others send messages of 20 KiB.
* ``data_loop``: Pings without a pause over 32 connections.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import secrets
import statistics
import sys
import tempfile
import urllib.request
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvloop

from benchmarks.fairness_applications import GREEDY_CONNECTIONS, as_command, serve
from benchmarks.fairness_tenant import Load
from benchmarks.line_process import LineProcess, line_process
from benchmarks.report import Report, median_and_spread, open_console
from sluice.protocol.identity import TOKEN_ID_BYTES, SubmitToken, parse_secret
from tests.support.daemons import Daemons
from tests.support.processes import stop_on_termination
from tests.support.progress_bar import with_bar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

HOST: Final = "127.0.0.1"
NUMBERS: Final = (2, 4, 8)
"""Numbers of applications."""

SETTLE_SECONDS: Final = 0.7
"""Time of a load before it is measured: the greedy application has what it can get then."""

LOOKS: Final = 5
"""Looks at the memory tier in a turn."""

DISK_BYTES_PER_SECOND: Final = 64 << 20
"""Of the disk that is scarce: a quarter of what one application moves through a page cache."""

MEMORY_TIER_BYTES: Final = 64 << 20
ORDINARY: Final = Load()
FOUR_TASKS: Final = Load(tasks=4)
LARGE: Final = Load(part_bytes=256 << 10, parts=4, tasks=GREEDY_CONNECTIONS)
AIMS: Final = {"smallest_share": "≥ 0.9", "innocent_p99": "≤ 2", "innocent_errors": "0"}


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource that one application is greedy for.

    Attributes:
        name: Its name in the figures.
        greedy: The greedy application.
        ordinary: Each other one.
        settings: Settings of the TaskManager that make it scarce.
        is_held: Whether the share is the part of the memory tier and not a rate.
        wrapper: What the TaskManager runs in.
    """

    name: str
    greedy: Load
    ordinary: Load = ORDINARY
    settings: Mapping[str, Any] = field(default_factory=dict)
    is_held: bool = False
    wrapper: Sequence[str] = ()

    def load(self, applications: int, *, is_greedy: bool) -> Load:
        """Return the load of an application among so many."""
        if is_greedy:
            return replace(self.greedy, greedy=self.name, applications=GREEDY_CONNECTIONS)
        if not self.is_held:
            return self.ordinary
        size = self.ordinary.part_bytes * self.ordinary.parts
        part_bytes = MEMORY_TIER_BYTES // applications
        return replace(self.ordinary, window=part_bytes * 4 // 5 // size - 1)


_SLOW_DISK: Final = (sys.executable, "-m", "benchmarks.slow_disk", str(DISK_BYTES_PER_SECOND))
_NO_TIER: Final[dict[str, Any]] = {"memory_tier_bytes": "0"}
_ONE_THREAD: Final = {**_NO_TIER, "io_threads": "1"}
RESOURCES: Final = {
    each.name: each
    for each in (
        Resource("segments", ORDINARY, settings={**_NO_TIER, "network_segments": "512"}),
        Resource(
            "memory_tier",
            replace(LARGE, window=2 * MEMORY_TIER_BYTES // (1 << 20) // GREEDY_CONNECTIONS),
            is_held=True,
        ),
        Resource(
            "disk_write",
            replace(LARGE, reads=0, window=4),
            FOUR_TASKS,
            _ONE_THREAD,
            wrapper=_SLOW_DISK,
        ),
        Resource(
            "disk_read",
            replace(LARGE, reads=1000),
            replace(FOUR_TASKS, reads=8),
            _ONE_THREAD,
            wrapper=_SLOW_DISK,
        ),
        Resource(
            "connections",
            ORDINARY,
            Load(reconnects=True),
            settings={"max_connections": "512", "quota_connections": "256"},
        ),
        Resource("open_partitions", ORDINARY, settings={"quota_open_partitions": "4096"}),
        Resource(
            "control_memory",
            ORDINARY,
            Load(part_bytes=16, parts=20_000),
            settings={"max_control_memory_bytes": "8 MiB"},
        ),
        Resource("data_loop", ORDINARY),
    )
}


class Crowd:
    """The applications of a benchmark at one TaskManager.

    Args:
        children: Their processes.
        taskmanagers: The TaskManager.
    """

    def __init__(self, children: Sequence[LineProcess], taskmanagers: Daemons) -> None:
        self._children = children
        self._socket = Path(taskmanagers.endpoints.removeprefix("unix:").format(host=HOST))
        self._status_url = f"{taskmanagers[0].url}/api/v1/status"
        self._secret = parse_secret(taskmanagers.secret_file.read_text(encoding="ascii"))
        self.errors: dict[str, int] = {}
        """Errors of ordinary applications so far, by name."""

    async def turn(
        self, resource: Resource, applications: int, seconds: float, *, has_greedy: bool
    ) -> list[float]:
        """Let so many applications work; return the shares of all but the first.

        The first one is the greedy application, if there is one.
        """
        loads = [
            resource.load(applications, is_greedy=has_greedy and number == 0)
            for number in range(applications)
        ]
        async with self._working(loads):
            ordinary = self._children[1:applications]
            if resource.is_held:
                await ask(ordinary, {"await": 2 * (loads[-1].window + 1)})
                return await self._held(applications, seconds)
            return await ask(ordinary, {"count": seconds})

    async def probe(self, resource: Resource, seconds: float, *, has_greedy: bool) -> Any:
        """Exchange 1 KiB again and again beside a greedy application or one that rests."""
        load = resource.load(2, is_greedy=True) if has_greedy else None
        async with self._working([load, None]):
            (answer,) = await ask(self._children[1:2], {"probe": seconds})
        return answer

    @contextlib.asynccontextmanager
    async def _working(self, loads: Sequence[Load | None]) -> AsyncIterator[None]:
        """Let the first applications work for the time of a block, and settle before it."""
        children = self._children[: len(loads)]
        for number, (child, load) in enumerate(zip(children, loads, strict=True)):
            name = f"application-{number}"
            token = SubmitToken.make(self._secret, name, 0, secrets.token_bytes(TOKEN_ID_BYTES))
            child.tell(as_command(load, name, self._socket, token.to_text()))
        for child in children:
            await child.answer()
        await asyncio.sleep(SETTLE_SECONDS)
        yield
        for child in children:  # one by one: the greedy one makes room for the others
            child.tell({"rest": True})
            errors = await child.answer()
            if child is not children[0]:
                for name, times in errors.items():
                    self.errors[name] = self.errors.get(name, 0) + times

    async def _held(self, applications: int, seconds: float) -> list[float]:
        """Return the bytes that each application holds in the memory tier, over some looks."""
        found: dict[str, list[int]] = {}
        for _ in range(LOOKS):
            await asyncio.sleep(seconds / LOOKS)  # the time that is measured
            for name, held in (await asyncio.to_thread(held_bytes, self._status_url)).items():
                found.setdefault(name, []).append(held)
        names = [f"application-{number}" for number in range(1, applications)]
        return [sum(found.get(name, ())) / LOOKS for name in names]


async def ask(children: Sequence[LineProcess], command: object) -> list[Any]:
    """Tell children the same at once; return their answers."""
    for child in children:
        child.tell(command)
    return [await child.answer() for child in children]


def held_bytes(status_url: str) -> dict[str, int]:
    """Return the bytes that each tenant holds in the memory tier."""
    with urllib.request.urlopen(status_url, timeout=10) as answer:  # noqa: S310 - our own
        status = json.load(answer)
    return {
        each["application_id"].partition(".")[0]: next(
            holding["subject_held"]
            for holding in each["holdings"]
            if holding["resource"] == "memory_tier_bytes"
        )
        for each in status["applications"]
    }


@dataclass(frozen=True, slots=True)
class Plan:
    """The extent of a measurement.

    Attributes:
        rounds: Rounds of each resource.
        seconds: Time of each turn.
        numbers: Numbers of applications.
    """

    rounds: int
    seconds: float
    numbers: Sequence[int]


async def measure(
    resource: Resource, children: Sequence[LineProcess], taskmanagers: Daemons, plan: Plan
) -> list[dict[str, Any]]:
    """Take all turns of a resource; return the findings of each round and number."""
    crowd = Crowd(children, taskmanagers)
    runs: list[dict[str, Any]] = []
    for number in with_bar(range(plan.rounds), f"rounds, {resource.name}"):
        probes = {
            has_greedy: await crowd.probe(resource, plan.seconds, has_greedy=has_greedy)
            for has_greedy in in_turn(number)
        }
        runs.append(
            {
                "resource": resource.name,
                "quiet_p99_ms": probes[False]["p99_ms"],
                "greedy_p99_ms": probes[True]["p99_ms"],
                "quiet_exchanges": probes[False]["exchanges"],
                "greedy_exchanges": probes[True]["exchanges"],
            }
        )
        for applications in plan.numbers:
            shares = {
                has_greedy: await crowd.turn(
                    resource, applications, plan.seconds, has_greedy=has_greedy
                )
                for has_greedy in in_turn(number)
            }
            runs.append(
                {
                    "resource": resource.name,
                    "applications": applications,
                    "equal_shares": shares[False],
                    "shares": shares[True],
                }
            )
    runs.append({"resource": resource.name, "errors": crowd.errors})
    return runs


def in_turn(number: int) -> tuple[bool, bool]:
    """Return the kinds of turns of a round in their order."""
    return (False, True) if number % 2 == 0 else (True, False)


def report_of(runs: Sequence[Mapping[str, Any]]) -> Report:
    """Make the report.

    Raises:
        RuntimeError: Equal applications have done nothing, so that there is nothing to compare.
    """
    figures: dict[str, float] = {}
    spread: dict[str, tuple[float, float]] = {}
    equal: list[float] = []
    for name in dict.fromkeys(run["resource"] for run in runs):
        own = [run for run in runs if run["resource"] == name]
        by_number: dict[int, list[float]] = {}
        for run in own:
            if "shares" in run:
                fair = statistics.fmean(run["equal_shares"])
                if fair == 0:
                    raise RuntimeError(f"{name}: equal applications have done nothing: {run}")
                by_number.setdefault(run["applications"], []).append(min(run["shares"]) / fair)
                if len(run["equal_shares"]) > 1:
                    equal.append(min(run["equal_shares"]) / fair)
        found = [ratio for ratios in by_number.values() for ratio in ratios]
        figures[f"{name}_share"] = min(map(statistics.median, by_number.values()))
        spread[f"{name}_share"] = (min(found), max(found))
        figure = f"{name}_p99_over_quiet"
        figures[figure], spread[figure] = median_and_spread(
            [run["greedy_p99_ms"] / run["quiet_p99_ms"] for run in own if "greedy_p99_ms" in run]
        )
    worst = {
        "smallest_share": min(each for key, each in figures.items() if key.endswith("_share")),
        "innocent_p99": max(each for key, each in figures.items() if key.endswith("_quiet")),
        "innocent_errors": sum(sum(run["errors"].values()) for run in runs if "errors" in run),
    }
    if equal:
        worst["equal_share"], spread["equal_share"] = median_and_spread(equal)
    return Report("fairness", worst | figures, runs, spread)


def aims_of(figures: Mapping[str, float]) -> dict[str, str]:
    """Return the aims, also those of each resource."""
    return AIMS | {
        key: AIMS["smallest_share" if key.endswith("_share") else "innocent_p99"]
        for key in figures
        if key.endswith(("_share", "_over_quiet")) and key != "equal_share"
    }


async def measure_all(resources: Sequence[Resource], plan: Plan) -> list[dict[str, Any]]:
    """Measure resources, each at a TaskManager of its own."""
    runs: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(line_process("-m", "benchmarks.fairness", "--application"))
            for _ in range(max(plan.numbers))
        ]
        for child in children:
            await child.answer()
        for resource in resources:
            with (
                tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory,
                Daemons(
                    Path(directory),
                    hosts=[HOST],
                    authenticated=True,
                    wrapper=resource.wrapper,
                    **{"memory_tier_bytes": MEMORY_TIER_BYTES} | dict(resource.settings),
                    names_on_loopback="true",
                ) as taskmanagers,
            ):
                runs += await measure(resource, children, taskmanagers, plan)
    return runs


def main() -> None:
    """Run the benchmark, or one of its applications."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--application", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--resources", default=",".join(RESOURCES), help="separated by commas")
    parser.add_argument(
        "--applications", default=",".join(map(str, NUMBERS)), help="numbers of them, 2 to 8"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each turn")
    arguments = parser.parse_args()
    if arguments.application:
        uvloop.run(serve())
        return
    numbers = [int(text) for text in arguments.applications.split(",")]
    if not 2 <= min(numbers) <= max(numbers) <= max(NUMBERS):
        parser.error(f"--applications {arguments.applications}: at least 2, at most {max(NUMBERS)}")
    unknown = set(arguments.resources.split(",")) - RESOURCES.keys()
    if unknown:
        parser.error(f"--resources: {', '.join(unknown)} not known: {', '.join(RESOURCES)}")
    stop_on_termination()
    resources = [RESOURCES[name] for name in arguments.resources.split(",")]
    plan = Plan(arguments.rounds, arguments.seconds, numbers)
    report = report_of(uvloop.run(measure_all(resources, plan)))
    report.write()
    report.show(open_console(), aims_of(report.figures))


if __name__ == "__main__":
    main()
