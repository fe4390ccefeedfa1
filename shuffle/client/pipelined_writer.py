"""A pipelined result partition of a client: its buffers go to the TaskManager as they fill.

The client's pool holds what is being filled and what the TaskManager has not taken; the TaskManager
grants credit as its own pool for the partition has segments, and so two pools bound what is between
this task and its readers. When both are full the writer waits for a buffer.

::

    state      add     flush   finish             fail, aborted, connection lost   release
    OPEN       queue   queue   FINISHED, drains   FAILED                           RELEASED
    FINISHED   –       –       –                  FAILED (until it is answered)    RELEASED
    FAILED     error   –       error              –                                RELEASED
    RELEASED   error   –       error              –                                –

When a pipelined partition of a client is flushed: every interval, unless its buffers go anyway.

A flush makes a message of each open buffer. What is still under way when the interval is over has
met a connection at its limit; if buffers become complete all the while as well, another flush would
mostly cut in two what is about to go whole. Then there is none before all that is under way has
gone, and a *pause* behind it, :data:`PAUSE_TIMES` times as long as that took: at most a third of
the time goes into flushing. What is flushed goes out at once, or buffers hardly ever become
complete: then nothing is put off, for a writer that is not at its limit wants its records early.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from sluice.protocol.errors import InvalidEvent, SluiceError
from sluice.protocol.limits import MAX_EVENT_BYTES
from sluice.protocol.messages import (
    BLOCKING_EVENT,
    DATA,
    EVENT,
    EVERY_SUBPARTITION,
    PRIORITY_EVENT,
    AbortPartition,
    FinishPartition,
    PipelinedData,
)
from sluice.shuffle.client.producer_leg import ProducerLeg
from sluice.shuffle.client.send_queue import SendQueue
from sluice.shuffle.errors import (
    InvalidRequest,
    PartitionAlreadyFinished,
    PartitionReleased,
    internal_error,
)
from sluice.shuffle.memory import LocalBufferPool, NetworkBuffer
from sluice.shuffle.partition.output_flusher import DEFAULT_INTERVAL_SECONDS, OutputFlusher
from sluice.shuffle.partition.result_partition_writer import (
    ALL_SUBPARTITIONS,
    BuilderSource,
    PartitionMemory,
)
from sluice.shuffle.partition.shared_buffer import BufferBuilder, BufferConsumer
from sluice.shuffle.partition.states import PartitionState

_log = logging.getLogger(__name__)


class PipelinedWriter(BuilderSource):
    """One task's output, on its way to a TaskManager. A ``ResultPartitionWriter``.

    Args:
        leg: The producer connection.
        number: Of the partition on that connection.
        num_subpartitions: Number of subpartitions, at least 1.
        pool: Memory; the partition owns it and destroys it.
        flusher: Told of open buffers; None if the writer flushes, or only full buffers shall go.
        task_event: Told of events that readers send back: their type and bytes.
    """

    def __init__(
        self,
        leg: ProducerLeg,
        number: int,
        num_subpartitions: int,
        pool: LocalBufferPool,
        *,
        flusher: OutputFlusher | None = None,
        task_event: Callable[[int, bytes], None] | None = None,
    ) -> None:
        self.number: Final = number
        self.num_subpartitions: Final = num_subpartitions
        self.state = PartitionState.OPEN
        self.memory = PartitionMemory(pool)
        self.credit = 0
        """Data buffers that the TaskManager can take now."""
        self.bytes_out = 0
        """Bytes of data sent; of a broadcast buffer once."""
        self.buffers_out = 0
        self.buffer_size_bytes: int | None = None
        """What readers ask buffers to be at most; None for whole segments."""
        self._leg = leg
        self._flusher = flusher
        self._task_event = task_event
        self._failure: SluiceError | None = None
        self._queue = SendQueue(self._send_available)
        self._pace = FlushPace(num_subpartitions)
        self._drained: asyncio.Future[None] | None = None
        self._answered: asyncio.Future[None] | None = None
        self._committed = False
        """The TaskManager has all of it: it needs no giving up any more."""

    # ---- ResultPartitionWriter -----------------------------------------------------------------

    def request_builder(self, subpartition: int) -> BufferBuilder | None:
        """Take a builder; None: no memory now.

        Raises:
            InvalidRequest: No such subpartition.
            SluiceError: Why the partition takes nothing more.
        """
        self._require_open()
        self._check_index(subpartition)
        buffer = self.memory.pool.request_buffer_nowait(subpartition)
        return None if buffer is None else self._builder(buffer, subpartition)

    def add_consumer(
        self, consumer: BufferConsumer, subpartition: int, partial_record_bytes: int = 0
    ) -> None:
        """Queue a buffer, complete or being filled; a broadcast one is sent and stored once.

        Raises:
            SluiceError: Why the partition takes nothing more; the consumer is closed.
        """
        try:
            self._require_open()
            self._check_index(subpartition)
        except SluiceError:
            consumer.close()
            raise
        self._queue.add(consumer, subpartition)
        if self._flusher is not None and self._queue.has_open_buffers:
            self._flusher.arm(self)

    def emit_event(self, payload: bytes, data_type: int, subpartition: int) -> None:
        """Queue an event; ``PRIORITY_EVENT`` overtakes, the others finish the open buffer first.

        Raises:
            InvalidRequest: No such subpartition or data type.
            InvalidEvent: It is longer than an event may be, or empty.
            TooManyEvents: More wait for the connection than are kept; this one is not queued.
            SluiceError: Why the partition takes nothing more.
        """
        self._require_open()
        self._check_index(subpartition)
        if data_type not in (EVENT, PRIORITY_EVENT, BLOCKING_EVENT):
            raise InvalidRequest(
                "Data type of an event",
                value=data_type,
                limit=f"{EVENT}, {PRIORITY_EVENT} or {BLOCKING_EVENT}",
            )
        if not 0 < len(payload) <= MAX_EVENT_BYTES:
            raise InvalidEvent("Length of an event", value=len(payload), limit=MAX_EVENT_BYTES)
        self._queue.add_event(payload, data_type, subpartition)

    def flush(self, subpartition: int) -> None:
        """Let what is committed in a subpartition's open buffer go."""
        if self.state is PartitionState.OPEN:
            self._queue.flush(subpartition)

    def flush_all(self) -> None:
        """Flush every subpartition."""
        if self.state is PartitionState.OPEN:
            self._queue.flush_all()

    async def finish(self) -> None:
        """Send what is left and end every subpartition; returns when the TaskManager has it all.

        That may be as long as its readers take: what does not fit in its pool waits here.

        Raises:
            SluiceError: The partition failed, or the connection was lost.

        Cancellation: the partition is to be released then.
        """
        if self.state is PartitionState.FINISHED:
            return
        self._require_open()
        self.state = PartitionState.FINISHED
        if self._flusher is not None:
            self._flusher.remove(self)
        self._queue.finish_open()
        loop = asyncio.get_running_loop()
        if len(self._queue):
            self._drained = loop.create_future()
            await self._drained
        self._answered = loop.create_future()
        self._leg.send(FinishPartition(self.number, self.bytes_out, 0))
        await self._leg.answer(self._answered, "FinishPartition")
        self._leg.forget(self.number)
        self.memory.pool.destroy()

    def fail(self, error: SluiceError) -> None:
        """End with an error, here and for the readers. Idempotent."""
        if self.state is PartitionState.OPEN:
            self._leg.send(AbortPartition(self.number))
            self.failed(error)

    def release(self) -> None:
        """Give everything up, memory included; an unfinished one fails for its readers."""
        if self.state is PartitionState.RELEASED:
            return
        if self.state is not PartitionState.FAILED and not self._committed:
            self._leg.send(AbortPartition(self.number))
        self._end(
            PartitionState.RELEASED,
            self._failure or PartitionReleased("Partition is released", value=self.number),
        )

    # ---- sluice.shuffle.partition.output_flusher.Flushable --------------------------------------

    def flush_open(self) -> int:
        """For the flusher: flush, if it is time to; return how many open buffers wait to be sent.

        At least 1 during a pause: the partition is not idle then.
        """
        queue, pace = self._queue, self._pace
        under_way = queue.unread_flushed()
        if not pace.is_due(under_way, queue.completed_buffers):
            return under_way or int(pace.is_pausing)
        queue.flush_all()
        waiting = queue.unread_flushed()
        pace.flushed(waiting - under_way)
        return waiting

    def finish_read_buffers(self) -> None:
        """For the flusher: finish the open buffers of which everything was sent."""
        self._queue.finish_open(only_sent=True)

    @property
    def has_open_buffers(self) -> bool:
        """Whether a buffer is still being filled."""
        return self._queue.has_open_buffers

    # ---- called by the leg ----------------------------------------------------------------------

    def credit_granted(self, credit: int) -> None:
        """The TaskManager can take more."""
        self.credit += credit
        self._send_available()

    def send(self) -> bool:
        """Send one buffer or event; return whether there may be more to send now."""
        entry = self._queue.next(self.credit)
        if entry is None:
            self._check_drained()
            return False
        subpartition, (payload, release, data_type) = entry
        wire_number = EVERY_SUBPARTITION if subpartition == ALL_SUBPARTITIONS else subpartition
        if data_type == DATA:
            self.credit -= 1
            self.bytes_out += len(payload)
            self.buffers_out += 1
        self._leg.send(PipelinedData(self.number, wire_number, data_type), payload, release)
        if self._queue.is_available(self.credit):
            return True
        self._check_drained()
        return False

    def finished(self) -> None:
        """The TaskManager has everything, and readers will find its end."""
        self._committed = True
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(None)

    def failed(self, error: SluiceError) -> None:
        """The TaskManager gave the partition up, or is gone."""
        if self.state in (PartitionState.OPEN, PartitionState.FINISHED) and not self._committed:
            self._end(PartitionState.FAILED, error)

    def region_opened(self, payload_bytes: int) -> None:
        """Pipelined partitions have no regions."""

    def new_buffer_size(self, size_bytes: int) -> None:
        """Readers want buffers of at most this size (debloating)."""
        self.buffer_size_bytes = size_bytes

    def task_event_received(self, event_type: int, payload: bytes) -> None:
        """A reader sent an event back."""
        if self._task_event is None:
            return
        try:
            self._task_event(event_type, payload)
        except Exception as error:  # noqa: BLE001
            # The task's own code: it must end this partition, and no other on the connection.
            if not isinstance(error, SluiceError):
                _log.exception("task event handler of partition %d failed", self.number)
                error = internal_error(error)
            self.fail(error)

    # ---- inside ---------------------------------------------------------------------------------

    def _send_available(self) -> None:
        if self._queue.is_available(self.credit):
            self._leg.queue(self)

    def _check_drained(self) -> None:
        drained = self._drained
        if drained is not None and not len(self._queue) and not drained.done():
            drained.set_result(None)

    @property
    def _is_writable(self) -> bool:
        return self.state is PartitionState.OPEN

    def _builder(self, buffer: NetworkBuffer, subpartition: int) -> BufferBuilder:
        builder = BufferBuilder(buffer)
        if self.buffer_size_bytes is not None:
            builder.trim(self.buffer_size_bytes)
        return builder

    def _make_room(self) -> None:
        """Before waiting: the open buffers must not hold all the memory, or nothing ever moves."""
        if self.memory.pool.size_segments <= self.num_subpartitions:
            self._queue.finish_open()

    def _require_open(self) -> None:
        if self.state is not PartitionState.OPEN:
            raise self._refusal()

    def _refusal(self) -> SluiceError:
        if self._failure is not None:
            return self._failure.with_traceback(None)  # its frames would pile up
        return PartitionAlreadyFinished(
            "Nothing can be added to a finished partition", value=self.number
        )

    def _check_index(self, subpartition: int) -> None:
        if not ALL_SUBPARTITIONS <= subpartition < self.num_subpartitions:
            raise InvalidRequest(
                "Partition has no such subpartition",
                value=subpartition,
                limit=self.num_subpartitions - 1,
            )

    def _end(self, state: PartitionState, error: SluiceError) -> None:
        self.state = state
        self._failure = error
        if self._flusher is not None:
            self._flusher.remove(self)
        self._queue.clear()
        self._leg.forget(self.number)
        self.memory.pool.destroy()
        for waiting in (self._drained, self._answered):
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # retrieved: the task that waits may have been cancelled


