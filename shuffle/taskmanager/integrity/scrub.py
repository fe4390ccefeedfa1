"""Verifies stored data at rest, slowly, and drops what is damaged before a reader finds it.

A pass goes through the directories one after the other, and through the regions of each in the
order of its file. A piece is read by a data thread of the directory, when no other call waits for
one, so a reader waits for one piece at most. All pieces together are limited to
``scrub_bytes_per_second``. What the page cache did not have leaves it again.

The pass keeps a window of the next regions: sorting all of them would hold up the event loop. A
region that is stored behind the position of the pass has its turn in the next one.

A disk with a read error is left out, and its pass ends there. If the directory comes back and the
next pass fails at the same region, only the map output of that region is dropped: everything else
may be whole.

The remote tier is left out: reading it costs requests, and its service verifies its objects.
"""

import asyncio
import heapq
import itertools
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from ....transport.errors import code_field
from ....transport.fair_queue import OWN_FLOW
from ....transport.loop import start_task
from ...errors import failure_of
from ..bounds.rate_limit import RateLimit
from ..store.errors import DirectoryHangs, StorageError
from ..store.extent_reader import CHECKED_BYTES
from ..store.output_index import DAMAGED
from ..store.shuffle_store import ShuffleStore
from ..store.stored_outputs import MapOutput, Region
from ..store.tiers.tier import Extent, Tier
from .damage_checks import DamageChecks
from .scrub_status import ScrubStatus

logger = logging.getLogger(__name__)

PASS_SECONDS: Final = 600.0
"""Minimum time from the begin of a pass to the next one, and from the start to the first."""

WINDOW: Final = 1024
"""Regions that a pass knows in advance."""

CHUNK: Final = 1000
"""Map outputs that are looked at in one turn of the event loop."""


class _StoredRegion(NamedTuple):
    """A region, and its extent."""

    output: MapOutput
    region: Region
    extent: Extent


