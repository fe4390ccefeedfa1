"""A result partition that is stored as a whole and read afterwards (P10 to P13).

It gathers buffers in its pool. When the pool is dry, when it is flushed, and at its end, what was
gathered becomes one *region*, which goes to a :class:`RegionSink`; then the buffers are free again.
While a region is written the writer goes on with what memory is left. Nobody is told of anything
before the partition is finished::

    state      request, add   flush   finish     fail       release
    OPEN       taken          write   FINISHED   FAILED     RELEASED
    finishing  refused        –       –          FAILED     RELEASED
    FINISHED   refused        –       –          –          RELEASED
    FAILED     refused        –       refused    –          RELEASED
    RELEASED   refused        –       refused    –          –

One buffer is enough for any number of subpartitions: before anybody waits for memory, what is open
is finished and written. A region has a price, so do not attach an output flusher.
"""

import asyncio
import logging
from typing import Final

from sluice.protocol.errors import SluiceError
from sluice.protocol.messages import BLOCKING_EVENT, EVENT, PRIORITY_EVENT
from sluice.shuffle.errors import (
    InvalidRequest,
    PartitionAlreadyFinished,
    PartitionReleased,
    TooManyEvents,
    internal_error,
)
from sluice.shuffle.memory import LocalBufferPool, NetworkBuffer
from sluice.shuffle.partition.blocks import BlockCodec, BlockEncoder
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.shuffle.partition.region_builder import (
    Gathered,
    GatheredBuffer,
    GatheredEvent,
    RegionSink,
    build_region,
)
from sluice.shuffle.partition.result_partition_writer import (
    ALL_SUBPARTITIONS,
    BuilderSource,
    PartitionMemory,
)
from sluice.shuffle.partition.shared_buffer import BufferBuilder, BufferConsumer, finished_consumer
from sluice.shuffle.partition.states import PartitionState

_log = logging.getLogger(__name__)

MAX_GATHERED_EVENTS: Final = 16 * 1024
"""Events that may wait for a region. They are in no pool, so something else must bound them."""


