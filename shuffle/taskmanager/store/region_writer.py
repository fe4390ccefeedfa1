"""Writes one region into its extent."""

from collections.abc import Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from ....transport.fair_queue import Flow
from ...names import ShuffleKey
from ..bounds.accounts import Account, Resource
from .errors import DirectoryHangs, OutsideRegion, StorageError, StorageReadFailed
from .files.file_calls import read_into
from .files.io_threads import IoThreads, Used
from .stored_outputs import Region, kept_bytes
from .tiers.tier import Extent

if TYPE_CHECKING:
    from array import array

    from .objects.remote_upload import Upload
    from .region_area import RegionArea
    from .tiers.tier import Tier


DIRECT_COPY_BYTES = 256 * 1024
"""The event loop itself copies regions up to this size: that takes no longer than a switch to a
thread and back."""

COPY_CALL_BYTES = 4 * 1024 * 1024
"""Maximum bytes of a region that are copied in one turn, while other flows wait."""

_COPY_BYTES = 1024 * 1024
"""A region is copied in pieces that are still in the CPU cache when their checksum is computed."""


class RegionWriter:
    """Writes a region. Call either :meth:`finish` or :meth:`abort` at the end.

    Until then the index of the region is charged to its application.

    Args:
        key: The shuffle of the region.
        extent: The region's extent, or None if it is empty. The writer takes over the owner's
            reference.
        first_subpartition: Number of the region's first subpartition.
        index: The region's index; see :func:`region_index`.
        account: The account of the application, which has room for the index.
        threads: Threads for writes to the tier of the extent.
        flow: The flow in whose turns the writes run.
    """

    __slots__ = (
        "_account",
        "_extent",
        "_failure",
        "_flow",
        "_kept_bytes",
        "_numbers",
        "_offsets",
        "_open",
        "_threads",
        "_upload",
        "_writes",
        "first_subpartition",
        "key",
        "length",
    )

    def __init__(
        self,
        key: ShuffleKey,
        extent: Extent | None,
        first_subpartition: int,
        index: "tuple[array[int], array[int] | None]",
        account: Account,
        threads: IoThreads,
        flow: Flow,
    ) -> None:
        self.key = key
        self.first_subpartition = first_subpartition
        self._offsets, self._numbers = index
        self.length: int = self._offsets[-1]
        self._extent = extent
        self._account = account
        self._kept_bytes = kept_bytes(*index)
        account.hold(Resource.METADATA_BYTES, self._kept_bytes)
        self._threads = threads
        self._flow = flow
        self._upload = None if extent is None else extent.upload
        self._open = True
        self._writes = 0
        self._failure: StorageError | None = None

    @property
    def in_memory(self) -> bool:
        """Whether :attr:`view` can be written directly. True for an empty region."""
        return self._extent is None or self._extent.in_memory

    @property
    def tier(self) -> "Tier | None":
        """The tier that the region is written to; None for an empty region."""
        return None if self._extent is None else self._extent.tier

    @property
    def is_uploading(self) -> bool:
        """Whether a part of the region is not stored in the remote tier yet."""
        return self._upload is not None and self._open and not self._upload.is_stored

    @property
    def view(self) -> memoryview:
        """The whole extent, to receive into; only for a region in memory.

        Raises:
            RuntimeError: The region is not in memory, or was finished or aborted.
        """
        self._check_open()
        if self._extent is None:
            return memoryview(b"")
        view = self._extent.view
        if view is None:
            raise RuntimeError(f"{self._extent!r} is not in memory: use write()")
        return view

    async def write(
        self, offset: int, buffers: list[memoryview], uses: Sequence[Used] = ()
    ) -> None:
        """Write buffers in order. Several calls may run at a time.

        The remote tier only accepts bytes in order, so a call waits for the calls before it.

        Args:
            offset: Position of the first buffer in the region, in bytes.
            buffers: Must not change until the call has ended.
            uses: What has the buffers. It is retained as long as a thread uses them after this
                call, because the disk hangs.

        Raises:
            OutsideRegion: The buffers end beyond the region; no byte was written.
            StorageWriteFailed: The write failed. The region can only be aborted.
            DirectoryHangs: The disk does not answer. The region can only be aborted.
            RemoteFailed: The upload of these bytes, or of bytes before them, failed.
            asyncio.CancelledError: Raised when the buffers are free again, or their disk hangs; the
                extent's content is unknown.
        """
        self._check_open()
        end = offset + sum(len(buffer) for buffer in buffers)
        if offset < 0 or end > self.length:
            raise OutsideRegion(end, self.length)
        extent = self._extent
        if extent is None:
            return
        view = extent.view
        if view is not None:
            for buffer in buffers:
                view[offset : offset + len(buffer)] = buffer
                offset += len(buffer)
            return
        if self._upload is not None:
            await self._counted(self._upload.write(offset, buffers))
            return
        tier = extent.tier
        extent.retain()  # an abort must not free the space while the thread writes there
        self._writes += 1
        try:
            write = partial(tier.write, extent.offset + offset, buffers)
            await self._threads.run_for(self._flow, end - offset, write, (extent, *uses))
        except DirectoryHangs as error:
            self._failure = error
            raise
        except OSError as error:
            self._failure = tier.write_failure(extent.offset + offset, end - offset, error)
            raise self._failure from error
        finally:
            self._writes -= 1
            extent.release()

    async def flush(self) -> None:
        """Wait until all bytes can be read: uploads continue after :meth:`write` returns.

        Raises:
            RemoteFailed: The upload failed. The region can only be aborted.

        Cancellation: safe, the upload continues.
        """
        if self._upload is not None and self._open:
            await self._upload.flush()

    async def _counted(self, write: Coroutine[Any, Any, None]) -> None:
        """Count a write to the remote tier while it runs, and record its failure."""
        self._writes += 1
        try:
            await write
        except StorageError as error:
            self._failure = error
            raise
        finally:
            self._writes -= 1

    async def copy_from(self, area: "RegionArea", offset: int, *, checksum: bool) -> int:
        """Fill the whole region from a region area.

        Args:
            area: The area; the caller holds a reference during the call.
            offset: Position of the region's bytes in the area.
            checksum: Whether to compute the checksum of the bytes.

        Returns:
            The CRC-32C of the bytes; 0 without ``checksum``.

        Raises:
            OutsideRegion: The area's file was truncated.
            StorageReadFailed: The area could not be read.
            StorageWriteFailed: The write failed. The region can only be aborted.
            DirectoryHangs: The disk does not answer. The region can only be aborted.
            RemoteFailed: The upload failed.
            asyncio.CancelledError: Raised when no thread uses the area or the extent, or the
                disk hangs. The area is retained while a thread uses it.
        """
        self._check_open()
        extent = self._extent
        if extent is None:
            return 0
        if extent.in_memory and self.length <= DIRECT_COPY_BYTES:
            return _copy(extent, (0, self.length), area, offset, checksum, 0)
        if self._upload is not None:
            sending = _Sending(self._upload, area, offset)
            await self._counted(sending.send(self._threads, self._flow, checksum=checksum))
            return sending.crc32c
        extent.retain()  # an abort must not free the space while the thread writes there
        self._writes += 1
        value = 0
        try:
            for start in range(0, self.length, COPY_CALL_BYTES):
                if not self._open:
                    break  # aborted meanwhile
                end = min(start + COPY_CALL_BYTES, self.length)
                copy = partial(_copy, extent, (start, end), area, offset + start, checksum, value)
                value = await self._threads.run_for(self._flow, end - start, copy, (extent, area))
        except DirectoryHangs as error:
            self._failure = error
            raise
        except OSError as error:
            self._failure = extent.tier.write_failure(extent.offset, self.length, error)
            raise self._failure from error
        finally:
            self._writes -= 1
            extent.release()
        return value

    def finish(self, crc32c: int) -> Region:
        """Finish the region.

        Args:
            crc32c: Checksum over all its bytes.

        Returns:
            The region; the caller owns its extent until a commit takes it over.

        Raises:
            StorageWriteFailed: An earlier write failed. Abort the region.
            RuntimeError: A write still runs or was not flushed, or the region was finished or
                aborted before.
        """
        self._check_open()
        if self._writes:
            raise RuntimeError(f"{self._writes} writes to {self._extent!r} are under way")
        if self._failure is not None:
            raise self._failure
        if self._upload is not None and not self._upload.is_stored:
            raise RuntimeError(f"{self._extent!r} is not flushed")
        self._end()
        first, offsets, numbers = self.first_subpartition, self._offsets, self._numbers
        return Region(self._extent, first, offsets, crc32c, numbers)

    def abort(self) -> None:
        """Abort the region. Its space becomes free when the last running write has ended.

        Does nothing if the region was finished or aborted before.
        """
        if self._open:
            self._end()
            if self._extent is not None:
                self._extent.release()

    def _end(self) -> None:
        self._open = False
        self._account.give_back(Resource.METADATA_BYTES, self._kept_bytes)
        if self._extent is not None:
            self._extent.tier.written(self._extent)

    def _check_open(self) -> None:
        if not self._open:
            raise RuntimeError("the region was finished or aborted before")


