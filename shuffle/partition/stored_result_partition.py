"""A result partition that is stored as a whole and read afterwards.

It gathers buffers in its pool. When the pool is dry, when the partition is flushed, and at its end,
the gathered buffers become one *region*, which goes to a :class:`RegionSink`; then the buffers are
free again. While a region is written the writer uses the remaining memory. No reader learns of the
partition before it is finished. Its states are in
:mod:`sluice.shuffle.partition.partition_states`; a flush writes in state OPEN and has no effect
later.

One buffer is enough for any number of subpartitions: before a writer waits for memory, the open
buffers are finished and written. A region is expensive, so do not attach an output flusher.
"""

import asyncio
import logging
from typing import Final

from ...protocol.errors import SluiceError
from ...transport.loop import start_task
from ..errors import TooManyEvents, internal_error
from ..memory import LocalBufferPool
from .blocks import BlockCodec, BlockEncoder
from .partition_states import UNFINISHED, PartitionState
from .partition_type import ResultPartitionType
from .region_builder import Gathered, GatheredBuffer, GatheredEvent, RegionSink, build_region
from .result_partition_writer import ALL_SUBPARTITIONS, BufferWritingPartition
from .shared_buffer import BufferBuilder, BufferConsumer

logger = logging.getLogger(__name__)

MAX_GATHERED_EVENTS: Final = 16 * 1024
"""Events that may wait for a region. No pool holds them, so this constant bounds them."""


class StoredResultPartition(BufferWritingPartition):
    """One task's output, stored. A :class:`ResultPartitionWriter`.

    Args:
        name: For errors.
        num_subpartitions: Number of subpartitions, at least 1.
        pool: The memory, at least one segment. The partition owns the pool and destroys it at its
            end.
        sink: Takes the regions.
        codec: How blocks are compressed.

    Raises:
        InvalidRequest: The number of subpartitions is less than 1.
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
        super().__init__(name, num_subpartitions, pool)
        self.encoder = BlockEncoder(codec)
        """Counts bytes before and after compression."""
        self.total_bytes = 0
        """Bytes of the regions that were stored."""
        self.regions = 0
        """Regions that were stored."""
        self._sink = sink
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
            SluiceError: As :meth:`BufferWritingPartition.request_builder`.
        """
        self._check_writable(subpartition)
        pool = self.memory.pool
        if pool.held_segments > pool.size_segments:
            self._begin_region()  # another pool needs the memory
        buffer = pool.request_buffer_nowait(subpartition)
        return None if buffer is None else BufferBuilder(buffer)

    def flush(self, subpartition: int) -> None:
        """Begin to write the gathered buffers of all subpartitions as a region."""
        self.flush_all()

    def flush_all(self) -> None:
        """Begin to write the gathered buffers as a region, or do so after the one under way."""
        if self.state is PartitionState.OPEN:
            self._flush_again = self._writing is not None
            self._begin_region()

    async def finish(self) -> None:
        """Write the last region and make the partition complete, so that it can be read.

        Raises:
            SluiceError: It could not be stored; the partition has failed.

        Cancellation: the partition is incomplete; release it.
        """
        if self.state is PartitionState.FINISHED:
            return
        self._check_writable()
        self._become(PartitionState.FINISHING)
        while self._gathered or self._writing is not None:
            self._begin_region()
            if self._writing is not None:
                await asyncio.shield(self._writing)
            if self.state not in UNFINISHED:
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
        if not self._become(PartitionState.FINISHED):  # it was released meanwhile
            raise self._refusal()
        self.memory.pool.destroy()

    def fail(self, error: SluiceError) -> None:
        """End with an error, which waiting writers get; no effect on a complete partition."""
        if self._end(PartitionState.FAILED, error):
            self._give_up()

    def release(self) -> None:
        """Release the memory, and all regions unless the partition is complete. Idempotent."""
        is_unfinished = self.state in UNFINISHED
        if self._end(PartitionState.RELEASED) and is_unfinished:
            self._give_up()

    async def wait_closed(self) -> None:
        """Wait for the end of a region that was being written at the release.

        Cancellation: safe.
        """
        if self._writing is not None:
            await asyncio.shield(self._writing)

    # ---- inside ------------------------------------------------------------------------------

    def _add(self, consumer: BufferConsumer, subpartition: int) -> None:
        self._finish_open_before(subpartition)
        self._gathered.append((subpartition, consumer))
        if not consumer.is_finished:
            self._open[subpartition] = consumer

    def _add_event(self, payload: bytes, data_type: int, subpartition: int) -> None:
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

    def _make_room(self) -> None:
        self._begin_region()

    def _finish_open_before(self, subpartition: int) -> None:
        """Finish the open buffers of a subpartition, before another entry is put behind them."""
        if subpartition == ALL_SUBPARTITIONS:
            self._finish_open()
        elif self._open:
            for which in (subpartition, ALL_SUBPARTITIONS):
                _finish(self._open.pop(which, None))

    def _finish_open(self) -> None:
        consumers, self._open = self._open, {}
        for consumer in consumers.values():
            _finish(consumer)

    def _begin_region(self) -> None:
        """Write the gathered buffers, if there are any and no region is under way."""
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
            self._writing = start_task(self._write_region(contents))

    async def _write_region(self, contents: list[Gathered]) -> None:
        failure: SluiceError | None = None
        try:
            region = await build_region(
                contents,
                self.regions,
                self.num_subpartitions,
                self.encoder,
            )
            if self.state in UNFINISHED:
                await self._sink.write_region(region)
                self.total_bytes += sum(region.lengths)
                self.regions += 1
        except SluiceError as error:
            failure = error
        except Exception as error:
            # A bug must fail this partition and be logged, never pass for stored data.
            logger.exception("internal error while a region of %s was written", self.name)
            failure = internal_error(error)
        finally:
            self._writing = None
            for each in contents:
                if isinstance(each, GatheredBuffer):
                    each.content.recycle()
        if failure is not None:
            self.fail(failure)
        elif self.state in UNFINISHED:
            # The pool may have shrunk meanwhile, so that the freed buffers reached no waiter.
            pool = self.memory.pool
            if self._flush_again or pool.waiting_listeners or pool.waiting_for_availability:
                self._begin_region()

    def _give_up(self) -> None:
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
