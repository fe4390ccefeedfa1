"""Sending the regions of a stored partition to a TaskManager.

::

    state       write_region        finish
    IDLE        BeginRegion, DATA   FINISHING
    DATA        –                   –           RegionData as there is credit, then IDLE
    FINISHING   –                   –           PartitionFinished leads to DONE
    FAILED      error               error       from any state: an error, a lost connection, abort
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from ...protocol.errors import SluiceError
from ...protocol.schema import (
    EVERY_SUBPARTITION,
    AbortPartition,
    BeginRegion,
    FinishPartition,
    RegionData,
)
from ...transport.errors import DeadlineExceeded
from ..errors import PartitionReleased
from ..partition.region_builder import OutgoingRegion
from .producer_leg import ProducerLeg, wake


class RegionSender:
    """Sends the regions of one partition to a TaskManager, which stores them. A ``RegionSink``.

    Payloads are joined from the parts of a region, whose memory is free as soon as they are joined.

    Args:
        leg: The producer connection.
        number: Number of the partition on that connection.
    """

    takes_broadcast: Final = True

    def __init__(self, leg: ProducerLeg, number: int) -> None:
        self.number: Final = number
        self._leg = leg
        self._failure: SluiceError | None = None
        self._payload_bytes = leg.connection.max_payload_bytes
        self._credit = 0
        self._payloads: Iterator[bytes] = iter(())
        self._next: bytes | None = None
        self._offset = 0
        self._written: asyncio.Future[None] | None = None
        self._finished: asyncio.Future[None] | None = None
        self._opened: asyncio.Future[None] | None = None
        self._committed = False

    async def write_region(self, region: OutgoingRegion) -> None:
        """Send a region; returns when the connection has taken all of it.

        Raises:
            SluiceError: The region could not be stored.
            DeadlineExceeded: No byte of it was taken for as long as an answer may take.

        Cancellation: abort the partition then.
        """
        self._require_alive()
        total_bytes = sum(region.lengths)
        first = EVERY_SUBPARTITION if region.is_broadcast else 0
        begin = BeginRegion(self.number, region.number, first, list(region.lengths), region.crc32c)
        loop = asyncio.get_running_loop()
        self._credit = 0
        self._offset = 0
        if not total_bytes:
            self._leg.send(begin)
            return
        self._opened = loop.create_future()
        self._written = loop.create_future()
        self._leg.send(begin)
        try:
            await self._leg.answer(self._opened, "BeginRegion")
            self._payloads = gathered(region.parts, self._payload_bytes)
            self._next = next(self._payloads, None)
            self._send_available()
            await self._all_sent(self._written)
        finally:
            # No part may be read from here on: their memory is the writer's again.
            self._payloads, self._next = iter(()), None

    async def finish(self, total_bytes: int, regions: int) -> None:
        """Commit the partition.

        Raises:
            SluiceError: The partition is not complete and never will be.

        Cancellation: abort the partition then.
        """
        self._require_alive()
        self._finished = asyncio.get_running_loop().create_future()
        self._leg.send(FinishPartition(self.number, total_bytes, regions))
        await self._leg.answer(self._finished, "FinishPartition")
        self._leg.forget(self.number)

    def abort(self) -> None:
        """Give up all regions. Idempotent, and without effect on a committed partition."""
        if self._failure is None and not self._committed:
            self._leg.send(AbortPartition(self.number))
            self._leg.forget(self.number)
            self.failed(PartitionReleased("Partition was given up", value=self.number))

    # ---- called by the leg ----------------------------------------------------------------------

    def credit_granted(self, credit: int) -> None:
        """Send more of the region, for the TaskManager can take it."""
        self._credit += credit
        self._send_available()

    def send(self) -> bool:
        """Send one payload; return whether there may be more to send now."""
        payload = self._next
        if payload is None or not self._credit:
            return False
        self._credit -= 1
        self._leg.send(RegionData(self.number, self._offset), payload)
        self._offset += len(payload)
        self._next = next(self._payloads, None)
        if self._next is not None:
            return self._credit > 0
        wake(self._written)
        return False

    def region_opened(self, payload_bytes: int) -> None:
        """Take the largest size of payloads: the TaskManager has made room for the region."""
        self._payload_bytes = payload_bytes
        wake(self._opened)

    def finished(self) -> None:
        """Record that the partition is committed."""
        self._committed = True
        wake(self._finished)

    def failed(self, error: SluiceError) -> None:
        """Fail: the TaskManager gave the partition up, or is gone."""
        if self._failure is not None or self._committed:
            return
        self._failure = error
        for waiting in (self._opened, self._written, self._finished):
            wake(waiting, error)

    def task_event_received(self, event_type: int, payload: bytes) -> None:
        """Ignore it: a stored partition has no readers while it is written."""

    # ---- inside ---------------------------------------------------------------------------------

    async def _all_sent(self, written: asyncio.Future[None]) -> None:
        while True:
            offset = self._offset
            try:
                await self._leg.answer(asyncio.shield(written), "RegionData with credit")
            except DeadlineExceeded:
                if self._offset == offset:
                    raise
            else:
                return

    def _send_available(self) -> None:
        if self._credit and self._next is not None:
            self._leg.queue(self)

    def _require_alive(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)  # its frames would pile up


def gathered(parts: Iterable[bytes | memoryview], size_bytes: int) -> Iterator[bytes]:
    """Cut and join parts into payloads of ``size_bytes``, the last one shorter."""
    waiting: deque[bytes | memoryview] = deque()
    have = 0
    for part in parts:
        view = memoryview(part)
        while have + len(view) >= size_bytes:
            take = size_bytes - have
            waiting.append(view[:take])
            yield b"".join(waiting)
            waiting.clear()
            have = 0
            view = view[take:]
        if len(view):
            waiting.append(view)
            have += len(view)
    if waiting:
        yield b"".join(waiting)