PAUSE_TIMES: Final = 2
"""How long a pause is, in times of what the flushed buffers before it took to go."""

MOST_PAUSE_SECONDS: Final = DEFAULT_INTERVAL_SECONDS
"""Longest pause, for flushed buffers that took long because nobody read."""

FLUSHED_FOR_A_COMPLETE_ONE: Final = 4
"""Buffers flushed for each that becomes complete, from which on flushing serves a purpose."""


class FlushPace:
    """Says, interval by interval, whether to flush.

    Args:
        subpartitions: Of the partition; what so many buffers did is what counts. They may all
            become complete together and then none for a while, as when they are written in turn.
        clock: Tells the time in seconds.
    """

    __slots__ = ("_balance", "_clock", "_complete", "_most", "_pause_ends", "_waits_since")

    def __init__(self, subpartitions: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._most = subpartitions
        self._balance = 0.0
        """Buffers that became complete, less what the flushed ones stand for."""
        self._complete = 0
        self._waits_since: float | None = None
        """There is no flush since then, until all that is under way has gone."""
        self._pause_ends: float | None = None

    @property
    def is_pausing(self) -> bool:
        """Whether a flush is put off though nothing is under way."""
        return self._pause_ends is not None

    def is_due(self, under_way: int, complete: int) -> bool:
        """Tell whether to flush now; asked once an interval.

        Args:
            under_way: Flushed buffers that have not gone.
            complete: Buffers that have become complete so far.
        """
        self._balance = min(self._balance + complete - self._complete, self._most)
        self._complete = complete
        if under_way:
            if self._waits_since is None and self._balance > 0:
                self._waits_since = self._clock()
            return self._waits_since is None
        if self._waits_since is not None:
            now = self._clock()
            pause_seconds = min(PAUSE_TIMES * (now - self._waits_since), MOST_PAUSE_SECONDS)
            self._pause_ends = now + pause_seconds
            self._waits_since = None
            return False
        if self._pause_ends is not None and self._clock() < self._pause_ends:
            return False
        self._pause_ends = None
        return True

    def flushed(self, buffers: int) -> None:
        """Take note of how many buffers a flush has put on their way."""
        self._balance = max(self._balance - buffers / FLUSHED_FOR_A_COMPLETE_ONE, -self._most)
