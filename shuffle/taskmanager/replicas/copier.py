"""Writing committed map outputs to another TaskManager, over one connection.

::

    this side                                   the other one
    OpenPartition, CopyOf, BeginRegion   ──▶
                                         ◀──    RegionOpened, AddCredit, or DUPLICATE_MAP_OUTPUT
    RegionData as there is credit        ──▶
    BeginRegion ...                      ──▶
    FinishPartition                      ──▶
                                         ◀──    PartitionFinished

The bytes of the memory tier are sent from its mapping, without a copy. Those of the disks are read
a few at a time, from the page cache if they are there.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Final

from ....protocol.errors import ErrorCode, SluiceError
from ....protocol.schema import (
    AbortPartition,
    BeginRegion,
    CopyOf,
    FinishPartition,
    OpenPartition,
    RegionData,
)
from ....transport.errors import DeadlineExceeded
from ...client.producer_leg import ProducerLeg, wake
from ...errors import PartitionReleased
from ..store.files.fair_queue import Flow
from ..store.shuffle_store import ShuffleStore
from ..store.stored_outputs import MapOutput, Region
from ..store.tiers.tier import Extent, ExtentRead

READ_BYTES: Final = 256 * 1024
"""About how many bytes of a disk are read at a time; as many again may wait to be sent."""

Pace = Callable[[int], Awaitable[None]]
"""Waits until a number of bytes may be sent."""


async def copy_output(
    leg: ProducerLeg,
    store: ShuffleStore,
    output: MapOutput,
    copy_of: CopyOf,
    pace: Pace | None = None,
) -> bool:
    """Write a committed map output to another TaskManager.

    Args:
        leg: The connection, in the role of a copier.
        store: Has the map output.
        output: The map output, which the caller keeps.
        copy_of: What to say of it; its number is replaced.
        pace: Called with the length of the map output before it is sent. The other TaskManager is
            then asked first whether it has it.

    Returns:
        Whether it was sent; False if it is there already.

    Raises:
        SluiceError: The other TaskManager could not take it, or it could not be read here.

    Cancellation: safe; the other TaskManager is told to give the copy up.
    """
    if pace is not None:
        if await is_there(leg, output, copy_of):
            return False
        await pace(output.total_bytes)
    number = leg.new_number()
    sender = OutputSender(leg, number, store, Flow(output.key.application_id, id(leg)))
    leg.attach(number, sender)
    try:
        _open(leg, number, output, copy_of)
        for index, region in enumerate(output.regions):
            await sender.send_region(index, region)
        await sender.finish(output.total_bytes, len(output.regions))
    except SluiceError as error:
        sender.abort()
        if error.code is not ErrorCode.DUPLICATE_MAP_OUTPUT:
            raise
        return False
    except BaseException:
        sender.abort()
        raise
    return True


async def is_there(leg: ProducerLeg, output: MapOutput, copy_of: CopyOf) -> bool:
    """Ask another TaskManager whether it has a map output.

    Raises:
        SluiceError: It does not take it, or the connection is gone.

    Cancellation: safe.
    """
    number = leg.new_number()
    asked = _Asked()
    leg.attach(number, asked)
    _open(leg, number, output, copy_of)
    await leg.abort(number)
    if asked.error is None:
        return False
    if asked.error.code is not ErrorCode.DUPLICATE_MAP_OUTPUT:
        raise asked.error
    return True


def _open(leg: ProducerLeg, number: int, output: MapOutput, copy_of: CopyOf) -> None:
    shuffle_id, map_attempt_id = output.key.shuffle_id, output.map_attempt_id
    leg.send(OpenPartition(number, shuffle_id, map_attempt_id, output.num_subpartitions))
    leg.send(CopyOf(number, copy_of.origin, copy_of.replicas, copy_of.moved))


class _Asked:
    """A map output that is only asked for. A ``LegPartition``."""

    def __init__(self) -> None:
        self.error: SluiceError | None = None

    def failed(self, error: SluiceError) -> None:
        self.error = error

    def credit_granted(self, credit: int) -> None:
        """Ignore it: nothing is sent."""

    def send(self) -> bool:
        return False

    def finished(self) -> None:
        """Ignore it: nothing is finished."""

    def region_opened(self, payload_bytes: int) -> None:
        """Ignore it: there is no region."""

    def task_event_received(self, event_type: int, payload: bytes) -> None:
        """Ignore it: there are no readers."""


class OutputSender:
    """Sends one map output. A ``LegPartition``.

    Args:
        leg: The connection.
        number: The map output's number there.
        store: Reads the disks.
        flow: Whose turn at the disks it takes.
    """

    def __init__(self, leg: ProducerLeg, number: int, store: ShuffleStore, flow: Flow) -> None:
        self._leg: Final = leg
        self._number: Final = number
        self._store: Final = store
        self._flow: Final = flow
        self._payload_bytes = leg.connection.max_payload_bytes
        self._credit = 0
        self._offset = 0
        """Bytes of the region that are sent."""
        self._length = 0
        self._extent: Extent | None = None
        """The region's extent, if it lies in memory."""
        self._read: deque[memoryview] = deque()
        """Payloads that were read from a disk and are not sent."""
        self._failure: SluiceError | None = None
        self._opened: asyncio.Future[None] | None = None
        self._written: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._finished: asyncio.Future[None] | None = None

    async def send_region(self, index: int, region: Region) -> None:
        """Send a region; returns when the connection has taken all of it.

        Raises:
            SluiceError: It cannot be read here, or not be stored there.
            DeadlineExceeded: No byte of it was taken for as long as an answer may take.

        Cancellation: abort then.
        """
        self._require_alive()
        lengths = [end - start for start, end in pairwise(region.offsets)]
        begin = BeginRegion(self._number, index, region.first_subpartition, lengths, region.crc32c)
        self._credit = self._offset = 0
        self._length = region.length
        extent = region.extent
        if extent is None:
            self._leg.send(begin)
            return
        loop = asyncio.get_running_loop()
        self._opened, self._written = loop.create_future(), loop.create_future()
        self._leg.send(begin)
        await self._leg.answer(self._opened, "BeginRegion")
        try:
            if extent.in_memory:
                self._extent = extent
                self._send_available()
            else:
                await self._read_ahead(extent)
            await self._progress(self._written)
        finally:
            self._extent = None
            self._read.clear()

    async def finish(self, total_bytes: int, regions: int) -> None:
        """Have the map output committed there.

        Raises:
            SluiceError: It is not complete, and never will be.

        Cancellation: abort then.
        """
        self._require_alive()
        self._finished = asyncio.get_running_loop().create_future()
        self._leg.send(FinishPartition(self._number, total_bytes, regions))
        await self._leg.answer(self._finished, "FinishPartition")
        self._leg.forget(self._number)

    def abort(self) -> None:
        """Give the map output up there, if it has not failed. Idempotent."""
        if self._failure is None:
            self._leg.send(AbortPartition(self._number))
            self._leg.forget(self._number)
            self.failed(PartitionReleased("The copy was given up", value=self._number))

    # ---- called by the leg ----------------------------------------------------------------------

    def credit_granted(self, credit: int) -> None:
        """Send more of the region, for the TaskManager can take it."""
        self._credit += credit
        self._send_available()

    def send(self) -> bool:
        """Send one payload; return whether there may be more to send now."""
        if not self._credit or self._offset >= self._length or self._failure is not None:
            return False
        payload, release = self._next()
        if payload is None:
            return False
        self._credit -= 1
        offset = self._offset
        self._offset += len(payload)
        self._leg.send(RegionData(self._number, offset), payload, release)
        if self._offset == self._length:
            wake(self._written)
            return False
        return self._credit > 0

    def region_opened(self, payload_bytes: int) -> None:
        """Take the size of payloads: the TaskManager has made room for the region."""
        self._payload_bytes = payload_bytes
        wake(self._opened)

    def finished(self) -> None:
        """Record that the copy is committed."""
        wake(self._finished)

    def failed(self, error: SluiceError) -> None:
        """Fail: the TaskManager gave the copy up, or is gone."""
        if self._failure is None:
            self._failure = error
            for waiting in (self._opened, self._written, self._room, self._finished):
                wake(waiting, error)

    def task_event_received(self, event_type: int, payload: bytes) -> None:
        """Ignore it: a copy has no readers while it is written."""

    # ---- inside ---------------------------------------------------------------------------------

    def _next(self) -> tuple[memoryview | None, Callable[[], None] | None]:
        """Take the next payload; None while it is not read."""
        if self._read:
            payload = self._read.popleft()
            wake(self._room)
            return payload, None
        extent = self._extent
        if extent is None:
            return None, None
        view = extent.view
        if view is None:
            raise SluiceError("An extent of the memory tier has no mapping", value=repr(extent))
        extent.retain()
        return view[self._offset : self._offset + self._payload_bytes], extent.release

    async def _read_ahead(self, extent: Extent) -> None:
        """Read all of an extent, no further ahead of what is sent than one read."""
        size = self._payload_bytes
        most = max(READ_BYTES // size, 1) * size
        for offset in range(0, extent.length, most):
            buffer = memoryview(bytearray(min(most, extent.length - offset)))
            reads = [ExtentRead(extent, offset, [buffer])]
            if not self._store.read_cached(reads):
                await self._store.read_all(reads, self._flow)
            self._require_alive()
            while self._read:
                self._room = asyncio.get_running_loop().create_future()
                await self._progress(self._room)
            self._read.extend(buffer[at : at + size] for at in range(0, len(buffer), size))
            self._send_available()

    async def _progress(self, sent: "asyncio.Future[None]") -> None:
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
        if self._credit and (self._read or self._extent is not None):
            self._leg.queue(self)

    def _require_alive(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)  # its frames would pile up
