"""The remote tier: regions as objects in S3, or as files on a shared file system.

One region is one object. Its number in the journal is the number of the extent, and its name
follows from the number, the application and the TaskManager. A number is never reused, so a row
never refers to another object than its own.
"""

import asyncio
import logging
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from .....transport.fair_queue import Flow
from .....transport.loop import run_together, start_task
from ...bounds.accounts import Resource
from ..errors import RemoteFailed, RemoteFull, RemoteObjectMissing, StorageError, StorageReadFailed
from ..files.fair_slots import FairSlots
from ..objects import remote_names
from ..objects.remote_failure import RemoteFailure
from ..objects.remote_marker import RemoteMarker
from ..objects.remote_names import region_name, taskmanager_marker
from ..objects.remote_objects import DELETE_BATCH, RemoteObjects
from ..objects.remote_upload import MAX_PARTS, Upload, UploadBudget
from ..store_status import TierStatus
from .slot_allocator import occupied_bytes
from .tier import Extent, ExtentRead, Tier

if TYPE_CHECKING:
    from ...config.storage_config import StorageConfig
    from ..files.io_threads import Used

logger = logging.getLogger(__name__)

GAP_BYTES: Final = 64 * 1024
"""Reads of one object with a gap up to this size share a request: a request costs as much as this
many bytes."""

MAX_DELETES: Final = 100_000
"""Maximum number of objects that wait for deletion; the sweep deletes the others."""

CLOSE_SECONDS: Final = 5.0
"""Time for uploads, and for deletions, to finish when the TaskManager ends."""

_NUMBER_BITS: Final = 31


class RemoteExtent(Extent):
    """An object of the remote tier.

    Attributes:
        application_id: Its owner.
        moved: Name of an object that belongs to the application and not to this TaskManager, so
            its last release here does not delete it; None: the name follows from the number.
    """

    __slots__ = ("application_id", "moved", "remote_tier", "upload")

    def __init__(
        self,
        tier: "RemoteTier",
        number: int,
        length: int,
        application_id: str,
        moved: str | None = None,
    ) -> None:
        super().__init__(tier, number, length)
        self.remote_tier = tier
        self.application_id = application_id
        self.moved = moved
        self.upload: Upload | None = None

    @property
    def name(self) -> str:
        """Name of the object."""
        if self.moved is not None:
            return self.moved
        return region_name(self.application_id, self.remote_tier.taskmanager_id, self.offset)

    def __repr__(self) -> str:
        return f"<RemoteExtent {self.name} references={self._references}>"


