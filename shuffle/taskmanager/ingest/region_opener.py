"""Opens the regions of a map output: checks each announcement, and allocates its extent."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from ....protocol.errors import SluiceError
from ....protocol.limits import MAX_U64
from ....protocol.schema import (
    EVERY_SUBPARTITION,
    BeginRegion,
    FinishPartition,
    SecureRegion,
    SharedRegion,
)
from ...errors import LimitExceeded, MapOutputMismatch
from ...memory import LocalBufferPool
from ...names import MapAttemptKey
from .attached_area import CopiedRegion
from .disk_region import DiskRegion
from .incoming_output import ProducerServices
from .incoming_region import MemoryRegion, ReceivedRegion, ReceiveSettings

if TYPE_CHECKING:
    from ..store.region_area import RegionArea
    from ..store.region_writer import RegionWriter

RegionAnnouncement: TypeAlias = BeginRegion | SharedRegion


def check_region_limit(services: ProducerServices, region: int, map_attempt_id: int) -> None:
    """Check that a map output may have a region of this number.

    Raises:
        LimitExceeded: It may not.
    """
    most = services.config.max_regions_per_partition
    if region >= most:
        raise LimitExceeded(
            "Map output has too many regions",
            value=region + 1,
            limit=most,
            remedy="Write larger regions, or raise max_regions_per_partition",
            map_attempt_id=map_attempt_id,
        )


def check_secured(secured: SecureRegion, regions: int, map_attempt_id: int) -> None:
    """Check that a SecureRegion names the last of the regions that a map output has.

    Raises:
        MapOutputMismatch: It names another one.
    """
    if secured.region != regions - 1:
        raise MapOutputMismatch(
            "SecureRegion names another region than the last",
            value=secured.region,
            limit=regions - 1,
            map_attempt_id=map_attempt_id,
        )


def check_totals(
    finish: FinishPartition, total_bytes: int, regions: int, map_attempt_id: int
) -> None:
    """Check that a map output has arrived as its producer sent it.

    Raises:
        MapOutputMismatch: The totals differ.
    """
    if (finish.total_bytes, finish.regions) != (total_bytes, regions):
        raise MapOutputMismatch(
            "Totals of a map output do not add up",
            value=f"{finish.total_bytes} bytes in {finish.regions} regions",
            limit=f"{total_bytes} bytes in {regions} regions",
            map_attempt_id=map_attempt_id,
        )


class RegionOpener:
    """Opens the regions of one map output, one after the other.

    Args:
        services: The parts of the TaskManager.
        attempt: The map attempt.
        num_subpartitions: Subpartitions of the shuffle.
        settings: How regions are received on this connection.
    """

    def __init__(
        self,
        services: ProducerServices,
        attempt: MapAttemptKey,
        num_subpartitions: int,
        settings: ReceiveSettings,
    ) -> None:
        self._services: Final = services
        self._attempt: Final = attempt
        self._num_subpartitions: Final = num_subpartitions
        self._settings: Final = settings
        self._pool: LocalBufferPool | None = None

    @property
    def pool(self) -> LocalBufferPool:
        """The segments for writes to the disk tier, promised when they are first needed.

        Raises:
            InsufficientNetworkBuffers: They cannot be promised.
        """
        if self._pool is None:
            shuffle = self._attempt.shuffle
            self._pool = self._services.network_pool.create_local_pool(
                f"map output {self._attempt.map_attempt_id} of shuffle {shuffle.shuffle_id}",
                1,
                self._services.config.write_segments_per_partition,
                kind="map_output",
                owner=self._services.store.accounts.of(shuffle.application_id),
            )
        return self._pool

    def close(self) -> None:
        """Free the segments. Idempotent."""
        if self._pool is not None:
            self._pool.destroy()

    def receive(
        self,
        announced: BeginRegion,
        regions: int,
        grant: Callable[[int], None],
        failed: Callable[[SluiceError], None],
    ) -> ReceivedRegion:
        """Open a region whose bytes come in messages.

        Args:
            announced: The message about the region.
            regions: Regions that the map output has already.
            grant: Sends credit to the producer.
            failed: Called with the error when the disk has failed.

        Raises:
            LimitExceeded: The map output has too many regions.
            MapOutputMismatch: The announcement is wrong.
            StorageFull: No tier has room for it.
            InsufficientNetworkBuffers: The memory for writes to the disk tier cannot be promised.
        """
        writer = self._place(announced, regions)
        if writer.in_memory:
            return MemoryRegion(writer, announced.crc32c, self._settings, grant)
        try:
            return DiskRegion(writer, announced.crc32c, self._settings, self.pool, grant, failed)
        except BaseException:
            writer.abort()
            raise

    def copy(self, announced: SharedRegion, regions: int, area: "RegionArea") -> CopiedRegion:
        """Open a region whose bytes are in a region area; flushing it raises a failed copy's error.

        Args:
            announced: The message about the region.
            regions: Regions that the map output has already.
            area: The region area of the connection.

        Raises:
            LimitExceeded: The map output has too many regions.
            MapOutputMismatch: The announcement is wrong.
            StorageFull: No tier has room for it.
        """
        writer = self._place(announced, regions)
        verify = self._settings.verify_checksums
        return CopiedRegion(writer, announced.crc32c, verify, area, announced.area_offset)

    def _place(self, announced: RegionAnnouncement, regions: int) -> "RegionWriter":
        """Check an announcement, and allocate the region's extent.

        With ``EVERY_SUBPARTITION`` as the first one, the bytes are those of each subpartition.

        Raises:
            LimitExceeded: The number of the region is above the configured limit.
            MapOutputMismatch: It is not the next region, has lengths for more subpartitions than
                there are, or not exactly one length for every subpartition.
            StorageFull: No tier has room for it.
        """
        first, lengths = announced.first_subpartition, announced.lengths
        map_attempt_id = self._attempt.map_attempt_id
        check_region_limit(self._services, announced.region, map_attempt_id)
        if announced.region != regions:
            raise MapOutputMismatch(
                "Regions of a map output must be numbered from 0 without gaps",
                value=announced.region,
                limit=regions,
                map_attempt_id=map_attempt_id,
            )
        if first == EVERY_SUBPARTITION:
            if len(lengths) != 1:
                raise MapOutputMismatch(
                    "Region of every subpartition must have one length",
                    value=len(lengths),
                    limit=1,
                    map_attempt_id=map_attempt_id,
                )
        elif first + len(lengths) > self._num_subpartitions:
            raise MapOutputMismatch(
                "Region has lengths for more subpartitions than the shuffle has",
                value=first + len(lengths),
                limit=self._num_subpartitions,
                map_attempt_id=map_attempt_id,
            )
        try:
            return self._services.store.begin_region(
                self._attempt.shuffle, first, lengths, self._settings.connection
            )
        except ValueError as error:
            raise MapOutputMismatch(
                "Lengths of a region do not add up to a size",
                value=error,
                limit=f"{MAX_U64} bytes",
                map_attempt_id=map_attempt_id,
            ) from error
