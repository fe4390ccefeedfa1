"""A subpartition that is read once, while it is being written.

It is a queue of buffers, complete ones and at its end perhaps one that is still being filled (the
*open* one), and of events between them. Its states are in ``pipelined_states``.

**What a reader may take**: every complete buffer; of the open one, once it was flushed, what is
there; every event in its turn; a priority event before everything else; after FINISHED, when the
queue is empty, the end. After a blocking event nothing, until consumption is resumed. ``backlog``
counts the data buffers among that.

**When the reader is told** : if it could take nothing and now can. That happens when

- the number of complete buffers becomes 1: a complete one is added, or the open one is finished,
- a flush finds unread bytes in the open buffer and nothing before it,
- an event, or the end, comes into a queue of which nothing could be taken,
- consumption is resumed and there is something.

From then on the reader *knows*, until it has taken all there is: it looks again after each buffer
and when it gets credit. One exception: a priority event may be taken without credit, so a reader
that knows of data but has no credit for it is told of the first one.
"""

from collections import deque
from typing import Final, NamedTuple

from sluice.protocol.errors import SluiceError
from sluice.protocol.events import encode_end_of_partition
from sluice.protocol.limits import MAX_U32
from sluice.protocol.messages import BLOCKING_EVENT, DATA, EVENT, PRIORITY_EVENT
from sluice.shuffle.errors import (
    InvalidRequest,
    PartitionAlreadyFinished,
    PartitionReleased,
    SubpartitionAlreadyConsumed,
    TooManyEvents,
)
from sluice.shuffle.partition.shared_buffer import BufferBuilder, BufferConsumer
from sluice.shuffle.partition.states import SubpartitionOwner, SubpartitionState
from sluice.shuffle.partition.view import DataListener, OutgoingBuffer

MAX_QUEUED_EVENTS: Final = 1024
"""Events that may wait in a subpartition. They cost no credit and no pool, so that something else
must bound them; 1 MiB at the most, and hundreds of checkpoints behind."""


def check_buffer_size(size_bytes: int) -> None:
    """Refuse a size that no buffer can have.

    Raises:
        InvalidRequest: Less than 1 byte.
    """
    if size_bytes < 1:
        raise InvalidRequest("Buffer size", value=size_bytes, limit="at least 1 byte")


class _Event(NamedTuple):
    payload: bytes
    data_type: int