class RemoteTier(Tier):
    """The remote tier: each extent is an object.

    Args:
        objects: The remote store.
        config: Sizes and deadlines.

    Attributes:
        objects: The remote store.
        taskmanager_id: Set before the first object is named.
        marker: The marker of this TaskManager.
        budget: Memory for uploads.
        failed: Set when the tier is left out.
        capacity_bytes: Maximum bytes of this TaskManager's objects; None: no limit.
        removed_orphans: Objects removed by sweeps; only grows.
    """

    kind = "remote"
    resource = Resource.REMOTE_TIER_BYTES
    read_ahead_segments = 64

    def __init__(self, objects: RemoteObjects, config: "StorageConfig") -> None:
        super().__init__(objects.url, remote_names.remote_tier_id(objects.url))
        self.objects = objects
        self.taskmanager_id = ""
        self.marker = RemoteMarker(objects, lambda: taskmanager_marker(self.taskmanager_id))
        self.budget = UploadBudget(config.remote_upload_bytes)
        self.failed = asyncio.Event()
        self.removed_orphans = 0
        self.capacity_bytes = config.remote_quota_bytes
        self._part_bytes = config.remote_part_bytes
        self._timeout_seconds = config.remote_timeout_seconds
        self.reading = FairSlots(config.remote_requests)  # turns of reads
        self._next_number = secrets.randbits(_NUMBER_BITS) << 32
        self._live: set[int] = set()
        self._used_bytes = 0
        self._extents = 0
        self._deletes: dict[str, None] = {}
        self._under_deletion: dict[str, None] = {}
        self._deleting: asyncio.Task[None] | None = None
        self._closed = False

    @classmethod
    def open(cls, config: "StorageConfig", url: str) -> "RemoteTier":
        """Create the client of the remote store without sending a request.

        Raises:
            StorageUnavailable: The client cannot be created.
        """
        return cls(RemoteObjects.open(config, url), config)

    def __str__(self) -> str:
        return f"remote tier {self.place}"

    # ---- extents ---------------------------------------------------------------------------------

    def allocate(self, length: int, application_id: str) -> RemoteExtent | None:
        """Allocate an object, or return None if the tier is not healthy or at its quota."""
        if not self.healthy or length > self.largest_free_bytes():
            return None
        self._next_number += 1
        extent = self._extent(self._next_number, length, application_id)
        extent.upload = self.upload(extent.name, length, application_id)
        self._live.add(extent.offset)
        return extent

    def upload(self, name: str, length: int, application_id: str) -> Upload:
        """Return an upload of an object, which allocates memory at the first byte."""
        return Upload(
            self.objects,
            name,
            length,
            application_id,
            self._part_bytes,
            self.budget,
            self.upload_failure,
            self.marker.require_stored,
        )

    def adopt(self, offset: int, length: int, application_id: str = "") -> RemoteExtent:
        """Adopt an object of a previous process, without checking that it exists.

        Raises:
            ValueError: Another map output has it.
        """
        if offset in self._live:
            msg = f"object {offset:016x} belongs to another map output"
            raise ValueError(msg)
        self._live.add(offset)
        return self._extent(offset, length, application_id)

    def moved_here(self, name: str, length: int, application_id: str) -> RemoteExtent:
        """Return an extent for an object that belongs to the application."""
        return self._extent(0, length, application_id, name)

    def _extent(
        self, number: int, length: int, application_id: str, moved: str | None = None
    ) -> RemoteExtent:
        self._used_bytes += occupied_bytes(length)
        self._extents += 1
        return RemoteExtent(self, number, length, application_id, moved)

    def recycle(self, extent: Extent) -> None:
        """Forget an object, and delete it later if it belongs to this TaskManager."""
        self._used_bytes -= occupied_bytes(extent.length)
        self._extents -= 1
        if not isinstance(extent, RemoteExtent) or extent.moved is not None:
            return
        if not self.taskmanager_id:  # adoption rejected it, during a start: the sweep deletes it
            self._live.discard(extent.offset)
            return
        name, number = extent.name, extent.offset

        def gone() -> None:
            self._live.discard(number)
            self.delete_soon([name])

        upload, extent.upload = extent.upload, None
        if upload is None:
            gone()
        else:
            upload.abort(gone)

    def written(self, extent: Extent) -> None:
        """Drop the upload of an extent that is stored."""
        if isinstance(extent, RemoteExtent) and extent.upload and extent.upload.is_stored:
            extent.upload = None

    def is_live(self, number: int) -> bool:
        """Return whether an object of this TaskManager is in use or being written."""
        return number in self._live

    # ---- reading ---------------------------------------------------------------------------------

    async def read_all(
        self, reads: Sequence[ExtentRead], flow: Flow, uses: "Sequence[Used]"
    ) -> None:
        """Fill buffers from objects with concurrent requests, one for adjacent reads.

        Raises:
            RemoteObjectMissing: An object is gone; its map output is lost.
            RemoteFailed: The store does not answer.
            StorageReadFailed: An object is shorter than when it was written.
        """
        requests = [
            self._fetch(each, some, flow)
            for some in _together(reads)
            if isinstance(each := some[0].extent, RemoteExtent)
        ]
        if len(requests) == 1:
            await requests[0]
        else:
            await run_together(requests)

    async def _fetch(self, extent: RemoteExtent, reads: list[ExtentRead], flow: Flow) -> None:
        """Make one request for adjacent reads of one object."""
        start = min(read.offset for read in reads)
        length = max(read.end for read in reads) - start
        data = await self._range(extent.name, start, length, flow)
        if isinstance(data, RemoteFailure):
            if data.missing:
                raise await self._missing(extent) from data
            raise self.fetch_failure(data, length) from data
        if len(data) != length:
            name = f"{self.place}/{extent.name}"
            raise StorageReadFailed(name, start, length, len(data), "end of object", is_lost=True)
        for read in reads:
            position = read.offset - start
            for buffer in read.buffers:
                buffer[:] = data[position : position + len(buffer)]
                position += len(buffer)

    async def _range(
        self, name: str, start: int, length: int, flow: Flow
    ) -> memoryview | RemoteFailure:
        """Return bytes of an object, or the failure of the request, to be handled by the caller.

        Compiled code must not wait in an exception handler.
        """
        try:
            async with self.reading.turn(flow, length + GAP_BYTES):
                return await self.objects.get_range(name, start, length)
        except RemoteFailure as failure:
            return failure

    async def _missing(self, extent: RemoteExtent) -> StorageError:
        """Check this TaskManager's marker: is one object missing, or the whole store?"""
        try:
            await self.marker.require_same()
            await self.objects.modified(taskmanager_marker(self.taskmanager_id))
        except RemoteFailure as failure:
            return self.fetch_failure(failure, extent.length)
        return RemoteObjectMissing(str(self.place), extent.name, extent)

    async def require_same(self) -> None:
        """Distinguish a missing object from a directory that is not mounted.

        Raises:
            RemoteFailed: The directory is not mounted, or does not answer.
        """
        try:
            await self.marker.require_same()
        except RemoteFailure as failure:
            raise self.fetch_failure(failure, 0) from failure

    async def require_stored(self, name: str, length: int) -> None:
        """Check that an object which was written is where readers find it.

        Raises:
            RemoteFailed: It is not, or the directory does not answer.
        """
        try:
            await self.marker.require_stored(name)
        except RemoteFailure as failure:
            raise self.upload_failure(failure, length) from failure

    def require_healthy(self) -> None:
        """Raise RemoteFailed if the tier is left out after a failure."""
        if not self.healthy:
            raise RemoteFailed(f"using {self.place}", self.reason, self._timeout_seconds)

    # ---- failures --------------------------------------------------------------------------------

    def fetch_failure(self, failure: RemoteFailure, length: int) -> StorageError:
        """Turn a failed read into a typed error, and leave the tier out until it answers."""
        reason = "this TaskManager's marker is missing" if failure.missing else failure.reason
        self.fail(reason)
        what = f"reading {length} bytes from {self.place}"
        return RemoteFailed(what, reason, self._timeout_seconds)

    def upload_failure(self, failure: RemoteFailure, length: int) -> StorageError:
        """Turn a failed upload into a typed error, and leave the tier out until it answers."""
        self.fail(failure.reason)
        what = f"writing {length} bytes to {self.place}"
        if failure.full:
            return RemoteFull(what, failure.reason, self._timeout_seconds)
        return RemoteFailed(what, failure.reason, self._timeout_seconds)

    # ---- deletion --------------------------------------------------------------------------------

    def delete_soon(self, names: Sequence[str]) -> None:
        """Delete objects in the background; the sweep deletes those that remain."""
        for name in names:
            if len(self._deletes) >= MAX_DELETES:
                logger.warning("%s: too many deletions wait; the sweep deletes the rest", self)
                break
            self._deletes[name] = None
        if self._deletes and self._deleting is None and not self._closed:
            try:
                asyncio.get_running_loop()
            except RuntimeError:  # an extent was released after the loop had ended
                return
            self._deleting = start_task(self._delete())

    def keep(self, name: str) -> None:
        """Cancel the queued deletion of an object that is written again."""
        self._deletes.pop(name, None)
        self._under_deletion.pop(name, None)

    async def _delete(self) -> None:
        try:
            await asyncio.sleep(0)  # a release frees many extents in a row
            while self._deletes:
                # Remove names before the request: a name added during it is deleted again.
                batch = dict.fromkeys(list(self._deletes)[:DELETE_BATCH])
                for name in batch:
                    del self._deletes[name]
                self._under_deletion = batch
                try:
                    await self.objects.delete(list(batch))
                except RemoteFailure:
                    self._deletes = batch | self._deletes
                    raise
                finally:
                    self._under_deletion = {}
        except RemoteFailure as failure:
            logger.warning(
                "%s: will delete %d objects later: %s", self, len(self._deletes), failure
            )
        finally:
            self._deleting = None

    @property
    def waiting_deletes(self) -> int:
        """Objects that wait for deletion or are being deleted."""
        return len(self._deletes) + len(self._under_deletion)

    def fail(self, reason: str) -> None:
        """Allocate nothing until the tier recovers, and wake the watch that probes it."""
        super().fail(reason)
        self.failed.set()

    def recover(self) -> None:
        """Use this tier again, and delete the objects that wait for deletion."""
        super().recover()
        self.delete_soon([])

    async def close(self) -> None:
        """Wait briefly for uploads and deletions; later sweeps delete what is left."""
        uploads = self.budget.uploads
        if uploads:
            await asyncio.wait(set(uploads), timeout=CLOSE_SECONDS)
        for upload in list(uploads.values()):
            upload.abort(lambda: None)  # a canceled one would leave its parts in a bucket
        await self._end(set(uploads))
        self._closed = True
        if self._deleting is not None:
            await self._end({self._deleting})

    @staticmethod
    async def _end(tasks: set[asyncio.Task[None]]) -> None:
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    # ---- status ----------------------------------------------------------------------------------

    def whole_bytes(self) -> int | None:
        """Return the quota."""
        return self.capacity_bytes

    def has_room(self, length: int) -> bool:
        """Return whether the quota has room for objects of a length together."""
        capacity = self.capacity_bytes
        return capacity is None or length <= capacity - self._used_bytes

    def largest_free_bytes(self) -> int:
        """Return the longest region that can be stored now, in bytes."""
        most = MAX_PARTS * self._part_bytes
        if self.capacity_bytes is None:
            return most
        return max(0, min(most, self.capacity_bytes - self._used_bytes))

    def status(self) -> TierStatus:
        """Return a snapshot."""
        largest = self.largest_free_bytes() if self.healthy else 0
        capacity, used = self.capacity_bytes, self._used_bytes
        return TierStatus(
            self.kind,
            str(self.place),
            capacity,
            used,
            self.healthy,
            largest if capacity is None else max(0, capacity - used),
            self.reason,
            largest,
            self._extents,
        )


def _together(reads: Sequence[ExtentRead]) -> list[list[ExtentRead]]:
    """Group adjacent reads of one object, in the order of their offsets."""
    joined: list[list[ExtentRead]] = []
    last_end = 0
    for read in sorted(reads, key=lambda each: (id(each.extent), each.offset)):
        last = joined[-1] if joined else None
        is_near = read.offset <= last_end + GAP_BYTES
        if last is not None and last[0].extent is read.extent and is_near:
            last.append(read)
            last_end = max(last_end, read.end)
        else:
            joined.append([read])
            last_end = read.end
    return joined