class Scrub:
    """Verifies the data of a store, again and again.

    Args:
        store: Has the data.
        damage: Drops map outputs that are damaged.
        bytes_per_second: Maximum rate; 0: nothing is verified.
    """

    def __init__(self, store: ShuffleStore, damage: DamageChecks, bytes_per_second: int) -> None:
        self._store: Final = store
        self._damage: Final = damage
        self._rate: Final = RateLimit(bytes_per_second) if bytes_per_second else None
        self._task: asyncio.Task[None] | None = None
        self._unread: dict[Tier, Region] = {}
        """The regions at which the last pass of a directory ended because a read failed."""
        self._read_bytes = 0
        self._passes = 0
        self._ended_at: float | None = None

    def start(self) -> None:
        """Begin a pass in ``PASS_SECONDS``, and further ones, until :meth:`close`."""
        if self._rate is not None:
            self._task = start_task(self._run())

    def status(self) -> ScrubStatus:
        """Return the work done so far."""
        ended_at = self._ended_at
        age = None if ended_at is None else asyncio.get_running_loop().time() - ended_at
        return ScrubStatus(self._read_bytes, self._passes, age)

    async def run_once(self) -> bool:
        """Verify all stored data once.

        Returns:
            Whether all directories could be read to their end.

        Cancellation: safe; it waits for the read of a piece.
        """
        tiers: set[Tier] = set()
        async for outputs in self._chunks():
            tiers.update(each.extent.tier for each in _places(outputs))
        self._unread = {tier: each for tier, each in self._unread.items() if tier in tiers}
        results = [await self._scrub(each) for each in tiers]
        if not all(results):
            return False
        self._passes += 1
        self._ended_at = asyncio.get_running_loop().time()
        return True

    async def close(self) -> None:
        """Verify nothing more. Idempotent.

        Cancellation: safe; the pass is cancelled.
        """
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        began_at = loop.time()  # not at once: a start has other work for the disks
        while True:
            await asyncio.sleep(began_at + PASS_SECONDS - loop.time())  # the interval of passes
            began_at = loop.time()
            try:
                await self.run_once()
            except Exception as error:  # noqa: BLE001 - a bug must not end the scrub
                failure_of(error, "verifying stored data")

    async def _chunks(self) -> AsyncIterator[list[MapOutput]]:
        """Yield all map outputs, some in each turn of the event loop."""
        for key in [each.key for each in self._store.shuffles()]:
            outputs = list(self._store.map_outputs(key).values())
            for first in range(0, len(outputs), CHUNK):
                yield outputs[first : first + CHUNK]
                await asyncio.sleep(0)  # others get their turn

    async def _scrub(self, tier: Tier) -> bool:
        """Verify the regions of a directory in their order; return whether it can be read."""
        position = 0
        while window := await self._window(tier, position):
            for place in window:
                if not await self._verify(place):
                    return False
            position = window[-1].extent.offset + 1
        return True

    async def _window(self, tier: Tier, position: int) -> list[_StoredRegion]:
        """Return the next regions of a directory from a position on, in their order."""
        window: list[_StoredRegion] = []
        async for outputs in self._chunks():
            found = (
                each
                for each in _places(outputs)
                if each.extent.tier is tier and each.extent.offset >= position
            )
            window = heapq.nsmallest(WINDOW, itertools.chain(window, found), key=_offset)
        return window

    async def _verify(self, place: _StoredRegion) -> bool:
        """Verify a region; return whether its directory can be read."""
        output, region, extent = place
        was_healthy, value = extent.tier.healthy, 0
        try:
            for offset in range(0, extent.length, CHECKED_BYTES):
                length = min(CHECKED_BYTES, extent.length - offset)
                if self._rate is not None:
                    await self._rate.take(length)
                if not self._is_here(output):
                    return True  # released meanwhile
                value = await self._checksum(extent, offset, length, value)
                self._read_bytes += length
        except DirectoryHangs:
            return False
        except (OSError, StorageError) as error:
            fields = output.key.log_fields | {"map_attempt": output.map_attempt_id}
            fields |= code_field(error)
            logger.warning("the scrub cannot read %s: %s", extent.tier, error, extra=fields)
            return await self._cannot_read(place, was_healthy=was_healthy)
        if self._unread.get(extent.tier) is region:
            del self._unread[extent.tier]
        if value != region.crc32c:
            await self._damage.verify(output, [region])
        return True

    def _is_here(self, output: MapOutput) -> bool:
        return self._store.lookup(output.key, output.map_attempt_id) is output

    async def _cannot_read(self, place: _StoredRegion, *, was_healthy: bool) -> bool:
        """Decide about a region after a failed read; return whether its directory can be read."""
        output, region, extent = place
        tier = extent.tier
        failed_before = self._unread.pop(tier, None) is region
        if not self._is_here(output):  # released or dropped during the read
            return True
        if failed_before and was_healthy:  # the directory came back without these bytes
            message = "map output %d of %s cannot be read again, and is dropped"
            fields = output.key.log_fields | {"map_attempt": output.map_attempt_id}
            logger.error(message, output.map_attempt_id, output.key, extra=fields)
            self._damage.dropped += 1
            self._store.drop(output, DAMAGED)
            return True
        if await self._damage.verify(output, [region]) or tier.healthy:  # reads as a reader does
            return True
        self._unread[tier] = region
        return False

    async def _checksum(self, extent: Extent, offset: int, length: int, value: int) -> int:
        """Continue a checksum over a piece of an extent, in a thread of its directory."""
        read = partial(checksum_of, extent.tier, extent.offset + offset, length, value)
        extent.retain()  # the map output may be released meanwhile
        try:
            return await extent.tier.threads.run_for(OWN_FLOW, length, read, [extent], behind=True)
        finally:
            extent.release()


def checksum_of(tier: Tier, offset: int, length: int, value: int) -> int:
    """Continue a checksum over stored bytes. Runs in a thread."""
    return tier.checksum(offset, length, value)


def _places(outputs: Sequence[MapOutput]) -> Iterator[_StoredRegion]:
    """Yield the regions of map outputs that have bytes in a directory."""
    for output in outputs:
        for region in output.regions:
            extent = region.extent
            if extent is not None and extent.tier.has_journal:
                yield _StoredRegion(output, region, extent)


def _offset(place: _StoredRegion) -> int:
    return place.extent.offset
