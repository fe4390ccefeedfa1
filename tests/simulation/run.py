"""``make simulate``: runs seeds, each in a process of its own, and shrinks one that fails.

python -m tests.simulation.run --seeds 100 --first 0
python -m tests.simulation.run --seed 7
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import itertools
import json
import os
import resource
import select
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.simulation import determinism
from tests.simulation.plan import BUCKET_KINDS, KILL_AFTER, KINDS, Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.simulation.world import Found

MAX_CPU_SECONDS: Final = 120
"""CPU time within which a seed ends: the host may be busy with other things."""

MAX_REAL_SECONDS: Final = 3600
"""Real time within which a seed ends."""

_HASH_SEED: Final = "PYTHONHASHSEED"


class Outcome(NamedTuple):
    """The result of a seed."""

    plan: Plan
    violations: list[str]
    digest: str
    seconds: float
    real_seconds: float
    cpu_seconds: float
    counts: dict[str, int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if a seed fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="number of seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="replay one seed, and print its trace")
    parser.add_argument("--only", help="faults to keep, by number, such as 0,2")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="seeds at a time")
    parser.add_argument("--no-shrink", action="store_true", help="do not shrink seeds that fail")
    parser.add_argument("--faults", help="only seeds with a fault of these kinds: kill,leave")
    parser.add_argument("--until-failure", action="store_true", help="stop after a seed that fails")
    parser.add_argument("--verbose", action="store_true", help="a line for each seed")
    given = parser.parse_args(arguments)
    prepare("tests.simulation.run")
    if given.seed is not None:
        return _replay(given.seed, given.only)
    plans = itertools.islice(plans_with(given.first, given.faults), given.seeds)
    began = time.monotonic()
    failed = count = 0
    cpu_seconds = 0.0
    for outcome in run_all(plans, given.jobs, stops=given.until_failure):
        count += 1
        cpu_seconds += outcome.cpu_seconds
        if given.verbose:
            _print(_line(outcome))
        if outcome.violations:
            failed += 1
            _report(outcome, shrinks=not given.no_shrink)
            if given.until_failure:
                break
    seconds = time.monotonic() - began
    rate = count / max(seconds, 1e-9) * 3600
    _print(
        f"{count} seeds in {seconds:.0f} s ({cpu_seconds:.0f} s of CPU), "
        f"{rate:.0f} seeds per hour, {failed} failed"
    )
    return 1 if failed else 0


def prepare(module: str) -> None:
    """Load the product so that a seed decides everything; start anew for hashes of strings."""
    if os.environ.get(_HASH_SEED) != "0":
        os.environ[_HASH_SEED] = "0"
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])
    determinism.install()
    determinism.load_product()


def plans_with(first: int, kinds: str | None) -> Iterator[Plan]:
    """Yield the plans of all seeds, or of those with a fault of some kinds."""
    wanted = set() if kinds is None else set(kinds.split(","))
    if unknown := wanted - {*KINDS, *BUCKET_KINDS, KILL_AFTER}:
        msg = f"no such kinds of faults: {', '.join(sorted(unknown))}"
        raise SystemExit(msg)
    for plan in map(Plan.of, itertools.count(first)):
        if not wanted or any(fault.kind in wanted for fault in plan.faults):
            yield plan


def run_all(plans: Iterator[Plan], jobs: int, *, stops: bool = False) -> Iterator[Outcome]:
    """Run plans, some at a time; yield the outcomes as they come.

    Args:
        plans: The plans.
        jobs: How many run at a time.
        stops: Whether the first violation of a plan ends it.
    """
    running: list[Child] = []
    for plan in plans:
        running.append(Child(plan, stops=stops))
        if len(running) == jobs:
            yield _first(running).outcome()
    while running:
        yield _first(running).outcome()


def _first(running: list[Child]) -> Child:
    """Remove and return a child that has ended; wait for one."""
    child: Child = select.select(running, [], [])[0][0]
    running.remove(child)
    return child


class Child:
    """A forked process that runs one plan.

    Args:
        plan: The plan.
        prints: Whether it prints its trace.
        stops: Whether the first violation ends it.
        before: Called in the process first.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        prints: bool = False,
        stops: bool = False,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self._plan = plan
        self._began = time.monotonic()
        self._reader, writer = os.pipe()
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._reader)
            _run_child(plan, writer, before, prints=prints, stops=stops)
        os.close(writer)

    def fileno(self) -> int:
        """Return the descriptor that is readable when it ends."""
        return self._reader

    def outcome(self) -> Outcome:
        """Wait for its end."""
        pieces = []
        while data := os.read(self._reader, 65536):
            pieces.append(data)
        os.close(self._reader)
        _, status, used = os.wait4(self._pid, 0)
        seconds = time.monotonic() - self._began
        cpu = used.ru_utime + used.ru_stime
        with contextlib.suppress(ValueError):
            found: dict[str, Any] = json.loads(b"".join(pieces))
            return Outcome(self._plan, real_seconds=seconds, cpu_seconds=cpu, **found)
        ended = [f"the process ended with status {status}"]
        return Outcome(self._plan, ended, "", 0, seconds, cpu, {})


