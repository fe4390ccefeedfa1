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
    BeginRegion,
    CopyOf,
    OpenPartition,
)
from ...legs.producer_leg import ProducerLeg, wake
from ...legs.region_sender import Payload, RegionSender, SilentPartition
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
    asked = _ExistenceProbe()
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


class _ExistenceProbe(SilentPartition):
    """A map output that another TaskManager is only asked for."""

    def __init__(self) -> None:
        self.error: SluiceError | None = None

    def failed(self, error: SluiceError) -> None:
        self.error = error


class OutputSender(RegionSender):
    """Sends one map output.

    Args:
        leg: The connection.
        number: The map output's number there.
        store: Reads the disks.
        flow: Whose turn at the disks it takes.
    """

    def __init__(self, leg: ProducerLeg, number: int, store: ShuffleStore, flow: Flow) -> None:
        super().__init__(leg, number)
        self._store: Final = store
        self._flow: Final = flow
        self._extent: Extent | None = None
        """The region's extent, if it lies in memory."""
        self._read: deque[memoryview] = deque()
        """Payloads that were read from a disk and are not sent."""
        self._room: asyncio.Future[None] | None = None

    async def send_region(self, index: int, region: Region) -> None:
        """Send a region; returns when the connection has taken all of it.

        Raises:
            SluiceError: It cannot be read here, or not be stored there.
            DeadlineExceeded: No byte of it was taken for as long as an answer may take.

        Cancellation: abort then.
        """
        lengths = [end - start for start, end in pairwise(region.offsets)]
        begin = BeginRegion(self.number, index, region.first_subpartition, lengths, region.crc32c)
        written = await self._begin(begin, region.length)
        extent = region.extent
        try:
            if extent is not None and extent.in_memory:
                self._extent = extent
                self._send_available()
            elif extent is not None:
                await self._read_ahead(extent)
            await self._progress(written)
        finally:
            self._extent = None
            self._read.clear()

    def failed(self, error: SluiceError) -> None:
        """Fail: the TaskManager gave the copy up, or is gone."""
        super().failed(error)
        wake(self._room, error)

    def _next_payload(self) -> Payload | None:
        if self._read:
            payload = self._read.popleft()
            wake(self._room)
            return payload, None
        extent = self._extent
        if extent is None:
            return None
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
