"""Decides where a buffer of a hybrid partition goes when the partition's memory is used up.

A buffer is in one of these states; an event that is not a priority event is a buffer here::

    state      its bytes are in      reader takes it⁰  the write ends   partition ends
    IN_MEMORY  a segment             consumed          –                freed
    SPILLING   a segment, an extent  consumed          SPILLED¹         freed when the write ends
    SPILLED    an extent             consumed          –                freed
    consumed   nothing; a segment until the reader's connection has sent it

⁰ In HYBRID_SELECTIVE. In HYBRID_FULL the state stays: each reader shares or copies the bytes.
¹ IN_MEMORY if no tier takes it.

IN_MEMORY becomes SPILLING when the writer waits: complete buffers only, the oldest ones of a
subpartition first. So a buffer of HYBRID_SELECTIVE is not written if its reader is in time; every
buffer of HYBRID_FULL is, in the end. Subpartitions take turns: after a full region, the next one
begins with the subpartition after the last one whose buffers were taken. The spiller::

    state     memory_short²  in the next turn                              close
    IDLE      DEFERRED       –                                             CLOSED
    DEFERRED  –              the writer still waits: WRITING, else IDLE    CLOSED
    WRITING   –              one region a turn until the writer is served, CLOSED
                             then IDLE; after a failure CLOSED, or PAUSED³
    PAUSED    –              – (DEFERRED after PAUSE_SECONDS)              CLOSED
    CLOSED    –              –                                             –

² Also called when another buffer is completed while the writer waits.
³ If the partition is finished: it cannot fail any longer, and its last buffers wait in memory.

One turn of the event loop lies between the shortage and the first write, so that a reader with
credit can take what has come in the same turn.
"""

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from ....protocol.errors import SluiceError
from ....transport.errors import one_line
from ....transport.loop import start_task
from ...errors import failure_of
from ...memory import LocalBufferPool
from ...names import ShuffleKey
from ...partition.partition_type import ResultPartitionType
from ...partition.shared_buffer import BufferConsumer, BufferSlice
from ...partition.view import SubpartitionOwner
from ..bounds.accounts import Resource
from ..store.errors import StorageClosed, StorageError, StorageFull
from ..store.region_writer import RegionWriter
from ..store.shuffle_store import ShuffleStore
from ..store.tiers.tier import Extent, Tier
from .hybrid_full_subpartition import HybridFullSubpartition
from .hybrid_selective_subpartition import HybridSelectiveSubpartition
from .shared_buffers import SharedBuffers
from .spilled_run import SPILLED_SLICE_BYTES
from .spilled_runs import SpilledRuns
from .spilling_subpartition import Spilling, SpillingSubpartition

logger = logging.getLogger(__name__)

MAX_SPILLED_REGION_BYTES: Final = 4 * 1024 * 1024
"""Maximum bytes of a region, unless a single buffer is longer: the memory tier takes them in one
turn of the event loop."""

MAX_SPILLED_REGION_BUFFERS: Final = 1024
"""Maximum buffers of a region, because small ones take time rather than bytes. Each copy of a
broadcast buffer counts."""

PAUSE_SECONDS: Final = 5.0
"""Time after which a finished partition tries again to spill its last buffers."""


class SpillerState(enum.Enum):
    """States of a spiller."""

    IDLE = "idle"
    DEFERRED = "deferred"
    WRITING = "writing"
    PAUSED = "paused"
    CLOSED = "closed"


class SpillingWriter(NamedTuple):
    """The writer of a hybrid partition, as its spiller sees it.

    Attributes:
        waits: Whether it waits for memory, or is about to.
        not_spilled: Called with the reason when buffers cannot be spilled. It fails the partition,
            or returns True if the partition is finished: the spiller retries after a pause.
        lost: Called with the reason when a kept partition has lost spilled bytes. It fails the
            partition, also if that is finished.
    """

    waits: Callable[[], bool]
    not_spilled: Callable[[SluiceError], bool]
    lost: Callable[[SluiceError], None]


