"""Uploads regions to the remote tier, in order and in parts, within a memory budget."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from time import monotonic
from typing import Any, Final

from .....transport.loop import start_task
from ..errors import StorageError
from ..files.io_threads import WaitingCall
from .remote_failure import RemoteFailure
from .remote_marker import CHECK_REQUESTS
from .remote_objects import RemoteObjects

logger = logging.getLogger(__name__)

MAX_PARTS: Final = 10_000
"""Maximum number of parts of an object in S3."""

PARTS_IN_MEMORY: Final = 2
"""Parts of one upload: one is filled while the previous one is sent."""


class UploadBudget:
    """Memory for parts, allocated first come, first served.

    Args:
        limit_bytes: Maximum bytes allocated at a time; an upload that needs more gets all of it.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None], WaitingCall]] = deque()
        self.used_bytes = 0
        self.uploads: dict[asyncio.Task[None], Upload] = {}
        """Uploads under way."""

    @property
    def waiting(self) -> int:
        """Uploads that wait for memory."""
        return len(self._waiting)

    def calls(self) -> list[WaitingCall]:
        """Return the uploads that wait for memory, for status."""
        return [call for _, _, call in self._waiting]

    async def take(self, wanted_bytes: int, application_id: str) -> int:
        """Wait for memory; return the number of bytes to release later.

        Cancellation: safe, nothing is allocated.
        """
        wanted_bytes = min(wanted_bytes, self._limit_bytes)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        call = WaitingCall(application_id, monotonic(), is_running=False)
        self._waiting.append((wanted_bytes, turn, call))
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(wanted_bytes)
            else:
                self._waiting = deque(each for each in self._waiting if each[1] is not turn)
                self._serve()
            raise
        return wanted_bytes

    def give_back(self, taken_bytes: int) -> None:
        """Release memory for other uploads."""
        self.used_bytes -= taken_bytes
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self.used_bytes + self._waiting[0][0] <= self._limit_bytes:
            wanted_bytes, turn, _ = self._waiting.popleft()
            if not turn.done():
                self.used_bytes += wanted_bytes
                turn.set_result(None)


class UploadAborted(StorageError):
    """The region was aborted; the upload removes its parts."""

    def __init__(self) -> None:
        super().__init__("the region was aborted during its upload")


