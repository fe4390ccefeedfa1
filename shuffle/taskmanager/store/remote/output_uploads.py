"""Uploads map outputs to the remote tier, where every TaskManager finds them by name.

A map output becomes one object per region and a manifest, which is written last. Until then no
TaskManager finds any part of it.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from .....protocol.errors import ErrorCode
from .....transport.loop import run_together, start_shared
from ....names import MapAttemptKey, ShuffleKey
from ..errors import OtherRemoteOutput, StorageError
from ..objects.remote_failure import RemoteFailure
from ..objects.remote_names import (
    application_marker,
    manifest_name,
    moved_output,
    moved_region,
    name_of_application,
)
from ..objects.remote_upload import Upload
from ..stored_outputs import MapOutput, Region
from ..tiers.remote_tier import RemoteExtent, RemoteTier
from ..tiers.tier import Extent, ExtentRead
from .remote_manifest import Manifest, MovedRegion, pack_manifest, unpack_manifest

logger = logging.getLogger(__name__)

REGIONS_AT_A_TIME: Final = 4
"""Regions of a map output uploaded at a time."""

_PIECE_BYTES: Final = 1024 * 1024
_MAX_COPY_BYTES: Final = 5 * 1024**3
"""Largest object that S3 copies in one request."""


class Uploaded(NamedTuple):
    """A map output in the remote tier.

    Attributes:
        names: Names of the objects of its regions.
        is_new: Whether this call uploaded it.
    """

    names: list[str]
    is_new: bool


class Transfer:
    """The upload of a map output, from its lookup until its copy is recorded.

    Attributes:
        attempt: The map attempt.
        names: The objects of its regions, while the remote tier has, or may have, a manifest that
            this transfer wrote. None if there is no such manifest.
        is_released: Whether the map output was released or replaced during the transfer.
        is_forgotten: Whether its application was forgotten during the transfer.
    """

    __slots__ = ("attempt", "is_forgotten", "is_released", "names")

    def __init__(self, attempt: MapAttemptKey) -> None:
        self.attempt = attempt
        self.names: list[str] | None = None
        self.is_released = False
        self.is_forgotten = False


class OutputUploads:
    """Uploads the map outputs of a store.

    Args:
        tier: The remote tier.
        read: Reads extents of any tier.
        start: Starts a task, and cancels it when the store is closed.
    """

    def __init__(
        self,
        tier: RemoteTier,
        read: Callable[[Sequence[ExtentRead]], Awaitable[None]],
        start: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self.tier: Final = tier
        self.moves = 0
        """Map outputs uploaded by this TaskManager; only grows."""
        self._read: Final = read
        self._start: Final = start
        self._marked: set[str] = set()
        self._transfers: set[Transfer] = set()

    # ---- what ends while it is uploaded ----------------------------------------------------------

    @contextlib.contextmanager
    def transfer(self, output: MapOutput) -> Iterator[Transfer]:
        """Keep a map output and track its release while the context is open."""
        transfer = Transfer(MapAttemptKey(output.key, output.map_attempt_id))
        self._transfers.add(transfer)
        try:
            with output.kept():
                yield transfer
        finally:
            self._transfers.discard(transfer)

    def is_under_way(self, attempt: MapAttemptKey) -> bool:
        """Return whether a map output is being transferred that was not released since."""
        return any(each.attempt == attempt and not each.is_released for each in self._transfers)

    def released(self, key: ShuffleKey, end: int | None) -> None:
        """Record the release of a shuffle, or of its map attempts below ``end``."""
        for each in self._transfers:
            if each.attempt.shuffle == key and (end is None or each.attempt.map_attempt_id < end):
                each.is_released = True

    def superseded(self, attempt: MapAttemptKey) -> None:
        """Record that a map output was replaced by other bytes."""
        for each in self._transfers:
            if each.attempt == attempt:
                each.is_released = True

    def forget(self, application_id: str) -> None:
        """Forget an application."""
        self._marked.discard(application_id)
        for each in self._transfers:
            if each.attempt.shuffle.application_id == application_id:
                each.is_forgotten = True

    def discard(self, transfer: Transfer, found: "Uploaded | None") -> bool:
        """Delete what was transferred if it was released or forgotten meanwhile.

        Args:
            transfer: The transfer, at its end.
            found: Its result; None: it failed.

        Returns:
            Whether it was released or forgotten.
        """
        names = transfer.names
        if names is None and transfer.is_released and found is not None:
            names = found.names  # another TaskManager wrote it
        is_over = transfer.is_released or transfer.is_forgotten
        if is_over and names is not None:
            self.remove(transfer.attempt, names)
        return is_over

    def remove(self, attempt: MapAttemptKey, names: Sequence[str]) -> None:
        """Delete objects in the background, and the manifest if it names only these.

        Another TaskManager may have written a manifest of this name with other bytes meanwhile.
        """
        self._start(self._remove(attempt, names))

    async def _remove(self, attempt: MapAttemptKey, names: Sequence[str]) -> None:
        name, regions = manifest_name(attempt), {*names} - {""}
        try:
            manifest = manifest_of(attempt, await self.tier.objects.get(name))
            there = {each.name for each in manifest.regions} - {""}
            # The manifests of empty map outputs are alike: the end of the application deletes them.
            if there and there <= regions:
                # Not by `delete_soon`: its retry could delete a newer manifest.
                await self.tier.objects.delete([name])
        except ValueError:
            pass  # not a manifest: the end of the application deletes it
        except RemoteFailure as failure:
            if not failure.missing:
                logger.warning(
                    "%s: %s stays until its application ends: %s",
                    self.tier,
                    name,
                    failure,
                    extra=attempt.log_fields,
                )
                return
        self.tier.delete_soon(list(regions))

    # ---- finding and uploading -------------------------------------------------------------------

    async def find(self, output: MapOutput) -> Uploaded | None:
        """Return a map output if the remote tier has it.

        Raises:
            RemoteFailed: The remote tier does not answer.
            OtherRemoteOutput: It has one of the same name with other bytes.

        Cancellation: safe.
        """
        name = manifest_name(MapAttemptKey(output.key, output.map_attempt_id))
        try:
            there = await self.tier.objects.get(name)
        except RemoteFailure as failure:
            if failure.missing:
                return None
            raise self.tier.fetch_failure(failure, 0) from failure
        return Uploaded(_require_same(output, there), is_new=False)

    async def upload(self, transfer: Transfer, output: MapOutput) -> Uploaded:
        """Upload a map output.

        Args:
            transfer: Its transfer. If the upload fails, ``names`` has the objects that may stay.
            output: The map output.

        Raises:
            RemoteFailed: The upload failed.
            OtherRemoteOutput: The remote tier has one of the same name with other bytes.
            StorageReadFailed: Its bytes cannot be read.
            STORAGE_CORRUPT: Its bytes do not match their checksum.

        Cancellation: safe, uploaded parts are deleted.
        """
        attempt = MapAttemptKey(output.key, output.map_attempt_id)
        move = secrets.token_hex(8)
        names = [
            "" if region.extent is None else moved_region(attempt, move, number)
            for number, region in enumerate(output.regions)
        ]
        regions = [name for name in names if name]
        try:
            await self._mark(output.key.application_id)
            await self._copy_all(output.regions, names, output.key.application_id)
        except BaseException as error:
            self.tier.delete_soon(regions)
            if isinstance(error, RemoteFailure):
                raise self.tier.upload_failure(error, output.total_bytes) from error
            raise
        name, manifest = manifest_name(attempt), pack_manifest(output, names)
        there = manifest
        transfer.names = names
        self.tier.keep(name)
        try:
            await _to_its_end(self.tier.objects.put(name, manifest, new=True))
        except asyncio.CancelledError:
            transfer.names = None
            self.remove(attempt, names)
            raise
        except RemoteFailure as failure:
            # The manifest may be stored, even later, if there was no answer; then keep its regions.
            try:
                there = await self.tier.objects.get(name)
            except RemoteFailure as unknown:
                if unknown.missing and failure.is_answer:
                    transfer.names = None
                    self.tier.delete_soon(regions)
                raise self.tier.upload_failure(failure, output.total_bytes) from failure
        if there != manifest:  # another TaskManager uploaded it, or another map output
            transfer.names = None
            self.tier.delete_soon(regions)
            names = _require_same(output, there)
        await self.tier.require_stored(name, output.total_bytes)
        if there != manifest:
            return Uploaded(names, is_new=False)
        self.moves += 1
        return Uploaded(names, is_new=True)

    async def _mark(self, application_id: str) -> None:
        """Mark the application as alive for sweeps, once."""
        if application_id not in self._marked:
            marker = application_marker(name_of_application(application_id))
            await self.tier.objects.put(marker, b"")
            self._marked.add(application_id)

    async def _copy_all(
        self, regions: Sequence[Region], names: Sequence[str], application_id: str
    ) -> None:
        slots = asyncio.Semaphore(REGIONS_AT_A_TIME)

        async def copy(region: Region, extent: Extent, name: str) -> None:
            async with slots:
                await self._copy(region, extent, name, application_id)

        await run_together(
            copy(region, region.extent, name)
            for region, name in zip(regions, names, strict=True)
            if region.extent is not None
        )

    async def _copy(self, region: Region, extent: Extent, name: str, application_id: str) -> None:
        """Copy one region, and verify its checksum on the way."""
        if isinstance(extent, RemoteExtent) and extent.length <= _MAX_COPY_BYTES:
            await _to_its_end(self.tier.objects.copy(extent.name, name))
            return
        upload = self.tier.upload(name, extent.length, application_id)
        try:
            await self._send(region, extent, upload)
            await upload.flush()
        except BaseException:
            upload.abort(lambda: self.tier.delete_soon([name]))
            raise

    async def _send(self, region: Region, extent: Extent, upload: Upload) -> None:
        value = 0
        buffer = memoryview(bytearray(min(_PIECE_BYTES, extent.length)))
        for start in range(0, extent.length, _PIECE_BYTES):
            piece = buffer[: min(_PIECE_BYTES, extent.length - start)]
            await self._read([ExtentRead(extent, start, [piece])])
            value = crc32c(piece, value)
            if start + len(piece) == extent.length and value != region.crc32c:
                raise StorageError(  # before the upload is complete
                    f"region at {extent!r} is corrupt: crc32c {value:#010x}, "
                    f"committed with {region.crc32c:#010x}",
                    code=ErrorCode.STORAGE_CORRUPT,
                    remedy="Check memory and disk",
                )
            await upload.write(start, [piece])


def manifest_of(attempt: MapAttemptKey, data: bytes) -> Manifest:
    """Read the manifest of a map output.

    Raises:
        ValueError: The bytes are not a manifest, or it names objects of another map output.
    """
    manifest = unpack_manifest(data)
    below = moved_output(attempt) + "/"
    if any(each.name and not each.name.startswith(below) for each in manifest.regions):
        msg = "it names objects of another map output"
        raise ValueError(msg)
    return manifest


def _require_same(output: MapOutput, there: bytes) -> list[str]:
    """Return the names of the regions in a manifest, which must be those of a map output.

    Raises:
        OtherRemoteOutput: They are not, or it is not a manifest.
    """
    attempt = MapAttemptKey(output.key, output.map_attempt_id)
    try:
        manifest = manifest_of(attempt, there)
    except ValueError as error:
        raise OtherRemoteOutput(*output.key, output.map_attempt_id) from error
    if manifest.num_subpartitions != output.num_subpartitions or not _same_bytes(
        manifest.regions, output.regions
    ):
        raise OtherRemoteOutput(*output.key, output.map_attempt_id)
    return [each.name for each in manifest.regions]


def _same_bytes(stored: Sequence[MovedRegion], regions: Sequence[Region]) -> bool:
    """Whether regions in a manifest are those of a map output."""
    return len(stored) == len(regions) and all(
        (each.first_subpartition, each.crc32c, each.offsets, each.numbers)
        == (region.first_subpartition, region.crc32c, region.offsets, region.numbers)
        for each, region in zip(stored, regions, strict=True)
    )


async def _to_its_end(request: Coroutine[Any, Any, None]) -> None:
    """Make a request; if canceled, wait for its end so that its object can be deleted."""
    task = start_shared(request)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