class _Sending:
    """Sends a region from a region area to the remote tier.

    Args:
        upload: The upload of the region.
        area: Contains the bytes; the caller holds a reference.
        offset: Position of the first byte in the area.

    Attributes:
        crc32c: Checksum of the bytes sent so far.
    """

    def __init__(self, upload: "Upload", area: "RegionArea", offset: int) -> None:
        self.crc32c = 0
        self._upload = upload
        self._area = area
        self._offset = offset

    async def send(self, threads: IoThreads, flow: Flow, *, checksum: bool) -> None:
        """Send all bytes and wait until they are stored."""
        length = self._upload.length
        buffer = memoryview(bytearray(min(_COPY_BYTES, length)))
        for start in range(0, length, _COPY_BYTES):
            piece = buffer[: min(_COPY_BYTES, length - start)]
            read = partial(self._read, start, piece, checksum)
            self.crc32c = await threads.run_for(flow, len(piece), read)
            await self._upload.write(start, [piece])
        await self._upload.flush()

    def _read(self, start: int, piece: memoryview, checksum: bool) -> int:
        _read_piece(self._area, self._offset + start, piece)
        return crc32c(piece, self.crc32c) if checksum else 0


def _copy(
    extent: Extent,
    part: tuple[int, int],
    area: "RegionArea",
    offset: int,
    checksum: bool,
    value: int,
) -> int:
    """Copy a part of a region, in the calling thread.

    Args:
        extent: Extent of the region.
        part: Start and end of the part in the extent.
        area: Contains the bytes.
        offset: Position of the part in the area.
        checksum: Whether to compute the checksum.
        value: Checksum of the bytes before the part.

    Returns:
        The checksum of all bytes up to the end of the part; ``value`` without ``checksum``.
    """
    view = extent.view
    begin, end = part
    buffer = memoryview(b"" if view is not None else bytearray(min(_COPY_BYTES, end - begin)))
    for start in range(begin, end, _COPY_BYTES):
        stop = min(start + _COPY_BYTES, end)
        piece = buffer[: stop - start] if view is None else view[start:stop]
        _read_piece(area, offset + start - begin, piece)
        if checksum:
            value = crc32c(piece, value)
        if view is None:
            extent.tier.write(extent.offset + start, [piece])
    return value


def _read_piece(area: "RegionArea", offset: int, piece: memoryview) -> None:
    try:
        received = read_into(area.fd, [piece], offset)
    except OSError as error:
        raise StorageReadFailed(area.path, offset, len(piece), 0, str(error)) from error
    if received != len(piece):
        raise OutsideRegion(offset + len(piece), offset + received)