def _run_child(
    plan: Plan, writer: int, before: Callable[[], None], *, prints: bool, stops: bool
) -> None:
    """Run a plan in this process, and end the process.

    Args:
        plan: The plan.
        writer: Pipe for what was found.
        before: Called first.
        prints: Whether to print its trace.
        stops: Whether the first violation ends it.
    """
    faulthandler.dump_traceback_later(MAX_REAL_SECONDS, exit=True)
    faulthandler.register(signal.SIGXCPU, chain=True)
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS + 5))
    status = 1
    try:
        before()
        from tests.simulation.world import simulate  # loaded after the clocks were replaced

        write = os.write

        def report(found: Found) -> None:
            data = memoryview(json.dumps(found._asdict()).encode())
            while data:
                data = data[write(writer, data) :]

        def stop(found: Found) -> None:
            report(found)
            sys.stdout.flush()
            os._exit(0)

        report(simulate(plan, prints=prints, on_violation=stop if stops else None))
        status = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if status:
            import traceback

            traceback.print_exc()
        os._exit(status)


def _replay(seed: int, only: str | None) -> int:
    plan = Plan.of(seed)
    if only is not None:
        plan = plan.only([int(each) for each in only.split(",") if each])
    _print(f"seed {seed}: {plan.members} TaskManagers, {plan.settings}")
    outcome = Child(plan, prints=True).outcome()
    _print(_line(outcome))
    _report(outcome, shrinks=False)
    return 1 if outcome.violations else 0


def shrink(plan: Plan) -> list[int]:
    """Drop faults of a plan that fails, one by one, as long as it fails; return the others."""
    kept = list(range(len(plan.faults)))
    for number in reversed(range(len(plan.faults))):
        fewer = [each for each in kept if each != number]
        if Child(plan.only(fewer), stops=True).outcome().violations:
            kept = fewer
    return kept


def _report(outcome: Outcome, *, shrinks: bool) -> None:
    plan = outcome.plan
    for text in outcome.violations[:10]:
        _print(f"seed {plan.seed}: {text}")
    if not outcome.violations or not shrinks:
        return
    kept = shrink(plan)
    _print(f"seed {plan.seed} fails with {len(kept)} of {len(plan.faults)} faults:")
    for number in kept:
        _print(f"    {number}: {plan.faults[number]}")
    numbers = ",".join(map(str, kept))
    _print(f"    .venv/bin/python -m tests.simulation.run --seed {plan.seed} --only {numbers!r}")


def _line(outcome: Outcome) -> str:
    counts = ", ".join(f"{number} {name}" for name, number in outcome.counts.items())
    spent = f"{outcome.real_seconds:.1f} s ({outcome.cpu_seconds:.3f} s of CPU)"
    return (
        f"seed {outcome.plan.seed}: trace {outcome.digest}, {outcome.seconds:.0f} virtual s in "
        f"{spent}, {counts}, {len(outcome.violations)} violations"
    )


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