class Upload:
    """The upload of one region.

    Args:
        objects: The remote store.
        name: Name of the object.
        length: Bytes of the region, at least 1.
        application_id: The application whose region it is.
        part_bytes: Size of a part.
        budget: Memory for parts.
        failed: Handles a failure and returns the error for it.
        require_stored: Checks that the object with this name is where readers find it.
    """

    def __init__(  # noqa: PLR0913 - all describe one upload
        self,
        objects: RemoteObjects,
        name: str,
        length: int,
        application_id: str,
        part_bytes: int,
        budget: UploadBudget,
        failed: Callable[[RemoteFailure, int], StorageError],
        require_stored: Callable[[str], Awaitable[None]],
    ) -> None:
        self.name = name
        self.length = length
        self._application_id = application_id
        self._objects = objects
        self._part_bytes = max(part_bytes, -(-length // MAX_PARTS))
        self._budget = budget
        self._failed = failed
        self._require_stored = require_stored
        self._position = 0
        self._turns: dict[int, asyncio.Future[None]] = {}
        self._part: bytearray | None = None
        self._filled = 0
        self._beginning = asyncio.Lock()
        self._taken_bytes = 0
        self._parts: asyncio.Queue[bytearray | None] = asyncio.Queue(1)
        self._task: asyncio.Task[None] | None = None
        self._failure: StorageError | None = None
        self._aborted = False
        self._stored = False

    @property
    def is_stored(self) -> bool:
        """Whether the object is stored completely."""
        return self._stored

    async def write(self, offset: int, buffers: list[memoryview]) -> None:
        """Copy bytes into parts; wait for memory, and for the bytes before these.

        If the region fits into one part, its bytes may come in any order.

        Args:
            offset: Position of the first byte in the region.
            buffers: Copied; they can be reused when this returns.

        Raises:
            StorageError: The upload has failed.

        Cancellation: the region can only be aborted.
        """
        buffers = [buffer for buffer in buffers if len(buffer)]
        if not buffers:
            return
        if self.length <= self._part_bytes:
            await self._write_anywhere(offset, buffers)
            return
        while offset != self._position and self._failure is None and not self._aborted:
            turn = self._turns.setdefault(offset, asyncio.get_running_loop().create_future())
            await asyncio.shield(turn)
        for buffer in buffers:
            await self._take(buffer)
        turn_of_next = self._turns.pop(self._position, None)
        if turn_of_next is not None and not turn_of_next.done():
            turn_of_next.set_result(None)

    async def flush(self) -> None:
        """Wait until the object is stored. Call this after all bytes were written.

        Raises:
            StorageError: The upload failed or was aborted.

        Cancellation: safe, the upload continues.
        """
        self._check()
        if self._task is not None:
            # The parts in memory, the request that ends the upload, and the check.
            await self._wait({self._task}, PARTS_IN_MEMORY + 1 + CHECK_REQUESTS)
        self._check()
        if not self._stored:
            raise RuntimeError(f"{self._position} of {self.length} bytes of {self.name} came")

    def abort(self, ended: Callable[[], None]) -> None:
        """Abort the upload.

        Args:
            ended: Called when nothing more is sent, at once or later.
        """
        self._aborted = True
        self._wake()
        self._part = None
        task = self._task
        if task is None or task.done():
            self._give_back()
            ended()
            return
        if self._parts.empty():
            self._parts.put_nowait(None)
        task.add_done_callback(lambda _: ended())

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._aborted:
            raise UploadAborted

    async def _write_anywhere(self, offset: int, buffers: list[memoryview]) -> None:
        """Fill the only part, in any order, and send it when it is full."""
        async with self._beginning:
            part = self._part or await self._begin_part()
        for buffer in buffers:
            part[offset : offset + len(buffer)] = buffer
            offset += len(buffer)
            self._position += len(buffer)
        if self._position == self.length:
            self._part = None
            await self._send(part)

    async def _take(self, buffer: memoryview) -> None:
        start = 0
        while start < len(buffer):
            self._check()
            part = self._part
            if part is None:
                part = await self._begin_part()
            count = min(len(part) - self._filled, len(buffer) - start)
            part[self._filled : self._filled + count] = buffer[start : start + count]
            self._filled += count
            self._position += count
            start += count
            if self._filled == len(part):
                self._part = None
                await self._send(part)

    async def _begin_part(self) -> bytearray:
        if not self._taken_bytes:
            needed = min(self.length, PARTS_IN_MEMORY * self._part_bytes)
            self._taken_bytes = await self._budget.take(needed, self._application_id)
            if self._aborted:
                self._give_back()
        self._check()
        self._filled = 0
        self._part = bytearray(min(self._part_bytes, self.length - self._position))
        return self._part

    async def _send(self, part: bytearray) -> None:
        if self.length <= self._part_bytes:
            self._begin(self._objects.put(self.name, part))
            return
        task = self._task
        if task is None:
            put = self._objects.put_parts(
                self.name, self._each_part(), self._part_bytes, PARTS_IN_MEMORY - 1
            )
            task = self._begin(put)
        placed = start_task(self._parts.put(part))
        # Stop waiting if the upload ends early.
        try:
            await self._wait({placed, task}, 1)
        finally:
            placed.cancel()
        self._check()

    async def _wait(self, tasks: set[asyncio.Task[Any]], requests: int) -> None:
        """Wait for the first task; fail after the deadlines of so many ``requests``.

        ``obstore`` has deadlines for requests, but a hung file system ignores them.
        """
        seconds = requests * self._objects.deadline_seconds
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not done and self._failure is None:
            stuck = RemoteFailure(f"no part was taken within {seconds:g} s")
            self._failure = self._failed(stuck, self.length)

    def _begin(self, put: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._task = start_task(self._end(put))
        self._budget.uploads[self._task] = self
        self._task.add_done_callback(self._budget.uploads.pop)
        return self._task

    async def _each_part(self) -> AsyncIterator[bytearray]:
        """Yield the parts to ``obstore``; if this raises, it removes the sent parts."""
        sent = 0
        while sent < self.length:
            part = await self._parts.get()
            if part is None or self._aborted:
                raise UploadAborted
            sent += len(part)
            yield part

    async def _end(self, put: Coroutine[Any, Any, None]) -> None:
        try:
            await put
            if not self._aborted:
                await self._require_stored(self.name)
            self._stored = True
            self._objects.written_bytes += self.length
        except UploadAborted:
            pass
        except RemoteFailure as failure:
            if not self._aborted:
                self._failure = self._failed(failure, self.length)
        finally:
            self._give_back()
            self._wake()

    def _give_back(self) -> None:
        taken, self._taken_bytes = self._taken_bytes, 0
        if taken:
            self._budget.give_back(taken)

    def _wake(self) -> None:
        turns, self._turns = self._turns, {}
        for turn in turns.values():
            if not turn.done():
                turn.set_result(None)
