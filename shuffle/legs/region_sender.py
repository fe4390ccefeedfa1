"""Sends the regions of a stored partition to a TaskManager, as its credit allows.

::

    state       a region            finish
    IDLE        BeginRegion, OPENED FINISHING
    OPENED      –                   –           RegionOpened leads to DATA
    DATA        –                   –           RegionData as there is credit, then IDLE
    FINISHING   –                   –           PartitionFinished leads to DONE
    FAILED      error               error       from any state: an error, a lost connection, abort
"""

import abc
import asyncio
from collections.abc import Callable
from typing import Final

from ...protocol.errors import SluiceError, UnexpectedMessage
from ...protocol.schema import AbortPartition, BeginRegion, FinishPartition, RegionData
from ...transport.errors import DeadlineExceeded
from ..errors import PartitionReleased
from .producer_leg import ProducerLeg, wake

Payload = tuple[bytes | memoryview, Callable[[], None] | None]
"""Bytes to send, and a function to call when they are sent, or None."""


class SilentPartition:
    """A ``LegPartition`` that ignores everything and sends nothing."""

    def credit_granted(self, credit: int) -> None:
        """Ignore the credit."""

    def send(self) -> bool:
        """Send nothing."""
        return False

    def finished(self) -> None:
        """Ignore the end."""

    def consumed(self) -> None:
        """Ignore it: stored partitions are read any number of times."""

    def failed(self, error: SluiceError) -> None:
        """Ignore the failure."""

    def region_opened(self, payload_bytes: int) -> None:
        """Ignore the region."""

    def task_event_received(self, event_type: int, payload: bytes) -> None:
        """Ignore the event: a stored partition has no readers while it is written."""


class RegionSender(SilentPartition, abc.ABC):
    """Sends the regions of one partition, whose payloads a subclass supplies.

    Args:
        leg: The producer connection.
        number: Number of the partition on that connection.
    """

    def __init__(self, leg: ProducerLeg, number: int) -> None:
        self.number: Final = number
        self._leg: Final = leg
        self._payload_bytes = leg.connection.max_payload_bytes
        self._credit = 0
        self._offset = 0
        """Bytes of the region sent so far."""
        self._length = 0
        """Length of the region in bytes."""
        self._failure: SluiceError | None = None
        self._committed = False
        self._opened: asyncio.Future[None] | None = None
        self._written: asyncio.Future[None] | None = None
        self._finished: asyncio.Future[None] | None = None

    async def finish(self, total_bytes: int, regions: int) -> None:
        """Commit the partition.

        Raises:
            SluiceError: The partition cannot be committed.

        Cancellation: call :meth:`abort` afterwards.
        """
        self._require_alive()
        self._finished = asyncio.get_running_loop().create_future()
        self._leg.send(FinishPartition(self.number, total_bytes, regions))
        await self._leg.answer(self._finished, "FinishPartition")
        self._leg.forget(self.number)

    def abort(self) -> None:
        """Abort the partition, unless it is committed. Idempotent."""
        if self._failure is None and not self._committed:
            self._leg.send(AbortPartition(self.number))
            self._leg.forget(self.number)
            self.failed(PartitionReleased("Partition was aborted", value=self.number))

    # ---- called by the leg ----------------------------------------------------------------------

    def credit_granted(self, credit: int) -> None:
        """Send more of the region, because the TaskManager can take it."""
        self._credit += credit
        self._send_available()

    def send(self) -> bool:
        """Send one payload; return whether there may be more to send now."""
        if not self._credit or self._offset >= self._length or self._failure is not None:
            return False
        found = self._next_payload()
        if found is None:
            return False
        payload, release = found
        self._credit -= 1
        offset = self._offset
        self._offset += len(payload)
        self._leg.send(RegionData(self.number, offset), payload, release)
        if self._offset == self._length:
            wake(self._written)
            return False
        return self._credit > 0

    def region_opened(self, payload_bytes: int) -> None:
        """Send payloads of at most this size: the TaskManager has room for the region."""
        self._payload_bytes = payload_bytes
        wake(self._opened)

    def finished(self) -> None:
        """Record that the partition is committed.

        Raises:
            UnexpectedMessage: Its end was not sent. The connection fails, and this partition.
        """
        if self._finished is None:
            raise UnexpectedMessage("PartitionFinished before FinishPartition", value=self.number)
        self._committed = True
        wake(self._finished)

    def failed(self, error: SluiceError) -> None:
        """Fail: the TaskManager aborted the partition, or the connection is lost."""
        if self._failure is not None or self._committed:
            return
        self._failure = error
        for waiting in (self._opened, self._written, self._finished):
            wake(waiting, error)

    # ---- for subclasses -------------------------------------------------------------------------

    @abc.abstractmethod
    def _next_payload(self) -> Payload | None:
        """Return the next payload of the region, or None if there is none now."""

    async def _begin(self, begin: BeginRegion, length_bytes: int) -> asyncio.Future[None]:
        """Announce a region; return when the TaskManager has made room for it.

        Returns:
            A future for :meth:`_progress` that completes when all payloads are sent.

        Raises:
            SluiceError: The region cannot be stored, or the connection is lost.
        """
        self._require_alive()
        loop = asyncio.get_running_loop()
        self._credit = self._offset = 0
        self._length = length_bytes
        self._written = written = loop.create_future()
        self._leg.send(begin)
        if length_bytes:
            self._opened = loop.create_future()
            await self._leg.answer(self._opened, "BeginRegion")
        else:
            written.set_result(None)
        return written

    async def _progress(self, sent: asyncio.Future[None]) -> None:
        """Wait for a future while the TaskManager takes bytes of the region.

        Raises:
            SluiceError: The region cannot be stored, or the connection is lost.
            DeadlineExceeded: No byte was taken within the deadline for an answer.
        """
        while True:
            offset = self._offset
            try:
                await self._leg.answer(asyncio.shield(sent), "RegionData with credit")
            except DeadlineExceeded:
                if self._offset == offset:
                    raise
            else:
                return

    def _send_available(self) -> None:
        if self._credit and self._offset < self._length:
            self._leg.queue(self)

    def _require_alive(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)  # its frames would pile up
