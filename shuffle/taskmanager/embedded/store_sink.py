"""Stores the regions of a partition whose task runs in the TaskManager's own process."""

from time import monotonic

from ....protocol.schema import EVERY_SUBPARTITION
from ...names import ShuffleKey
from ...partition.region_builder import OutgoingRegion
from ..ingest.incoming_output import ProducerServices
from ..ingest.region_opener import check_region_limit
from ..store.stored_outputs import MapOutput, Region, release_regions


class StoreSink:
    """Writes the regions of one partition to the TaskManager's store. A ``RegionSink``.

    Args:
        services: The parts of the TaskManager.
        key: The shuffle.
        map_attempt_id: Names the partition in the shuffle.
        num_subpartitions: Number of its subpartitions.
        replicas: Number of TaskManagers that should keep it, including this one.
        synchronous: Whether :meth:`finish` waits for the copies.
        to_remote: Whether it should have a copy in the remote tier.
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
        to_remote: bool = False,
    ) -> None:
        self._services = services
        self._key = key
        self._map_attempt_id = map_attempt_id
        self._num_subpartitions = num_subpartitions
        self._replicas = replicas
        self._synchronous = synchronous
        self._to_remote = to_remote
        self._regions: list[Region] = []
        self._aborted = False

    async def write_region(self, region: OutgoingRegion) -> None:
        """Store a region.

        Raises:
            LimitExceeded: The partition has as many regions as it may.
            StorageFull: No tier has room.
            StorageWriteFailed: The disk did not take the bytes.

        Cancellation: safe; the parts are free when this raises, and the region is aborted.
        """
        check_region_limit(self._services, region.number, self._map_attempt_id)
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

        Cancellation: safe; the commit continues.
        """
        began = monotonic()
        written, self._regions = self._regions, []
        output = MapOutput(
            self._key,
            self._map_attempt_id,
            self._num_subpartitions,
            tuple(written),
            replicas=self._replicas,
            is_synchronous=self._synchronous,
            to_remote=self._to_remote,
        )
        await self._services.commit(output, began)
        self._services.counters.map_outputs_committed += 1

    def abort(self) -> None:
        """Abort all regions; one that is being written is aborted at its end. Idempotent."""
        self._aborted = True
        written, self._regions = self._regions, []
        release_regions(written)
