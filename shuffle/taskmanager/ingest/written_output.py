"""A map output on the producer leg, and what that leg uses of its TaskManager."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sluice.shuffle.counters import Counters
from sluice.shuffle.gate.task_events import TaskEventDispatcher
from sluice.shuffle.memory import LocalBufferPool, NetworkBufferPool
from sluice.shuffle.taskmanager.ingest.resumable_outputs import ResumableOutputs
from sluice.shuffle.taskmanager.ingest.waiting import Waiter, Waiting
from sluice.shuffle.taskmanager.sections import NetworkMemoryConfig
from sluice.shuffle.taskmanager.serve.result_partition_manager import ResultPartitionManager
from sluice.shuffle.taskmanager.store.region_area import RegionAreas
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore

if TYPE_CHECKING:
    import asyncio

    from sluice.shuffle.names import MapAttemptKey
    from sluice.shuffle.taskmanager.ingest.map_output_writer import MapOutputWriter


def _nothing() -> None:
    """Do nothing: nobody wants to know."""


@dataclass(slots=True)
class ProducerServices:
    """What the producer leg uses of its TaskManager."""

    store: ShuffleStore
    partitions: ResultPartitionManager
    network_pool: NetworkBufferPool
    task_events: TaskEventDispatcher
    resumable: ResumableOutputs
    region_areas: RegionAreas
    counters: Counters
    config: NetworkMemoryConfig
    verify_checksums: bool
    draining: bool = False
    on_idle: Callable[[], None] = _nothing
    """Called when a connection has nothing more to write."""
    map_output_credit_wait: Waiting = field(default_factory=Waiting)
    pipelined_credit_wait: Waiting = field(default_factory=Waiting)


class WrittenOutput:
    """A map output being written, with its pool and, at the end, its commit."""

    __slots__ = (
        "aborts",
        "attempt",
        "commit",
        "credit",
        "credit_wait",
        "pool",
        "resumable",
        "securing",
        "writer",
    )

    def __init__(self, credit_wait: Waiter) -> None:
        self.credit = 0
        """Granted and not used by the producer."""
        self.credit_wait = credit_wait  # while it is inside a region without credit
        self.writer: MapOutputWriter | None = None
        self.pool: LocalBufferPool | None = None
        self.commit: asyncio.Task[None] | None = None
        self.attempt: MapAttemptKey | None = None
        self.securing: asyncio.Task[None] | None = None
        self.resumable = False
        """Whether it is known to those that can be resumed on another connection."""
        self.aborts = 0
        """Times AbortPartition came when the commit was in the journal's hands already."""
