"""A region that its producer has put into a region area: copied, not received."""

import asyncio
import logging

from protocol.errors import SluiceError
from shuffle.errors import ChecksumMismatch, RegionMismatch, internal_error
from shuffle.storage.outputs import Region
from shuffle.storage.region_area import RegionArea
from shuffle.storage.region_writer import RegionWriter

_log = logging.getLogger(__name__)


class CopiedRegion:
    """Copies one region from an area into its extent, and checks it.

    The producer may change the area's bytes once it is told that the region is secured, or the map
    output finished; either waits for :meth:`flush`.

    Args:
        writer: Writes to the extent; aborted if this raises.
        crc32c: What the region's checksum has to be.
        verify_checksums: Whether it is looked at.
        area: Where the bytes are.
        offset: Position of the first one there.

    Raises:
        RegionMismatch: They would reach beyond the area.
    """

    def __init__(
        self,
        writer: RegionWriter,
        crc32c: int,
        verify_checksums: bool,
        area: RegionArea,
        offset: int,
    ) -> None:
        self.length = writer.length
        self._writer = writer
        self._crc32c = crc32c
        self._verify_checksums = verify_checksums
        self._failure: SluiceError | None = None
        self._aborted = False
        self._copying: asyncio.Task[None] | None = None
        if offset + writer.length > area.size_bytes:
            writer.abort()
            raise RegionMismatch(
                "Region reaches beyond its region area",
                value=f"{writer.length} bytes at {offset}",
                limit=f"{area.size_bytes} bytes",
            )
        if writer.length:
            area.retain()
            self._copying = asyncio.get_running_loop().create_task(self._copy(area, offset))

    async def flush(self) -> None:
        """Wait until every byte is where it belongs, and is right.

        Raises:
            SluiceError: A read or write failed, or the checksum is wrong.

        Cancellation: safe, the copy goes on.
        """
        if self._copying is not None:
            await asyncio.shield(self._copying)
        if self._failure is not None:
            raise self._failure

    def finish(self) -> Region:
        """End the flushed region; the caller owns its extent then."""
        return self._writer.finish(self._crc32c)

    def abort(self) -> None:
        """Give the region up. Its space is free when the thread that copies it has ended."""
        self._aborted = True
        self._writer.abort()

    async def _copy(self, area: RegionArea, offset: int) -> None:
        try:
            if self._aborted:  # before the copy began
                return
            found = await self._writer.copy_from(area, offset, checksum=self._verify_checksums)
            if self._verify_checksums and found != self._crc32c:
                self._failure = ChecksumMismatch(
                    "Region lies in its region area with a wrong checksum",
                    value=f"{found:#010x}",
                    limit=f"{self._crc32c:#010x}",
                    remedy="The map task is run again; if it repeats, check the host's memory",
                )
        except SluiceError as error:
            self._failure = error
        except Exception as error:  # noqa: BLE001
            # A bug of ours must end this map output and be seen, not leave it waiting.
            _log.exception("internal error while copying a region")
            self._failure = internal_error(error)
        finally:
            area.release()
