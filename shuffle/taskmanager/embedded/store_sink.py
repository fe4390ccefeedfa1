"""Storing the regions of a partition whose task runs in the TaskManager's own process."""

from ....protocol.schema import EVERY_SUBPARTITION
from ...errors import LimitExceeded
from ...names import ShuffleKey
from ...partition.region_builder import OutgoingRegion
from ..ingest.incoming_output import ProducerServices
from ..store.stored_outputs import MapOutput, Region, release_regions


class StoreSink:
    """Writes the regions of one partition to the TaskManager's store. A ``RegionSink``.

    Args:
        services: The parts of the TaskManager.
        key: The shuffle.
        map_attempt_id: Names the partition in the shuffle.
        num_subpartitions: Number of its subpartitions.
        replicas: TaskManagers that shall keep it, this one included.
        synchronous: Whether its end waits for the copies.
    """

    def __init__(
        self,
        services: ProducerServices,
        key: ShuffleKey,
        map_attempt_id: int,
        num_subpartitions: int,
        replicas: int = 1,
        *,
        synchronous: bool = False,
    ) -> None:
        self._services = services
        self._key = key
        self._map_attempt_id = map_attempt_id
        self._num_subpartitions = num_subpartitions
        self._replicas = replicas
        self._synchronous = synchronous
        self._regions: list[Region] = []
        self._aborted = False

    async def write_region(self, region: OutgoingRegion) -> None:
        """Store a region.

        Raises:
            LimitExceeded: The partition has as many regions as it may.
            StorageFull: No tier has room.
            StorageWriteFailed: The disk did not take the bytes.

        Cancellation: the parts are free when this raises, and the region is given up.
        """
        most = self._services.config.max_regions_per_partition
        if region.number >= most:
            raise LimitExceeded(
                "Map output has too many regions",
                value=region.number + 1,
                limit=most,
                remedy="Write larger regions, or raise max_regions_per_partition",
                map_attempt_id=self._map_attempt_id,
            )
        first = EVERY_SUBPARTITION if region.is_broadcast else 0
        writer = self._services.store.begin_region(self._key, first, region.lengths)
        try:
            await writer.write(0, [memoryview(part) for part in region.parts])
            await writer.flush()
            written = writer.finish(region.crc32c)
        except BaseException:
            writer.abort()
            raise
        self._services.counters.regions_written += 1
        if self._aborted:
            written.release()
        else:
            self._regions.append(written)

    async def finish(self, total_bytes: int, regions: int) -> None:
        """Commit the partition; it outlives this process when this returns.

        Raises:
            DuplicateMapOutput: A map output of that name is committed.
            SluiceError: It could not be made durable.

        Cancellation: the commit goes on, but nobody waits for it.
        """
        written, self._regions = self._regions, []
        output = MapOutput(
            self._key,
            self._map_attempt_id,
            self._num_subpartitions,
            tuple(written),
            replicas=self._replicas,
            is_synchronous=self._synchronous,
        )
        await self._services.commit(output)
        self._services.counters.map_outputs_committed += 1

    def abort(self) -> None:
        """Give up all regions; one that is being written is given up at its end. Idempotent."""
        self._aborted = True
        written, self._regions = self._regions, []
        release_regions(written)
