"""A simulated bucket, the remote tier of all TaskManagers.

A request takes effect when it arrives, even if its process was killed or canceled it before. Its
answer may be lost.
"""

from __future__ import annotations

import asyncio
import datetime
import random
from collections import Counter
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from sluice.shuffle.names import MapAttemptKey
from sluice.shuffle.taskmanager.store.objects.remote_failure import RemoteFailure
from sluice.shuffle.taskmanager.store.objects.remote_names import (
    APPLICATIONS,
    TASKMANAGERS,
    manifest_name,
)
from sluice.shuffle.taskmanager.store.objects.remote_objects import RemoteObject
from sluice.shuffle.taskmanager.store.remote.remote_manifest import unpack_manifest
from tests.simulation.loop import PROCESS, WALL_CLOCK
from tests.simulation.plan import BUCKET_KINDS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence

    from tests.simulation.loop import SimulatedLoop
    from tests.simulation.oracle import Output

T = TypeVar("T")

DOWN, SLOW, MUTE = BUCKET_KINDS
"""Faults: no request arrives; requests and answers are slow; half of the answers are lost, often
several to one TaskManager in a row."""

_CHANGE_RATE: Final = 0.25
"""Part of the answers of a mute bucket before which it begins, or ceases, to lose answers."""

PAGE: Final = 3
"""Objects in a page of a listing: S3 has 1,000, and a simulation fewer objects."""

_TRAVEL_SECONDS: Final = 0.001, 0.03
_SLOW_SECONDS: Final = 0.2, 4.0


class _Stored(NamedTuple):
    data: bytes
    modified: datetime.datetime