class StoredResultPartition(BuilderSource):
    """One task's output, stored. A :class:`ResultPartitionWriter`.

    Args:
        name: For errors.
        num_subpartitions: Number of subpartitions, at least 1.
        pool: Its memory, at least one segment. The partition owns the pool and destroys it at its
            end.
        sink: Where the regions go.
        codec: How blocks are compressed.

    Raises:
        InvalidRequest: No subpartitions.
    """

    partition_type: Final = ResultPartitionType.BLOCKING

    def __init__(
        self,
        name: str,
        num_subpartitions: int,
        pool: LocalBufferPool,
        sink: RegionSink,
        *,
        codec: BlockCodec = BlockCodec.LZ4,
    ) -> None:
        if num_subpartitions < 1:
            raise InvalidRequest("Number of subpartitions", value=num_subpartitions, limit=1)
        self.name: Final = name
        self.num_subpartitions: Final = num_subpartitions
        self.state = PartitionState.OPEN
        self.memory = PartitionMemory(pool)
        self.encoder = BlockEncoder(codec)
        """Counts bytes before and after compression."""
        self.total_bytes = 0
        """Bytes of the regions that were stored."""
        self.regions = 0
        """Regions that were stored."""
        self._sink = sink
        self._failure: SluiceError | None = None
        self._finishing = False
        self._gathered: list[tuple[int, BufferConsumer] | GatheredEvent] = []
        self._events = 0
        # Buffers still being filled: one of each subpartition at most, or one of all of them.
        self._open: dict[int, BufferConsumer] = {}
        self._flush_again = False
        self._writing: asyncio.Task[None] | None = None

    # ---- the writer --------------------------------------------------------------------------

    def request_builder(self, subpartition: int) -> BufferBuilder | None:
        """Take a builder; None: no memory now, so wait for it, which writes a region.

        Raises:
            InvalidRequest: No such subpartition.
            PartitionReleased: It is released.
            PartitionAlreadyFinished: It is finished.
            SluiceError: Its failure.
        """
        self._require_open()
        if subpartition != ALL_SUBPARTITIONS:
            self._check_index(subpartition)
        pool = self.memory.pool
        if pool.held_segments > pool.size_segments:
            self._begin_region()  # the memory is wanted elsewhere
        buffer = pool.request_buffer_nowait(subpartition)
        return None if buffer is None else BufferBuilder(buffer)

    def add_consumer(
        self, consumer: BufferConsumer, subpartition: int, partial_record_bytes: int = 0
    ) -> None:
        """Gather a buffer, complete or still being filled.

        Raises:
            InvalidRequest: No such subpartition.
            SluiceError: As :meth:`request_builder`. In all cases the consumer is closed.
        """
        try:
            self._require_open()
            self._finish_open_before(subpartition)
        except SluiceError:
            consumer.close()
            raise
        self._gathered.append((subpartition, consumer))
        if not consumer.is_finished:
            self._open[subpartition] = consumer

    def add_finished_buffer(self, subpartition: int, buffer: NetworkBuffer) -> None:
        """Gather a complete buffer; the partition owns the reference then.

        Raises:
            SluiceError: As :meth:`add_consumer`. In all cases the buffer is recycled.
        """
        self.add_consumer(finished_consumer(buffer), subpartition)

    def emit_event(self, payload: bytes, data_type: int, subpartition: int) -> None:
        """Gather an event; stored behind what there is, whatever its type.

        Raises:
            InvalidRequest: No such subpartition or data type.
            TooManyEvents: More were added than are kept for one region.
            SluiceError: As :meth:`request_builder`.
        """
        self._require_open()
        if data_type not in (EVENT, PRIORITY_EVENT, BLOCKING_EVENT):
            raise InvalidRequest(
                "Data type of an event",
                value=data_type,
                limit=f"{EVENT}, {PRIORITY_EVENT} or {BLOCKING_EVENT}",
            )
        self._finish_open_before(subpartition)
        if self._events >= MAX_GATHERED_EVENTS:
            raise TooManyEvents(
                "More events wait for a region than are kept",
                value=self._events + 1,
                limit=MAX_GATHERED_EVENTS,
                remedy="Flush between them, and let the event loop run",
            )
        self._events += 1
        self._gathered.append(GatheredEvent(subpartition, payload, data_type))

    def flush(self, subpartition: int) -> None:
        """Begin to write what was gathered, of all subpartitions, as a region."""
        self.flush_all()

    def flush_all(self) -> None:
        """Begin to write what was gathered as a region, or do so behind the one under way."""
        if self.state is PartitionState.OPEN and not self._finishing:
            self._flush_again = self._writing is not None
            self._begin_region()

    async def finish(self) -> None:
        """Write what is left and make the partition complete, so that it can be read.

        Raises:
            SluiceError: It could not be stored; the partition has failed.

        Cancellation: the partition is incomplete; release it.
        """
        if self.state is PartitionState.FINISHED:
            return
        self._require_open()
        self._finishing = True
        while self._gathered or self._writing is not None:
            self._begin_region()
            if self._writing is not None:
                await asyncio.shield(self._writing)
            if self.state is not PartitionState.OPEN:
                raise self._refusal()
        try:
            await self._sink.finish(self.total_bytes, self.regions)
        except SluiceError as error:
            self.fail(error)
            raise
        except Exception as error:
            failure = internal_error(error)
            self.fail(failure)
            raise failure from error
        if self.state is not PartitionState.OPEN:  # released meanwhile
            raise self._refusal()
        self.state = PartitionState.FINISHED
        self.memory.pool.destroy()

    def fail(self, error: SluiceError) -> None:
        """End with an error, which waiting writers get; no effect on what is complete."""
        if self.state is PartitionState.OPEN:
            self._give_up(PartitionState.FAILED, error)

    def release(self) -> None:
        """Give the memory up, and what was stored unless the partition is complete. Idempotent."""
        if self.state is PartitionState.OPEN:
            self._give_up(
                PartitionState.RELEASED,
                PartitionReleased("Partition is released", value=self.name),
            )
        self.state = PartitionState.RELEASED

    async def wait_closed(self) -> None:
        """Wait for the end of a region that was being written at the release.

        Cancellation: safe.
        """
        if self._writing is not None:
            await asyncio.shield(self._writing)

    # ---- inside ------------------------------------------------------------------------------

    @property
    def _is_writable(self) -> bool:
        return self.state is PartitionState.OPEN and not self._finishing

    def _make_room(self) -> None:
        self._begin_region()

    def _builder(self, buffer: NetworkBuffer, subpartition: int) -> BufferBuilder:
        return BufferBuilder(buffer)

    def _require_open(self) -> None:
        if not self._is_writable:
            raise self._refusal()

    def _refusal(self) -> SluiceError:
        if self._failure is not None:
            return self._failure.with_traceback(None)  # its frames would pile up
        if self.state is PartitionState.RELEASED or self._is_writable:
            return PartitionReleased("Partition is released", value=self.name)
        return PartitionAlreadyFinished(
            "Nothing can be added to a finished partition", value=self.name
        )

    def _finish_open_before(self, subpartition: int) -> None:
        """Something comes behind the open buffers of a subpartition: they end here."""
        if subpartition == ALL_SUBPARTITIONS:
            self._finish_open()
            return
        self._check_index(subpartition)
        if self._open:
            for which in (subpartition, ALL_SUBPARTITIONS):
                _finish(self._open.pop(which, None))

    def _check_index(self, subpartition: int) -> None:
        if not 0 <= subpartition < self.num_subpartitions:
            raise InvalidRequest(
                "Partition has no such subpartition",
                value=subpartition,
                limit=self.num_subpartitions - 1,
            )

    def _finish_open(self) -> None:
        consumers, self._open = self._open, {}
        for consumer in consumers.values():
            _finish(consumer)

    def _begin_region(self) -> None:
        """Write what was gathered, if there is something and no region is under way."""
        if self._writing is not None or not self._gathered:
            return
        self._flush_again = False
        self._finish_open()
        gathered, self._gathered = self._gathered, []
        self._events = 0
        contents: list[Gathered] = []
        for each in gathered:
            if isinstance(each, GatheredEvent):
                contents.append(each)
            elif each[1].has_unread:
                contents.append(GatheredBuffer(each[0], each[1].build_last()))
            else:
                each[1].close()
        if contents:
            self._writing = asyncio.get_running_loop().create_task(self._write_region(contents))

    async def _write_region(self, contents: list[Gathered]) -> None:
        failure: SluiceError | None = None
        try:
            region = await build_region(
                contents,
                self.regions,
                self.num_subpartitions,
                self.encoder,
                self._sink.takes_broadcast,
            )
            if self.state is PartitionState.OPEN:
                await self._sink.write_region(region)
                self.total_bytes += sum(region.lengths)
                self.regions += 1
        except SluiceError as error:
            failure = error
        except Exception as error:  # noqa: BLE001
            # A bug of ours must fail this partition and be seen, never pass for stored data.
            _log.exception("internal error while a region of %s was written", self.name)
            failure = internal_error(error)
        finally:
            self._writing = None
            for each in contents:
                if isinstance(each, GatheredBuffer):
                    each.content.recycle()
        if failure is not None:
            self.fail(failure)
        elif self.state is PartitionState.OPEN:
            # Memory may have been taken away meanwhile, so that what came back served nobody.
            pool = self.memory.pool
            if self._flush_again or pool.waiting_listeners or pool.waiting_for_availability:
                self._begin_region()

    def _give_up(self, state: PartitionState, error: SluiceError) -> None:
        self.state = state
        self._failure = error
        gathered, self._gathered = self._gathered, []
        for each in gathered:
            if not isinstance(each, GatheredEvent):
                each[1].close()
        self._finish_open()
        self._sink.abort()
        self.memory.pool.destroy()


def _finish(consumer: BufferConsumer | None) -> None:
    if consumer is not None and consumer.builder is not None:
        consumer.builder.finish()
