"""A producing and a consuming task over the public API, wherever their clients come from."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest

from sluice.protocol.schema import DATA
from tests.support.api_clients import api_clients, embedded_clients
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES, mini_cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from sluice.shuffle.client.client_gate import ClientGate
    from sluice.shuffle.client.result_partition import ResultPartition
    from sluice.shuffle.client.shuffle_environment import ShuffleEnvironment

EXCLUSIVE: Final = 2
FLOATING: Final = 4
GATE_BUFFERS: Final = EXCLUSIVE + FLOATING
"""Buffers of a gate of one channel, in a client and in a TaskManager."""

OUTPUT_BUFFERS: Final = EXCLUSIVE + FLOATING
"""Buffers of a TaskManager for a partition of one subpartition that a client writes."""

FULL_RECORD_BYTES: Final = SEGMENT_SIZE_BYTES - 4
"""A record that fills a segment to its last byte."""

STUCK_SECONDS: Final = 0.05
"""Time in which a task that can go on does so."""

MUCH_MEMORY: Final = 256


def full_record(number: int) -> bytes:
    return number.to_bytes(4, "big") * (FULL_RECORD_BYTES // 4)


@dataclass(frozen=True)
class Tasks:
    """Where two tasks run.

    Args:
        producer: The producing task's client.
        consumer: The consuming task's client; it may be the same.
        buffers_between: Buffers that hold records of a partition of one subpartition and one
            channel, beside those of the partition itself, while the consumer reads nothing.
    """

    producer: ShuffleEnvironment
    consumer: ShuffleEnvironment
    buffers_between: int


class TaskSource(Protocol):
    """Starts what two tasks need.

    ``remote`` puts them on two TaskManagers. The gates of tasks and TaskManagers have ``EXCLUSIVE``
    buffers a channel and ``FLOATING`` ones; nothing takes overdraft. The settings are those of the
    tasks: keys of ``ClientConfig``.
    """

    def __call__(
        self, directory: Path, *, remote: bool, **settings: Any
    ) -> AbstractAsyncContextManager[Tasks]: ...


@contextlib.asynccontextmanager
async def daemon_tasks(directory: Path, *, remote: bool, **settings: Any) -> AsyncIterator[Tasks]:
    """Run each task in a client of its own, beside a TaskManager."""
    buffers: dict[str, Any] = {
        "exclusive_buffers_per_channel": EXCLUSIVE,
        "floating_buffers_per_gate": FLOATING,
    }
    given = {"max_overdraft_buffers": 0, **buffers, **settings}
    async with (
        mini_cluster(directory, 1 + remote, network_segments=MUCH_MEMORY, **buffers) as cluster,
        api_clients(cluster, 0, int(remote), **given) as (producer, consumer),
    ):
        legs = OUTPUT_BUFFERS + GATE_BUFFERS
        yield Tasks(producer, consumer, legs + (GATE_BUFFERS if remote else 0))


@contextlib.asynccontextmanager
async def embedded_tasks(
    directory: Path, *, remote: bool, buffer_timeout_seconds: float = 0.1, **settings: Any
) -> AsyncIterator[Tasks]:
    """Run each task in a TaskManager: the settings of memory are the TaskManager's."""
    memory: dict[str, Any] = {
        "exclusive_buffers_per_channel": EXCLUSIVE,
        "floating_buffers_per_gate": FLOATING,
        "max_overdraft_buffers": 0,
        "network_segments": MUCH_MEMORY,
        **settings,
    }
    async with (
        mini_cluster(directory, 1 + remote, **memory) as cluster,
        embedded_clients(
            cluster, 0, int(remote), buffer_timeout_seconds=buffer_timeout_seconds
        ) as (producer, consumer),
    ):
        # On one TaskManager the consumer reads the very buffers of the partition.
        yield Tasks(producer, consumer, GATE_BUFFERS if remote else 0)


TASK_SOURCES: Final[dict[str, TaskSource]] = {"daemon": daemon_tasks, "embedded": embedded_tasks}
"""Every kind of client that the tests of tasks run over."""

EVERY_SOURCE = pytest.mark.parametrize("tasks_from", TASK_SOURCES.values(), ids=TASK_SOURCES)
"""Runs a test over every kind of client: ``async with tasks_from(tmp_path, remote=True)``."""


async def is_stuck(work: asyncio.Future[Any]) -> bool:
    """Tell whether a task waits for something that does not come."""
    done, _ = await asyncio.wait([work], timeout=STUCK_SECONDS)
    return not done


async def ended(partition: ResultPartition, *gates: ClientGate) -> list[bytes]:
    """Finish a partition, read its gates to their ends, and return the data that was left."""
    finishing = asyncio.create_task(partition.finish())
    left: list[bytes] = []
    for gate in gates:
        while (taken := await gate.next_buffer_or_event()) is not None:
            if taken.buffer.data_type == DATA:
                left.append(bytes(taken.buffer.payload))
            if taken.buffer.release is not None:
                taken.buffer.release()
    await finishing
    return left