class Bucket:
    """The objects, and the faults that act.

    Args:
        loop: The loop.
        seed: Decides delays and lost answers.
    """

    def __init__(self, loop: SimulatedLoop, seed: int) -> None:
        self._loop = loop
        self._random = random.Random(f"bucket {seed}")
        self.objects: dict[str, _Stored] = {}
        self.requests = 0
        """Requests that arrived."""
        self.faults: Counter[str] = Counter()
        """Faults that act now, by kind."""
        self._losing: dict[str, bool] = {}
        """Whether answers to a process are lost while the bucket is mute."""
        self.changed: Callable[[Iterable[str]], None] = lambda names: None
        """Called with the names of objects that were stored or deleted."""

    def has(self, output: Output) -> bool:
        """Return whether a map output is complete here, with the bytes of this attempt."""
        manifest = self.objects.get(manifest_name(MapAttemptKey(output.key, output.map_attempt_id)))
        if manifest is None:
            return False
        regions = unpack_manifest(manifest.data).regions
        return [each.crc32c for each in regions] == output.checksums and all(
            not each.name or each.name in self.objects for each in regions
        )

    def is_incomplete(self, attempt: MapAttemptKey) -> bool:
        """Return whether there is a manifest of a map output that names a missing object."""
        manifest = self.objects.get(manifest_name(attempt))
        return manifest is not None and any(
            each.name and each.name not in self.objects
            for each in unpack_manifest(manifest.data).regions
        )

    def lacks(self, output: Output) -> bool:
        """Return whether a map output should be here, and is not.

        Bytes of an earlier attempt of its name may be in the way.
        """
        return output.to_remote and not output.earlier and not self.has(output)

    def leftovers(self) -> list[str]:
        """Return what is stored, markers not included."""
        markers = APPLICATIONS, TASKMANAGERS
        return [name for name in self.objects if name.partition("/")[0] not in markers]

    def put(self, name: str, data: bytes, *, new: bool = False) -> None:
        """Store an object."""
        if new and name in self.objects:
            raise RemoteFailure("it exists already", exists=True)
        now = datetime.datetime.fromtimestamp(WALL_CLOCK + self._loop.time(), datetime.UTC)
        self.objects[name] = _Stored(data, now)
        self.changed([name])

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, and ignore missing ones."""
        for name in names:
            self.objects.pop(name, None)
        self.changed(names)

    def get(self, name: str) -> _Stored:
        """Return an object."""
        if name not in self.objects:
            raise RemoteFailure("it does not exist", missing=True)
        return self.objects[name]

    async def request(self, work: Callable[[], T], timeout_seconds: float) -> T:
        """Send a request to the bucket and wait for the answer.

        Raises:
            RemoteFailure: It failed, or its answer does not come in time.
        """
        answer: asyncio.Future[T] = self._loop.create_future()
        process = str(PROCESS.get())

        def arrive() -> None:
            if self.faults[DOWN]:
                return
            self.requests += 1
            failure = result = None
            try:
                result = work()
            except RemoteFailure as error:
                failure = error
            if not self._loses_answer(process):
                self._later(lambda: _settle(answer, result, failure))

        self._later(arrive)
        try:
            async with asyncio.timeout(timeout_seconds):
                return await answer
        except TimeoutError:
            raise RemoteFailure("no answer in time") from None

    def _loses_answer(self, process: str) -> bool:
        if not self.faults[MUTE]:
            return False
        changes = self._random.random() < _CHANGE_RATE
        loses = self._losing[process] = self._losing.get(process, False) is not changes
        return loses

    def _later(self, callback: Callable[[], None]) -> None:
        """Call after a delay, outside of all processes: a kill does not cancel it."""
        seconds = self._random.uniform(*(_SLOW_SECONDS if self.faults[SLOW] else _TRAVEL_SECONDS))
        self._loop.call_later(seconds, callback, context=Context())


class BucketObjects:
    """Stands for ``RemoteObjects``: the bucket as one TaskManager sees it.

    Args:
        bucket: The bucket.
        url: Its URL.
        timeout_seconds: Deadline of a request.
    """

    is_directory = False

    def __init__(self, bucket: Bucket, url: str, timeout_seconds: float) -> None:
        self._bucket = bucket
        self.url = url
        self.deadline_seconds = timeout_seconds
        self.requests = self.errors = self.read_bytes = self.written_bytes = 0

    async def _request(self, work: Callable[[], T]) -> T:
        self.requests += 1
        try:
            return await self._bucket.request(work, self.deadline_seconds)
        except RemoteFailure:
            self.errors += 1
            raise

    async def put(self, name: str, data: bytes | bytearray, *, new: bool = False) -> None:
        """Store an object."""
        copy = bytes(data)
        await self._request(lambda: self._bucket.put(name, copy, new=new))

    async def put_parts(
        self, name: str, parts: AsyncIterator[bytearray], part_bytes: int, parallel: int
    ) -> None:
        """Store an object part by part."""
        await self.put(name, b"".join([bytes(part) async for part in parts]))

    async def get_range(self, name: str, start: int, length: int) -> memoryview:
        """Read a range of an object."""
        stored = await self._request(lambda: self._bucket.get(name))
        data = memoryview(stored.data)[start : start + length]
        self.read_bytes += len(data)
        return data

    async def get(self, name: str) -> bytes:
        """Read an object."""
        return (await self._request(lambda: self._bucket.get(name))).data

    async def copy(self, name: str, to: str) -> None:
        """Copy an object."""
        await self._request(lambda: self._bucket.put(to, self._bucket.get(name).data))

    async def modified(self, name: str) -> datetime.datetime:
        """Return when an object was written."""
        return (await self._request(lambda: self._bucket.get(name))).modified

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects, and ignore missing ones."""
        await self._request(lambda: self._bucket.delete(names))

    async def listed(self, prefix: str) -> AsyncGenerator[RemoteObject]:
        """List objects page by page, in the order of their names."""
        last = ""
        while True:

            def page(after: str = last) -> list[RemoteObject]:
                found = [
                    name
                    for name in sorted(self._bucket.objects)
                    if name > after and name.startswith(prefix + "/")
                ]
                return [
                    RemoteObject(name, len(stored.data), stored.modified)
                    for name, stored in ((each, self._bucket.get(each)) for each in found[:PAGE])
                ]

            found = await self._request(page)
            for each in found:
                yield each
            if len(found) < PAGE:
                return
            last = found[-1].name

    async def parts_below(self, prefix: str) -> list[str]:
        """Return the distinct next name parts below a prefix."""
        below = prefix + "/"

        def parts() -> list[str]:
            names = [each for each in self._bucket.objects if each.startswith(below)]
            return sorted({each.removeprefix(below).split("/")[0] for each in names})

        return await self._request(parts)

    async def remove_unfinished(self, *_: Any, **__: Any) -> int:
        """Remove nothing: a bucket shows no incomplete object."""
        return 0


def _settle(answer: asyncio.Future[Any], result: object, failure: RemoteFailure | None) -> None:
    if answer.done():
        return
    if failure is None:
        answer.set_result(result)
    else:
        answer.set_exception(failure)