class PipelinedSubpartition:
    """The queue between one producer and one reader.

    Args:
        index: Its number in the partition.
        owner: Told when the reader is done, and what it wishes.
    """

    __slots__ = (
        "_blocked",
        "_complete",
        "_end_taken",
        "_events",
        "_failure",
        "_flushed",
        "_open",
        "_owner",
        "_priority",
        "_queue",
        "_reader_knows",
        "_view",
        "buffer_size_bytes",
        "index",
        "state",
        "total_buffers",
        "total_bytes",
    )

    def __init__(self, index: int, owner: SubpartitionOwner) -> None:
        self.index: Final = index
        self.state = SubpartitionState.OPEN
        self.total_bytes = 0
        """Bytes of data that the reader has taken."""
        self.total_buffers = 0
        """Data buffers that the reader has taken; a flushed buffer may be taken in parts."""
        self.buffer_size_bytes: int | None = None
        """What the reader wants its buffers to hold at most; None for whole segments."""
        self._owner = owner
        self._queue: deque[BufferConsumer | _Event] = deque()
        self._priority: deque[_Event] = deque()
        # Complete buffers in the queue. Each has unread bytes, for empty ones are not kept.
        self._complete = 0
        self._events = 0  # in both queues
        # The last of the queue, if that is a buffer still being filled; it may have nothing unread.
        self._open: BufferConsumer | None = None
        self._flushed = False  # there is an open buffer, and bytes in it that may be taken
        self._blocked = False
        self._end_taken = False
        self._reader_knows = False
        self._view: PipelinedSubpartitionView | None = None
        self._failure: SluiceError | None = None

    # ---- the producer ------------------------------------------------------------------------

    def add(self, consumer: BufferConsumer) -> None:
        """Queue a buffer, complete or still being filled, and finish the open one before it.

        Raises:
            PartitionAlreadyFinished: The consumer is closed.
        """
        if self.state is not SubpartitionState.OPEN:
            consumer.close()
            self._refuse_if_finished()
            return
        if self._open is not None:
            self._finish_open()
        builder = consumer.builder
        if builder is not None and not builder.is_finished:
            self._queue.append(consumer)
            self._open = consumer
            builder.add_finish_listener(self._open_finished)
        elif consumer.has_unread:
            self._queue.append(consumer)
            self._complete += 1
            if not self._reader_knows:
                self._tell_reader()
        else:
            consumer.close()

    def extend_last(self, data: memoryview) -> bool:
        """Copy bytes into the last buffer, if it waits complete and has room; else return False.

        A reader that is slow then finds few full buffers in the place of many flushed ones.
        """
        if self._open is not None or not self._queue:
            return False
        last = self._queue[-1]
        most_bytes = self.buffer_size_bytes
        return isinstance(last, BufferConsumer) and last.extend(
            data, MAX_U32 if most_bytes is None else most_bytes
        )

    def add_event(self, payload: bytes, data_type: int) -> None:
        """Queue an event; a priority event comes before all but other priority events.

        Raises:
            PartitionAlreadyFinished: Too late.
            TooManyEvents: The reader leaves too many of them waiting.
        """
        if self.state is not SubpartitionState.OPEN:
            self._refuse_if_finished()
            return
        if self._events >= MAX_QUEUED_EVENTS:
            raise TooManyEvents(
                "More events wait for a reader than are kept",
                value=self._events + 1,
                limit=MAX_QUEUED_EVENTS,
                remedy="The reader does not read; send what is frequent as data",
            )
        self._events += 1
        event = _Event(payload, data_type)
        if data_type == PRIORITY_EVENT:
            self._priority.append(event)
            if len(self._priority) == 1:
                self._tell_reader()
            return
        if self._open is not None:
            self._finish_open()
        self._queue.append(event)
        if not self._reader_knows:
            self._tell_reader()

    def flush(self) -> None:
        """Let the reader take what is in the open buffer by now."""
        consumer = self._open
        if consumer is None or self._flushed or not consumer.has_unread:
            return
        self._flushed = True
        if not self._reader_knows:
            self._tell_reader()

    def finish(self) -> None:
        """End the subpartition; idempotent."""
        if self.state is not SubpartitionState.OPEN:
            return
        if self._open is not None:
            self._finish_open()
        self.state = SubpartitionState.FINISHED
        if not self._reader_knows:
            self._tell_reader()

    def release(self, failure: SluiceError | None = None) -> BufferBuilder | None:
        """Give all buffers up; a reader that has not come to the end gets the failure.

        Args:
            failure: Why; PartitionReleased if there is no better reason. The first one counts.

        Returns:
            The builder of the open buffer, if any: to be finished, so that it holds no memory, when
            no subpartition that shares it is to be told of that any more.
        """
        if self.state is SubpartitionState.RELEASED:
            return None
        self.state = SubpartitionState.RELEASED
        self._failure = failure or PartitionReleased(
            "The pipelined partition was released", value=f"subpartition {self.index}"
        )
        builder = self._drop_all()
        view = self._view
        if view is not None and not self._end_taken:
            view.failure = self._failure
            view.listener()
        return builder

    @property
    def has_open_buffer(self) -> bool:
        """Whether the last buffer is still being filled, so that flushing may be of use."""
        return self._open is not None

    @property
    def has_flushed_bytes(self) -> bool:
        """Whether bytes of the open buffer were flushed and wait to be read."""
        return self._flushed

    @property
    def queued_buffers(self) -> int:
        """Buffers and events in the queue."""
        return len(self._queue) + len(self._priority)

    def finish_open(self) -> None:
        """Finish the open buffer, if there is one, so that it can be read and recycled."""
        if self._open is not None:
            self._finish_open()

    # ---- the reader --------------------------------------------------------------------------

    def create_view(self, listener: DataListener) -> "PipelinedSubpartitionView":
        """Make the one view. Its listener is called at once if there is something to read.

        Raises:
            SubpartitionAlreadyConsumed: There is one, or was.
            SluiceError: The subpartition failed or is released.
        """
        if self._view is not None:
            raise SubpartitionAlreadyConsumed(
                "A pipelined subpartition is read once and has its reader",
                value=f"subpartition {self.index}",
                remedy="Read it through one channel, or make the partition blocking",
            )
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        view = self._view = PipelinedSubpartitionView(self, listener)
        if self.is_available(1):
            self._tell_reader()
        return view

    @property
    def backlog(self) -> int:
        """Data buffers that a reader with enough credit could take."""
        if self._blocked:
            return 0
        return self._complete + 1 if self._flushed else self._complete

    @property
    def has_priority_event(self) -> bool:
        """Whether the next one is an event that overtakes data."""
        return bool(self._priority) and not self._blocked

    def is_available(self, credit: int) -> bool:
        """Whether the reader could take something with that much credit."""
        if self._blocked:
            return False
        if self._priority:
            return True
        if self._queue:
            head = self._queue[0]
            if type(head) is _Event:
                return True
            return credit > 0 and (self._flushed or head is not self._open)
        return self.state is SubpartitionState.FINISHED and not self._end_taken

    def poll(self, credit: int) -> OutgoingBuffer | None:
        """Take the next buffer or event; None if there is none for that much credit."""
        if self._blocked:
            return None
        queue = self._queue
        buffer: OutgoingBuffer
        if self._priority:
            event = self._priority.popleft()
            self._events -= 1
            buffer = OutgoingBuffer(event.payload, None, PRIORITY_EVENT)
        elif queue:
            head = queue[0]
            if isinstance(head, BufferConsumer):
                if credit <= 0:
                    return None
                if head is not self._open:
                    queue.popleft()
                    self._complete -= 1
                    piece = head.build_last()
                elif self._flushed:
                    self._flushed = False
                    piece = head.build()
                else:
                    return None
                payload = piece.payload
                self.total_bytes += len(payload)
                self.total_buffers += 1
                buffer = OutgoingBuffer(payload, piece.recycle, DATA)
            else:
                queue.popleft()
                self._events -= 1
                self._blocked = head.data_type == BLOCKING_EVENT
                buffer = OutgoingBuffer(head.payload, None, head.data_type)
        elif self.state is SubpartitionState.FINISHED and not self._end_taken:
            self._end_taken = True
            end = encode_end_of_partition(self.total_bytes, self.total_buffers)
            buffer = OutgoingBuffer(end, None, EVENT)
        else:
            return None
        self._reader_knows = self.is_available(1)
        return buffer

    def resume(self) -> None:
        """Go on after a blocking event.

        Raises:
            InvalidRequest: The reader has met none.
        """
        if not self._blocked:
            if self.state is SubpartitionState.RELEASED:
                return  # the reader does not know yet
            raise InvalidRequest("Channel is not blocked: nothing to resume", value=self.index)
        self._blocked = False
        if self.is_available(1):
            self._tell_reader()

    def announce_buffer_size(self, size_bytes: int) -> None:
        """Make the next buffers no larger than this.

        Raises:
            InvalidRequest: Less than 1 byte.
        """
        check_buffer_size(size_bytes)
        self.buffer_size_bytes = size_bytes
        self._owner.buffer_size_announced(self.index, size_bytes)

    def view_released(self) -> None:
        """The reader is gone, perhaps before the end: nobody will read what is here."""
        if self.state is not SubpartitionState.RELEASED:
            self.state = SubpartitionState.RELEASED
            self._failure = PartitionReleased(
                "The reader of the subpartition is gone", value=f"subpartition {self.index}"
            )
            builder = self._drop_all()
            if builder is not None:
                builder.finish()
        self._owner.subpartition_consumed(self.index)

    # ---- inside ------------------------------------------------------------------------------

    def _tell_reader(self) -> None:
        view = self._view
        if view is None or self._blocked:
            return
        self._reader_knows = True
        view.listener()

    def _finish_open(self) -> None:
        if self._open is not None and self._open.builder is not None:
            self._open.builder.finish()  # calls _open_finished, here and in a broadcast's others

    def _open_finished(self) -> None:
        """The open buffer is complete (its builder's finish listener)."""
        consumer = self._open
        if consumer is None:  # released meanwhile
            return
        self._open = None
        self._flushed = False
        if not consumer.has_unread:  # nothing was written, or the reader has had it all
            self._queue.pop()
            consumer.close()
            return
        self._complete += 1
        if not self._reader_knows:
            self._tell_reader()

    def _refuse_if_finished(self) -> None:
        if self.state is SubpartitionState.FINISHED:
            raise PartitionAlreadyFinished(
                "Nothing can be added to a finished subpartition", value=self.index
            )

    def _drop_all(self) -> BufferBuilder | None:
        queue, self._queue = self._queue, deque()
        unfinished, self._open = self._open, None
        self._priority.clear()
        self._complete = self._events = 0
        self._flushed = self._blocked = False
        for entry in queue:
            if isinstance(entry, BufferConsumer):
                entry.close()
        return None if unfinished is None else unfinished.builder


