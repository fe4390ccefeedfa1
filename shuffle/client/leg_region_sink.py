"""The stored partitions that a client writes over a connection, and their ``RegionSink``."""

import logging
from collections import deque
from collections.abc import Iterable, Iterator

from ...protocol.limits import REMOTE_COPIES
from ...protocol.schema import (
    EVERY_SUBPARTITION,
    BeginRegion,
    OpenPartition,
    ReplicatePartition,
    ReplicateToRemote,
)
from ..legs.producer_leg import ProducerLeg
from ..legs.region_sender import Payload, RegionSender
from ..memory import LocalBufferPool
from ..partition.region_builder import OutgoingRegion
from ..partition.stored_result_partition import StoredResultPartition
from .partition_location import PartitionLocation
from .shuffle_environment import PartitionSettings
from .traced import trace_context

logger = logging.getLogger(__name__)


class LegRegionSink(RegionSender):
    """Sends the regions of one partition to a TaskManager, which stores them. A ``RegionSink``.

    Payloads are joined from the parts of a region, whose memory is free as soon as they are joined.
    """

    _payloads: Iterator[bytes] = iter(())

    async def write_region(self, region: OutgoingRegion) -> None:
        """Send a region; returns when the connection has taken all of it.

        Raises:
            SluiceError: The region could not be stored.
            DeadlineExceeded: No byte of it was taken for as long as an answer may take.

        Cancellation: abort the partition then.
        """
        first = EVERY_SUBPARTITION if region.is_broadcast else 0
        begin = BeginRegion(self.number, region.number, first, list(region.lengths), region.crc32c)
        written = await self._begin(begin, sum(region.lengths))
        self._payloads = gathered(region.parts, self._payload_bytes)
        try:
            self._send_available()
            await self._progress(written)
        finally:
            # No part may be read from here on: their memory is the writer's again.
            self._payloads = iter(())

    def _next_payload(self) -> Payload | None:
        payload = next(self._payloads, None)
        return None if payload is None else (payload, None)


def gathered(parts: Iterable[bytes | memoryview], size_bytes: int) -> Iterator[bytes]:
    """Cut and join parts into payloads of ``size_bytes``, the last one shorter."""
    waiting: deque[bytes | memoryview] = deque()
    have = 0
    for part in parts:
        view = memoryview(part)
        while have + len(view) >= size_bytes:
            take = size_bytes - have
            waiting.append(view[:take])
            yield b"".join(waiting)
            waiting.clear()
            have = 0
            view = view[take:]
        if len(view):
            waiting.append(view)
            have += len(view)
    if waiting:
        yield b"".join(waiting)


async def open_stored(
    leg: ProducerLeg,
    location: PartitionLocation,
    settings: PartitionSettings,
    pool: LocalBufferPool,
) -> StoredResultPartition:
    """Open a stored partition on the TaskManager of a leg.

    Raises:
        SluiceError: The TaskManager refused the partition, or the connection is gone.

    Cancellation: safe; the partition is aborted.
    """
    number = leg.new_number()
    sink = LegRegionSink(leg, number)
    subpartitions = settings.num_subpartitions
    partition = StoredResultPartition(pool.name, subpartitions, pool, sink, codec=settings.codec)
    names = (location.shuffle_id, location.map_attempt_id, subpartitions)
    await leg.open(number, OpenPartition(number, *names), sink)
    trace = trace_context(number, leg.features)
    if trace is not None:
        leg.send(trace)
    if settings.replicas > 1:
        leg.send(ReplicatePartition(number, settings.replicas, settings.replicas_synchronous))
    if settings.replicas_remote:
        if leg.features & REMOTE_COPIES:
            leg.send(ReplicateToRemote(number, settings.replicas_synchronous))
        else:
            logger.warning(
                "TaskManager %s has no remote tier: the partition gets no copy there. "
                "Set [storage] remote",
                leg.taskmanager_id,
                extra={"shuffle": names[0], "map_attempt": names[1], "peer": leg.taskmanager_id},
            )
    return partition
