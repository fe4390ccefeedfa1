"""Writes committed map outputs to another TaskManager over one connection.

::

    this TaskManager                            the other TaskManager
    OpenPartition, CopyChecksum, CopyOf,
    ReplicateToRemote, BeginRegion       ──▶
                                         ◀──    RegionOpened, AddCredit, or DUPLICATE_MAP_OUTPUT
    RegionData as there is credit        ──▶
    BeginRegion ...                      ──▶
    FinishPartition                      ──▶
                                         ◀──    PartitionFinished

Bytes in the memory tier are sent from its mapping, without a copy. Bytes on a disk are read in
small pieces, from the page cache if possible.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from ....protocol.errors import ErrorCode, SluiceError
from ....protocol.limits import COPIES_COMPARED, REMOTE_COPIES, TRACES
from ....protocol.schema import (
    BeginRegion,
    CopyChecksum,
    CopyOf,
    OpenPartition,
    ReplicateToRemote,
    TraceContext,
)
from ....transport.fair_queue import Flow
from ...legs.producer_leg import ProducerLeg, wake
from ...legs.region_sender import Payload, RegionSender, SilentPartition
from ..store.extent_reader import AHEAD_BYTES, ExtentRange
from ..store.shuffle_store import ShuffleStore
from ..store.stored_outputs import MapOutput, Region
from ..store.tiers.tier import Extent, ExtentRead

READ_BYTES: Final = 256 * 1024
"""Approximate size of a disk read. The bytes of one read wait to be sent while the next is done."""

Pace = Callable[[int], Awaitable[None]]
"""Waits until a number of bytes may be sent."""


async def copy_output(
    leg: ProducerLeg,
    store: ShuffleStore,
    output: MapOutput,
    copy_of: CopyOf,
    pace: Pace | None = None,
    trace: TraceContext | None = None,
) -> bool:
    """Write a committed map output to another TaskManager.

    Args:
        leg: The connection, in the role of a copier.
        store: Has the map output.
        output: The map output, which the caller retains.
        copy_of: The description of the copy; its number is replaced.
        pace: Awaited with the length of each region before it is sent. With a pace, the other
            TaskManager is first asked whether it has the map output.
        trace: Sent along, so that the other TaskManager continues the trace.

    Returns:
        Whether it was sent; False if the other TaskManager has it already.

    Raises:
        SluiceError: The other TaskManager cannot store it, or it cannot be read here.

    Cancellation: safe; the other TaskManager drops the incomplete copy.
    """
    if pace is not None and await is_there(leg, output, copy_of):
        return False
    number = leg.new_number()
    sender = OutputSender(leg, number, store, Flow(output.key.application_id, id(leg)))
    leg.attach(number, sender)
    try:
        _open(leg, number, output, copy_of, trace)
        for index, region in enumerate(output.regions):
            if pace is not None:
                await pace(region.length)
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
        SluiceError: The TaskManager refuses the map output, or the connection is lost.

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


def _open(
    leg: ProducerLeg,
    number: int,
    output: MapOutput,
    copy_of: CopyOf,
    trace: TraceContext | None = None,
) -> None:
    shuffle_id, map_attempt_id = output.key.shuffle_id, output.map_attempt_id
    leg.send(OpenPartition(number, shuffle_id, map_attempt_id, output.num_subpartitions))
    if trace is not None and leg.features & TRACES:
        leg.send(trace.numbered(number))
    if leg.features & COPIES_COMPARED:
        leg.send(CopyChecksum(number, output.checksum()))
    leg.send(CopyOf(number, copy_of.origin, copy_of.replicas, copy_of.moved))
    if output.to_remote and leg.features & REMOTE_COPIES:
        leg.send(ReplicateToRemote(number, synchronous=False))


class _ExistenceProbe(SilentPartition):
    """A map output that is opened only to learn whether it exists."""

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
        flow: The flow to which the disk reads are charged.
    """

    def __init__(self, leg: ProducerLeg, number: int, store: ShuffleStore, flow: Flow) -> None:
        super().__init__(leg, number)
        self._store: Final = store
        self._flow: Final = flow
        self._extent: Extent | None = None
        """The region's extent, if it is in memory."""
        self._read: deque[memoryview] = deque()
        """Payloads that were read from a disk and are not yet sent."""
        self._room: asyncio.Future[None] | None = None

    async def send_region(self, index: int, region: Region) -> None:
        """Send a region; return when the connection has taken all of it.

        Raises:
            SluiceError: It cannot be read here, or cannot be stored there.
            DeadlineExceeded: No byte of it was taken within the deadline for an answer.

        Cancellation: call :meth:`abort` afterwards.
        """
        lengths = region.lengths()
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
        """Fail: the TaskManager dropped the copy, or the connection is lost."""
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
        """Read all of an extent, at most one read ahead of the bytes sent."""
        size = self._payload_bytes
        most = max(READ_BYTES // size, 1) * size
        advised = 0
        for offset in range(0, extent.length, most):
            buffer = memoryview(bytearray(min(most, extent.length - offset)))
            reads = [ExtentRead(extent, offset, [buffer])]
            if not self._store.read_cached(reads):
                if offset >= advised and extent.tier.reads_ahead:
                    advised = min(offset + AHEAD_BYTES, extent.length)
                    soon = ExtentRange(extent, offset, advised - offset)
                    await self._store.will_need([soon], self._flow)
                await self._store.read_all(reads, self._flow)
            self._require_alive()
            while self._read:
                self._room = asyncio.get_running_loop().create_future()
                await self._progress(self._room)
            self._read.extend(buffer[at : at + size] for at in range(0, len(buffer), size))
            self._send_available()