class PipelinedSubpartitionView:
    """The reader's side, a :class:`~sluice.shuffle.partition.view.PipelinedView`.

    Attributes:
        failure: Why nothing more will come, if so; set by the subpartition.
        listener: Called when there is something where there was nothing.
    """

    __slots__ = ("_released", "_subpartition", "failure", "listener")

    is_local = True

    def __init__(self, subpartition: "PipelinedSubpartition", listener: DataListener) -> None:
        self.failure: SluiceError | None = None
        self.listener: Final = listener
        self._subpartition = subpartition
        self._released = False

    @property
    def backlog(self) -> int:
        """Data buffers that wait to be taken."""
        return self._subpartition.backlog

    @property
    def has_priority_event(self) -> bool:
        """True if the next one is an event that overtakes data."""
        return self._subpartition.has_priority_event

    def is_available(self, credit: int) -> bool:
        """True if there is something for that much credit; events need none."""
        return self._subpartition.is_available(credit)

    def next_buffer(self, credit: int) -> OutgoingBuffer | None:
        """Take the next buffer, which is the producer's own; None if there is none yet.

        Raises:
            SluiceError: The partition failed or was released by its producer.
        """
        if self.failure is not None:
            # Without the frames of the last time, which would pile up and keep buffers alive.
            raise self.failure.with_traceback(None)
        return self._subpartition.poll(credit)

    def resume_consumption(self) -> None:
        """Go on after a blocking event.

        Raises:
            InvalidRequest: The reader has met none.
        """
        if not self._released:
            self._subpartition.resume()

    def notify_new_buffer_size(self, size_bytes: int) -> None:
        """Ask for buffers of at most this size from now on.

        Raises:
            InvalidRequest: Less than 1 byte.
        """
        if not self._released:
            self._subpartition.announce_buffer_size(size_bytes)

    def release(self) -> None:
        """Give up reading, whether at the end or before; buffers taken stay valid. Idempotent."""
        if not self._released:
            self._released = True
            self._subpartition.view_released()
