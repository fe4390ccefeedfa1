"""A producing task and a consuming task, with access to the two pools between them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sluice.shuffle.gate.remote_input_channel import RemoteInputChannel
from sluice.shuffle.partition.pipelined_result_partition import PipelinedResultPartition
from sluice.shuffle.records.record_reader import RecordReader
from sluice.shuffle.records.record_writer import RecordWriter
from sluice.shuffle.records.serializers import BytesSerializer, ValueSerializer
from sluice.shuffle.taskmanager.serve.peer_handler import PeerHandler
from tests.support.gates import KEY, gate_of, source
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES, eventually, mini_cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sluice.shuffle.gate.input_gate import InputGate
    from sluice.shuffle.memory import LocalBufferPool
    from sluice.shuffle.taskmanager.serve.credit_based_view_reader import CreditBasedViewReader
    from sluice.transport.connection import Connection
from tests.support.mini_cluster import MiniCluster

ATTEMPT = 1
EXCLUSIVE = 2
FLOATING = 4
POOL_2 = EXCLUSIVE + FLOATING
PATIENCE_SECONDS = 30
ONLY_FULL = -1
"""The buffer timeout at which only full buffers are sent."""

FULL_RECORD_BYTES = SEGMENT_SIZE_BYTES - 4
"""A record that fills a segment to its last byte."""


def full_record(number: int) -> bytes:
    return number.to_bytes(4, "big") * (FULL_RECORD_BYTES // 4)


@dataclass
class Pipe:
    """Both tasks; ``pool_1`` is the partition's, ``pool_2`` the gate's."""

    cluster: MiniCluster
    partition: PipelinedResultPartition
    pool_1: LocalBufferPool
    writer: RecordWriter[bytes]
    gate: InputGate
    reader: RecordReader[Any]

    @property
    def held_1(self) -> int:
        """Buffers of pool 1 that hold records."""
        return self.pool_1.lent_segments

    @property
    def held_2(self) -> int:
        """Buffers of pool 2 that hold records; a local channel has none of its own."""
        channel = self.gate.channels[0]
        buffers = channel.buffers if isinstance(channel, RemoteInputChannel) else None
        if buffers is None:
            return 0
        held = buffers.initial_credit - buffers.exclusive_available
        pool = buffers.floating_pool
        return held + (pool.lent_segments - buffers.floating_available if pool is not None else 0)

    @property
    def serving(self) -> PeerHandler:
        """The producing end of the connection between the TaskManagers."""
        (handler,) = (
            handler
            for handler in self.cluster[0].handlers.values()
            if isinstance(handler, PeerHandler)
        )
        return handler

    @property
    def connection(self) -> Connection:
        """Its connection."""
        return self.serving.connection

    @property
    def sender(self) -> CreditBasedViewReader:
        """The channel on the producing TaskManager."""
        (reader,) = self.serving.readers.values()
        return reader

    @property
    def credit(self) -> int:
        """Return how many buffers the producing side may still send."""
        return self.sender.credit.available

    async def until(self, *, held_1: int, held_2: int) -> None:
        """Wait until the pools hold these numbers of buffers and none is on its way."""
        await eventually(
            lambda: (self.held_1, self.held_2) == (held_1, held_2),
            f"{held_1} and {held_2} buffers in use",
        )

    async def until_connected(self) -> None:
        """Wait until the channel has its memory, and the sender its credit and its view."""

        def connected() -> bool:
            handlers = self.cluster[0].handlers.values()
            return any(
                reader.view is not None
                for handler in handlers
                if isinstance(handler, PeerHandler)
                for reader in handler.readers.values()
            )

        await eventually(connected, "the view of the channel")


@contextlib.asynccontextmanager
async def pipe(
    directory: Path,
    segments: int,
    *,
    remote: bool = True,
    serializer: ValueSerializer[Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Pipe]:
    """Connect two tasks, on two TaskManagers or on one.

    Args:
        directory: Where the TaskManagers store partitions.
        segments: Buffers of pool 1.
        remote: Whether the consumer is on another TaskManager.
        serializer: The reader's.
        settings: Of the TaskManagers.
    """
    given = {
        "exclusive_buffers_per_channel": EXCLUSIVE,
        "floating_buffers_per_gate": FLOATING,
        **settings,
    }
    async with mini_cluster(directory, 1 + remote, **given) as cluster:
        here, there = cluster[0], cluster[int(remote)]
        pool_1 = here.network_pool.create_local_pool("pool 1", 1, segments)
        partition = PipelinedResultPartition("A", 1, pool_1)
        here.partitions.register_pipelined(KEY, ATTEMPT, partition, partition.fail)
        try:
            async with gate_of(there) as gate:
                gate.add_channel(source(here, ATTEMPT))
                of_bytes = BytesSerializer()
                writer = RecordWriter(partition, of_bytes, buffer_timeout_seconds=ONLY_FULL)
                reader = RecordReader(gate, serializer or of_bytes, 1)
                both = Pipe(cluster, partition, pool_1, writer, gate, reader)
                if remote:
                    await both.until_connected()
                yield both
                reader.close()
        finally:
            here.partitions.unregister_pipelined(KEY, ATTEMPT, partition)
            partition.release()
