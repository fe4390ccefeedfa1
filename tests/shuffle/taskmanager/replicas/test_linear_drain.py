"""A drain takes work in proportion to the number of map outputs: lines are counted, not time.

A part of the work that grows faster than the map outputs is too small to be seen in the sum of a
few hundred of them. So the lines of each function are compared on their own. Loops inside one call
of C code do not count, nor do functions that run once in a while, however much there is to do.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import sluice
from sluice.protocol.schema import MoveNoted, OutputsMoved
from sluice.shuffle.taskmanager.replicas import migration
from tests.support.copies import copying
from tests.support.wire_clients import producer, write_map_output

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from tests.support.mini_cluster import MiniCluster
    from tests.support.wire_clients import Client

pytestmark = pytest.mark.interpreted  # compiled functions have no lines

OUTPUTS = 24
CHUNK = 4
"""Map outputs announced at a time, so that a drain of a few has many such steps."""

MOST = 2.5
"""How many times the lines of a function may be, if the map outputs are twice as many."""

DEADLINE_SECONDS = 300
"""Traced functions take several times as long."""

SOURCE = str(Path(sluice.__file__).parent)
BY_TIME = tuple(
    f"{SOURCE}/{name}"
    for name in (
        "transport/loop.py",
        "shuffle/taskmanager/cluster/taskmanager_watch.py",
        "shuffle/taskmanager/cluster/watch_leg.py",
        "shuffle/taskmanager/store/health/",
        "shuffle/taskmanager/store/store_health.py",
    )
)
"""Files of functions that run as time passes."""


class LinesRun:
    """Counts the lines that run in each function of Sluice; a context manager."""

    def __init__(self) -> None:
        self.lines: Counter[CodeType] = Counter()
        self._before: Any = None

    def __enter__(self) -> LinesRun:
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        file = frame.f_code.co_filename
        return self._ran if file.startswith(SOURCE) and not file.startswith(BY_TIME) else None

    def _ran(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self.lines[frame.f_code] += 1
        return self._ran


async def write_small(cluster: MiniCluster, names: list[tuple[int, int]]) -> None:
    """Write a map output of a few bytes for each shuffle and map attempt."""
    client = await producer(cluster[0].address)
    for shuffle_id, attempt in names:
        await write_map_output(client, shuffle_id, attempt, [[b"few bytes"]])
    await client.close()


async def note_moves(link: Client, count: int) -> None:
    """Acknowledge moves as a driver does."""
    while count:
        message = await link.expect(OutputsMoved, DEADLINE_SECONDS)
        assert isinstance(message, OutputsMoved)
        count -= len(message.map_attempt_ids)
        link.send(MoveNoted(message.move))


async def lines_of_drain(directory: Path, names: list[tuple[int, int]]) -> Counter[CodeType]:
    """Drain a TaskManager of small map outputs; return the lines that ran meanwhile."""
    asyncio.get_running_loop().set_debug(False)  # it looks at the stack with every call
    async with copying(directory, health_check_seconds=3600) as (cluster, links):
        await write_small(cluster, names)
        noting = asyncio.ensure_future(note_moves(links[0], len(names)))
        cluster[0].drain()
        with LinesRun() as run:
            progress = await cluster[0].copies.migration.run()
        await noting
        assert (progress.moved, progress.left) == (len(names), 0)
    return run.lines


def of_one_shuffle(outputs: int) -> list[tuple[int, int]]:
    return [(1, attempt) for attempt in range(outputs)]


def of_a_shuffle_each(outputs: int) -> list[tuple[int, int]]:
    return [(shuffle, 0) for shuffle in range(outputs)]


@pytest.mark.parametrize("names", [of_one_shuffle, of_a_shuffle_each])
async def test_work_grows_with_the_map_outputs(tmp_path, monkeypatch, names):
    monkeypatch.setattr(migration, "CHUNK", CHUNK)
    once = await lines_of_drain(tmp_path / "once", names(OUTPUTS))
    twice = await lines_of_drain(tmp_path / "twice", names(2 * OUTPUTS))
    assert once.total() > OUTPUTS
    steeper = {
        f"{code.co_filename.removeprefix(SOURCE)}:{code.co_qualname}": (once[code], lines)
        for code, lines in twice.items()
        if lines > MOST * once[code] + OUTPUTS
    }
    assert steeper == {}
