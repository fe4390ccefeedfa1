"""The region area of one producer connection, and the regions that are copied out of it."""

import asyncio
import logging
from typing import Final

from ....protocol.errors import SluiceError, UnexpectedMessage
from ....protocol.schema import AttachRegionArea, RegionAreaAttached
from ....transport.connection import Connection
from ....transport.loop import start_task
from ...errors import ChecksumMismatch, MapOutputMismatch, failure_of
from ..store.region_area import RegionArea, RegionAreas
from ..store.region_writer import RegionWriter
from .incoming_region import IncomingRegion

logger = logging.getLogger(__name__)


class AttachedArea:
    """Attaches region areas to a connection, one at a time.

    Args:
        connection: The connection to the producer.
        areas: All areas of the TaskManager.
    """

    def __init__(self, connection: Connection, areas: RegionAreas) -> None:
        self._connection = connection
        self._areas = areas
        self._area: RegionArea | None = None
        self._creating: asyncio.Task[None] | None = None

    @property
    def area(self) -> RegionArea:
        """The area that is attached.

        Raises:
            MapOutputMismatch: The connection has none.
        """
        if self._area is None:
            raise MapOutputMismatch("SharedRegion on a connection without a region area")
        return self._area

    @property
    def is_attached(self) -> bool:
        """Whether an area is attached, or is being made."""
        return self._area is not None or self._creating is not None

    def attach(self, message: AttachRegionArea) -> None:
        """Attach an area in place of the one before, and answer.

        Raises:
            UnexpectedMessage: The message before has not been answered yet.
        """
        if self._creating is not None:
            raise UnexpectedMessage("AttachRegionArea before the answer to the one before", value=2)
        self.detach()
        application_id = self._connection.application_id
        if message.token or not message.size_bytes:
            self._attached(self._areas.find(application_id, message.token))
        else:
            self._creating = start_task(self._create(application_id, message.size_bytes))

    def detach(self) -> None:
        """Release the area that is attached or being made. Idempotent."""
        if self._creating is not None:
            self._creating.cancel()
            self._creating = None
        area, self._area = self._area, None
        if area is not None:
            area.release()

    async def _create(self, application_id: str, size_bytes: int) -> None:
        area: RegionArea | None = None
        try:
            area = await self._areas.create(application_id, size_bytes)
        except Exception:
            # The producer can work without an area, but not without an answer.
            extra = {"application": application_id}
            logger.exception("internal error while making a region area", extra=extra)
        self._creating = None
        self._attached(area)

    def _attached(self, area: RegionArea | None) -> None:
        self._area = area
        self._connection.send(
            RegionAreaAttached("", "", 0)
            if area is None
            else RegionAreaAttached(area.token, str(area.path), area.size_bytes)
        )


class CopiedRegion(IncomingRegion):
    """A region that is copied from an area into its extent, and checked.

    The producer may change the area's bytes when RegionSecured or PartitionFinished has arrived;
    both wait for :meth:`flush`.

    Args:
        writer: Writes to the extent; aborted if this raises.
        crc32c: The checksum that the producer announced.
        verify_checksums: Whether it is compared.
        area: Holds the bytes.
        offset: Position of the first one there.

    Raises:
        MapOutputMismatch: The region reaches beyond the area.
    """

    def __init__(
        self,
        writer: RegionWriter,
        crc32c: int,
        verify_checksums: bool,
        area: RegionArea,
        offset: int,
    ) -> None:
        super().__init__(writer, crc32c)
        self._verify_checksums: Final = verify_checksums
        self._failure: SluiceError | None = None
        self._aborted = False
        self._copying: asyncio.Task[None] | None = None
        if offset + writer.length > area.size_bytes:
            writer.abort()
            raise MapOutputMismatch(
                "Region reaches beyond its region area",
                value=f"{writer.length} bytes at {offset}",
                limit=f"{area.size_bytes} bytes",
            )
        if writer.length:
            area.retain()
            self._copying = start_task(self._copy(area, offset))

    @property
    def is_writing(self) -> bool:
        """Whether the copy is running."""
        return self._copying is not None and not self._copying.done()

    async def flush(self) -> None:
        """Wait until every byte is in the extent and the checksum is compared.

        Raises:
            SluiceError: A read or write failed, or the checksum is wrong.

        Cancellation: safe; the copy continues.
        """
        copying = self._copying
        if copying is not None and (copying.cancelled() or not copying.done()):
            await asyncio.shield(copying)
        if self._failure is not None:
            raise self._failure

    def abort(self) -> None:
        """Abort the region. Its space is free when the thread that copies it has ended."""
        self._aborted = True
        self._writer.abort()

    async def _copy(self, area: RegionArea, offset: int) -> None:
        try:
            if self._aborted:  # before the copy began
                return
            found = await self._writer.copy_from(area, offset, checksum=self._verify_checksums)
            if self._verify_checksums and found != self._crc32c:
                self._failure = ChecksumMismatch(
                    "Region has a wrong checksum in its region area",
                    value=f"{found:#010x}",
                    limit=f"{self._crc32c:#010x}",
                    remedy="If it repeats, check the host's memory",
                )
        except Exception as error:  # noqa: BLE001
            self._failure = failure_of(error, "copying a region")
        finally:
            area.release()
