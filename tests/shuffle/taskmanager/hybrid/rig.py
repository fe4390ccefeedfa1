"""Tiers in memory for hybrid partitions: writes that a test holds up, or makes fail."""

from __future__ import annotations

import asyncio
from array import array
from typing import TYPE_CHECKING

from sluice.shuffle.taskmanager.bounds.accounts import Accounts
from sluice.shuffle.taskmanager.store.stored_outputs import Region
from sluice.shuffle.taskmanager.store.tiers.tier import Referenced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluice.shuffle.names import ShuffleKey
    from sluice.shuffle.partition.view import PipelinedView


class FakeExtent(Referenced):
    in_memory = True

    def __init__(self, tiers: FakeTiers, length: int) -> None:
        super().__init__()
        self.view = memoryview(bytearray(length))
        self.length = length
        self._tiers = tiers
        tiers.extents.add(self)

    def _give_back(self) -> None:
        self._tiers.extents.remove(self)


class FakeWriter:
    def __init__(self, tiers: FakeTiers, length: int, tier: str) -> None:
        self.tier = tier
        self._tiers = tiers
        self._extent = FakeExtent(tiers, length)

    async def write(self, offset: int, buffers: Sequence[memoryview], uses: object = ()) -> None:
        """Take the bytes at the end of the write, so that a buffer that changes before is seen."""
        await self._tiers.may_write.wait()
        if self._tiers.failure is not None:
            raise self._tiers.failure
        if self.tier in self._tiers.failures:
            raise self._tiers.failures[self.tier]
        content = b"".join(buffers)
        self._extent.view[offset : offset + len(content)] = content
        self._tiers.written_bytes += len(content)

    async def flush(self) -> None:
        pass

    def finish(self, crc32c: int) -> Region:
        return Region(self._extent, 0, array("I", [0, self._extent.length]), crc32c)  # type: ignore[arg-type]

    def abort(self) -> None:
        self._extent.release()


class FakeTiers:
    """A ``ShuffleStore`` as far as a spiller uses one."""

    def __init__(self) -> None:
        self.accounts = Accounts()
        self.extents: set[FakeExtent] = set()
        self.written_bytes = 0
        self.regions = 0
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.failure: Exception | None = None
        self.names = ["a"]
        """The tiers, which get a region in turn."""
        self.failures: dict[str, Exception] = {}
        """Why writes to one of them fail."""

    def begin_region(
        self, key: ShuffleKey, first: int, lengths: Sequence[int], connection: int = 0
    ) -> FakeWriter:
        tier = self.names[self.regions % len(self.names)]
        self.regions += 1
        return FakeWriter(self, sum(lengths), tier)


def read(view: PipelinedView) -> bytes | None:
    """Take a buffer or event and give it back; None if there is none."""
    buffer = view.next_buffer(1000)
    if buffer is None:
        return None
    content = bytes(buffer.payload)
    if buffer.release is not None:
        buffer.release()
    return content