class HybridSpiller:
    """Moves buffers of one partition to the tiers. An ``Overflow``.

    Args:
        kind: The type of the partition, a hybrid one.
        pool: The pool of the partition.
        store: The tiers.
        key: The shuffle, to whose application the bytes are counted.
        writer: The writer of the partition.
        connection: The producer's connection; connections take turns to write to a disk.
    """

    def __init__(
        self,
        kind: ResultPartitionType,
        pool: LocalBufferPool,
        store: ShuffleStore,
        key: ShuffleKey,
        writer: SpillingWriter,
        connection: int = 0,
    ) -> None:
        self.state = SpillerState.IDLE
        self.spilled_bytes = 0
        """Bytes that were written to the tiers."""
        self._store: Final = store
        self._key: Final = key
        self._account: Final = store.accounts.of(key.application_id)
        self._runs: Final = SpilledRuns(store, key, self._account)
        self._is_full: Final = kind.is_reconsumable
        self._shared: Final = SharedBuffers(pool)
        self._writer = writer
        self._connection: Final = connection
        self._subpartitions: deque[SpillingSubpartition] = deque()  # the first has the next turn
        self._loop: Final = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._was_logged = False

    def make_subpartition(self, index: int, owner: SubpartitionOwner) -> SpillingSubpartition:
        """Make a subpartition, whose buffers can be taken."""
        made: SpillingSubpartition
        if self._is_full:
            made = HybridFullSubpartition(
                index, owner, self._runs, self._completed, self._shared, self._lost
            )
        else:
            made = HybridSelectiveSubpartition(index, owner, self._runs, self._completed)
        self._subpartitions.append(made)
        return made

    def memory_short(self) -> None:
        """Spill in the next turn of the event loop if the writer still waits then. Idempotent."""
        if self.state is SpillerState.IDLE:
            self.state = SpillerState.DEFERRED
            self._loop.call_soon(self._begin)

    def close(self) -> None:
        """Spill nothing more; a region that is being written is freed at its end. Idempotent."""
        self.state = SpillerState.CLOSED
        self._writer = _NO_WRITER
        self._subpartitions = deque()
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def _lost(self, error: SluiceError) -> None:
        self._writer.lost(error)

    def _completed(self) -> None:
        """Spill a buffer that another writer completed after a writer began to wait."""
        if self.state is SpillerState.IDLE and self._writer.waits():
            self.memory_short()

    def _begin(self) -> None:
        if self.state is not SpillerState.DEFERRED:
            return  # closed meanwhile
        if self._writer.waits():
            self.state = SpillerState.WRITING
            self._task = start_task(self._spill())
        else:
            self.state = SpillerState.IDLE

    async def _spill(self) -> None:
        """Write region after region until the writer is served.

        Cancellation: nobody cancels it; the threads of the tiers have deadlines.
        """
        written = _BroadcastPlaces()
        try:
            while self._writer.waits():
                if not await self._write_region(self._subpartitions, written):
                    break
                await asyncio.sleep(0)  # the memory tier takes a region without waiting
        except Exception as error:  # noqa: BLE001 - also a bug fails this partition, and no other
            self._not_spilled(failure_of(error, "spilling a hybrid partition"))
        else:
            if self.state is SpillerState.WRITING:
                self.state = SpillerState.IDLE
        finally:
            self._task = None
            written.close()

    def _not_spilled(self, error: SluiceError) -> None:
        """Fail the partition; retry after a pause if it is finished."""
        if not self._writer.not_spilled(error):
            self.close()
            return
        if not self._was_logged:
            self._was_logged = True
            logger.warning(
                "a finished hybrid partition of shuffle %d of %s keeps its unread buffers in "
                "memory and retries the spill every %g s: %s: %s",
                self._key.shuffle_id,
                self._key.application_id,
                PAUSE_SECONDS,
                error.code.name,
                one_line(error),  # a log record must not keep the frames of the traceback alive
                extra=self._key.log_fields | {"code": error.code.name},
            )
        self.state = SpillerState.PAUSED
        self._pause = self._loop.call_later(PAUSE_SECONDS, self._try_again)

    def _try_again(self) -> None:
        self._pause = None
        self.state = SpillerState.IDLE
        self.memory_short()

    async def _write_region(
        self, subpartitions: deque[SpillingSubpartition], written: "_BroadcastPlaces"
    ) -> bool:
        """Write complete buffers as one region; return whether there were any.

        Raises:
            StorageFull: No tier has room.
            QuotaExceeded: The application is at its quota of a tier or of metadata.
            StorageError: Each tier that has room failed; this is the error of the first one.
        """
        batch = _Batch(written)
        visited: list[SpillingSubpartition] = []
        while not batch.is_full and len(visited) < len(subpartitions):
            subpartition = subpartitions[0]
            slices = subpartition.begin_spilling(batch.place)
            batch.kept_slices += slices
            visited.append(subpartition)
            if slices or not batch.is_full:
                subpartitions.rotate(-1)
        if not batch.placed:
            return False
        try:
            extent = await self._write(batch) if batch.slices else None
        except BaseException:
            for subpartition in visited:
                subpartition.not_spilled()
            for each in batch.slices:
                each.recycle()
            raise
        self.spilled_bytes += batch.length
        for subpartition in visited:  # those that are released have forgotten their buffers
            subpartition.spilled(extent)
        if extent is not None:
            batch.end(extent)
            extent.release()
        return True

    async def _write(self, batch: "_Batch") -> Extent:
        """Write the bytes of a batch; the extent is the caller's.

        Each tier is tried once. If one fails, the bytes are still in memory and go to the next tier
        that has room.
        """
        kept_bytes = SPILLED_SLICE_BYTES * batch.kept_slices
        self._account.require_room(Resource.METADATA_BYTES, kept_bytes)
        failed: dict[Tier | None, StorageError] = {}
        while True:
            try:
                writer = self._store.begin_region(self._key, 0, [batch.length], self._connection)
            except SluiceError as error:
                if not failed:
                    raise
                raise _first(failed) from error
            tier = writer.tier
            if tier in failed:  # no other has room
                writer.abort()
                raise _first(failed)
            try:
                return await self._write_to(writer, batch)
            except (StorageFull, StorageClosed):
                raise
            except StorageError as error:
                failed[tier] = error

    async def _write_to(self, writer: RegionWriter, batch: "_Batch") -> Extent:
        """Write the bytes of a batch to a region, which is aborted if that fails."""
        try:
            await writer.write(
                0,
                [each.payload for each in batch.slices],
                [each.buffer for each in batch.slices],
            )
            await writer.flush()
            extent = writer.finish(0).extent
        except BaseException:
            writer.abort()
            raise
        if extent is None:
            raise RuntimeError("buffers without bytes were to be spilled")
        return extent


class _BufferKey(NamedTuple):
    """Identifies the bytes of a buffer while something refers to it."""

    buffer_id: int
    end: int
    length: int


class _BroadcastPlaces:
    """Places of broadcast buffers that were written and that other subpartitions still queue."""

    def __init__(self) -> None:
        self._places: dict[_BufferKey, tuple[BufferSlice, Extent, int]] = {}

    def keep(self, name: _BufferKey, piece: BufferSlice, extent: Extent, offset: int) -> None:
        """Keep the place of a buffer; the slice is this object's from now on."""
        extent.retain()
        self._places[name] = piece, extent, offset

    def find(self, name: _BufferKey) -> tuple[Extent, int] | None:
        """Return the place of a buffer that was written; None if it was not."""
        found = self._places.get(name)
        return None if found is None else found[1:]

    def close(self) -> None:
        """Free everything."""
        for piece, extent, _ in self._places.values():
            piece.recycle()
            extent.release()
        self._places = {}


class _Batch:
    """The buffers of one region, each with its place in it.

    Args:
        written: Broadcast buffers that were written to regions before: they are not written again.

    Attributes:
        slices: The bytes, with a reference to their buffers.
        length: Their length.
        kept_slices: Slices that subpartitions keep of them, unless readers come first.
        placed: Buffers that have a place; each copy of a broadcast buffer counts.
        is_full: Whether a buffer was refused because the region is full.
    """

    def __init__(self, written: _BroadcastPlaces) -> None:
        self.slices: list[BufferSlice] = []
        self.length = 0
        self.kept_slices = 0
        self.is_full = False
        self.placed = 0
        self._written: Final = written
        self._offsets: dict[_BufferKey, int] = {}  # of the slices

    def place(self, consumer: BufferConsumer) -> Spilling | None:
        """Give a buffer its place; None if the region is full."""
        if self.placed == MAX_SPILLED_REGION_BUFFERS:
            self.is_full = True
            return None
        length = consumer.unread_bytes
        piece = consumer.copy().build_last()
        buffer = piece.buffer
        name = _BufferKey(id(buffer), buffer.length, length)
        known = self._written.find(name)
        if known is not None:
            piece.recycle()
            self.placed += 1
            return Spilling(consumer, known[1], length, known[0])
        offset = self._offsets.get(name)
        if offset is None:
            if self.length and self.length + length > MAX_SPILLED_REGION_BYTES:
                piece.recycle()
                self.is_full = True
                return None
            offset = self._offsets[name] = self.length
            self.slices.append(piece)
            self.length += length
        else:
            piece.recycle()
        self.placed += 1
        return Spilling(consumer, offset, length)

    def end(self, extent: Extent) -> None:
        """Release the written buffers, and keep the places of shared ones.

        Args:
            extent: The region.
        """
        for piece, (name, offset) in zip(self.slices, self._offsets.items(), strict=True):
            if piece.is_shared:
                self._written.keep(name, piece, extent, offset)
            else:
                piece.recycle()


def _first(failed: "dict[Tier | None, StorageError]") -> StorageError:
    """Return the error of the tier that was tried first."""
    return next(iter(failed.values()))


_NO_WRITER: Final = SpillingWriter(lambda: False, lambda _: False, lambda _: None)
"""Takes the place of the writer once the spiller is closed."""
