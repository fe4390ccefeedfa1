"""A subpartition that is read once, while it is being written, and the view that reads it.

It is a queue of buffers, complete ones and at its end perhaps one that is still being filled (the
*open* one). An event is a complete buffer of another type. Its states are in
:mod:`sluice.shuffle.partition.partition_states`.

**What a reader may take**: every complete buffer; the flushed bytes of the open one; a priority
event before everything else; after FINISHED, when the queue is empty, the end. After a blocking
event it may take nothing until consumption is resumed. ``backlog`` counts these, except priority
events and the end.

**When the reader is notified**: if it could take nothing and now can. That happens when

- the number of complete buffers becomes 1: a complete one is added, or the open one is finished,
- a flush finds unread bytes in the open buffer and nothing before it,
- the end comes into a queue of which nothing could be taken,
- consumption is resumed and there is something.

From then on the reader *knows*, until it has taken all there is: it looks again after each buffer
and when it gets credit. One exception: a priority event may be taken on account
(:mod:`sluice.protocol.credit`), so a reader that knows of data but has no credit for it is notified
of the first one.
"""

from collections import deque
from typing import Final

from ...protocol.credit import MAX_OVERDRAFT_EVENTS
from ...protocol.errors import ErrorCode, SluiceError
from ...protocol.events import encode_end_of_partition
from ...protocol.schema import BLOCKING_EVENT, DATA, EVENT, PRIORITY_EVENT
from ..errors import InvalidRequest, PartitionAlreadyFinished, PartitionReleased
from .partition_states import SubpartitionState
from .shared_buffer import BufferBuilder, BufferConsumer
from .view import DataListener, OutgoingBuffer, PipelinedView, SubpartitionOwner


class PipelinedSubpartition:
    """The queue between one producer and one reader.

    Args:
        index: The number in the partition.
        owner: Notified when the view is released.
    """

    __slots__ = (
        "_blocked",
        "_complete",
        "_end_taken",
        "_failure",
        "_flushed",
        "_open",
        "_owner",
        "_priority",
        "_queue",
        "_reader_knows",
        "_view",
        "completed_buffers",
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
        self.completed_buffers = 0  # that were open before
        self._owner: SubpartitionOwner | None = owner
        self._queue: deque[BufferConsumer] = deque()
        self._priority: deque[BufferConsumer] = deque()
        # Complete buffers in the queue. Each has unread bytes, for empty ones are not kept.
        self._complete = 0
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

        A priority event comes before all but other priority events.

        Raises:
            PartitionAlreadyFinished: The consumer is closed.
        """
        if self.state is not SubpartitionState.OPEN:
            consumer.close()
            self._refuse_if_finished()
            return
        if consumer.data_type == PRIORITY_EVENT:
            self._priority.append(consumer)
            if len(self._priority) == 1:
                self._tell_reader(again=True)
            return
        if self._open is not None:
            self.finish_open()
        builder = consumer.builder
        if builder is not None and not builder.is_finished:
            self._queue.append(consumer)
            self._open = consumer
            builder.add_finish_listener(self._open_finished)
        elif consumer.has_unread:
            self._queue.append(consumer)
            self._complete += 1
            self._tell_reader()
        else:
            consumer.close()

    def extend_last(self, data: memoryview) -> bool:
        """Copy bytes into the last buffer; False if that is open, taken or has no room.

        A slow reader then finds few full buffers instead of many flushed ones.
        """
        if self._open is not None or not self._queue:
            return False
        last = self._queue[-1]
        return last.data_type == DATA and last.extend(data)

    def flush(self) -> None:
        """Let the reader take the bytes that are committed in the open buffer."""
        consumer = self._open
        if consumer is not None and not self._flushed and consumer.has_unread:
            self._flushed = True
            self._tell_reader()

    def finish(self) -> None:
        """End the subpartition. Idempotent."""
        if self.state is not SubpartitionState.OPEN:
            return
        self.finish_open()
        self.state = SubpartitionState.FINISHED
        self._tell_reader()

    def release(self, failure: SluiceError | None = None) -> BufferBuilder | None:
        """Release all buffers; a reader that has not reached the end gets the failure.

        Args:
            failure: The reason; by default, the release. Of several reasons the first one counts.

        Returns:
            The builder of the open buffer, if any. Finish it, so that it holds no memory, after
            every subpartition that shares it is released: none of them is notified of its end then.
        """
        if self.state is SubpartitionState.RELEASED:
            return None
        builder = self._drop_all(failure, "The pipelined partition was released")
        view = self._view
        if view is not None and not self._end_taken:
            view.failure = self._failure
            view.listener()
        if view is None:
            self._owner = None  # nobody will release a view
        return builder

    @property
    def has_open_buffer(self) -> bool:
        """Whether the last buffer is still being filled, so that a flush may have an effect."""
        return self._open is not None

    @property
    def has_flushed_bytes(self) -> bool:
        """Whether flushed bytes of the open buffer wait to be read."""
        return self._flushed

    @property
    def is_read(self) -> bool:
        """Whether the reader has taken the end."""
        return self._end_taken

    @property
    def queued_buffers(self) -> int:
        """Buffers and events in the queue."""
        return len(self._queue) + len(self._priority)

    def finish_open(self) -> None:
        """Finish the open buffer, if there is one, so that it can be read and recycled."""
        if self._open is not None and self._open.builder is not None:
            self._open.builder.finish()  # calls _open_finished, here and in a broadcast's others

    # ---- the reader --------------------------------------------------------------------------

    def create_view(self, listener: DataListener) -> PipelinedView:
        """Make the one view. Its listener is called at once if there is something to read.

        Raises:
            SluiceError: The subpartition failed or is released, or its reader is gone.
            SUBPARTITION_IN_USE: The subpartition has its view.
        """
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self._view is not None:
            raise SluiceError(
                "A pipelined subpartition is read once, and it has its reader",
                code=ErrorCode.SUBPARTITION_IN_USE,
                value=f"subpartition {self.index}",
                remedy="Read it through one channel, or write the partition as BLOCKING",
            )
        view = self._view = self._make_view(listener)
        if self.is_available(1):
            self._tell_reader()
        return view

    @property
    def needs_segments(self) -> bool:
        """Whether a reader needs segments of its own; False: all buffers are in memory."""
        return False

    @property
    def backlog(self) -> int:
        """Buffers and events that a reader with enough credit could take, without priority ones."""
        if self._blocked:
            return 0
        return self._complete + 1 if self._flushed else self._complete

    @property
    def has_priority_event(self) -> bool:
        """Whether the next buffer is an event that overtakes data."""
        return bool(self._priority) and not self._blocked

    def is_available(self, credit: int) -> bool:
        """Whether the reader could take something with that much credit."""
        if self._blocked:
            return False
        if self._priority:
            return credit > -MAX_OVERDRAFT_EVENTS
        if self._queue:
            return credit > 0 and (self._flushed or self._queue[0] is not self._open)
        return self.state is SubpartitionState.FINISHED and not self._end_taken

    def poll(self, credit: int) -> OutgoingBuffer | None:
        """Take the next buffer or event; None if that much credit is enough for nothing."""
        if self._blocked:
            return None
        queue = self._queue
        if self._priority:
            if credit <= -MAX_OVERDRAFT_EVENTS:
                return None
            buffer = _event_of(self._priority.popleft())
        elif queue:
            if credit <= 0:
                return None
            head = queue[0]
            if head is not self._open:
                queue.popleft()
                self._complete -= 1
                if head.data_type != DATA:
                    self._blocked = head.data_type == BLOCKING_EVENT
                    self._reader_knows = self.is_available(1)
                    return _event_of(head)
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
        elif self.state is SubpartitionState.FINISHED and not self._end_taken:
            self._end_taken = True
            end = encode_end_of_partition(self.total_bytes, self.total_buffers)
            buffer = OutgoingBuffer(end, None, EVENT)
        else:
            return None
        self._reader_knows = self.is_available(1)
        return buffer

    def resume(self) -> None:
        """Resume after a blocking event; see the view's ``resume_consumption``."""
        if self._blocked:
            self._blocked = False
            if self.is_available(1):
                self._tell_reader()
        elif self.state is not SubpartitionState.RELEASED:  # of which the reader may not know yet
            raise InvalidRequest("Channel is not blocked: nothing to resume", value=self.index)

    def view_released(self) -> None:
        """Drop all buffers: the reader is gone, perhaps before the end."""
        if self.state is not SubpartitionState.RELEASED:
            builder = self._drop_all(None, "The reader of the subpartition is gone")
            if builder is not None:
                builder.finish()
        owner, self._owner, self._view = self._owner, None, None
        if owner is not None:
            owner.subpartition_consumed(self.index)

    # ---- inside ------------------------------------------------------------------------------

    def _make_view(self, listener: DataListener) -> "PipelinedSubpartitionView":
        return PipelinedSubpartitionView(self, listener)

    def _tell_reader(self, *, again: bool = False) -> None:
        view = self._view
        if view is not None and not self._blocked and (again or not self._reader_knows):
            self._reader_knows = True
            view.listener()

    def _open_finished(self) -> None:
        """Count the open buffer as complete (called by its builder, when that is finished)."""
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
        self.completed_buffers += 1
        self._tell_reader()

    def _refuse_if_finished(self) -> None:
        if self.state is SubpartitionState.FINISHED:
            raise PartitionAlreadyFinished(
                "Nothing can be added to a finished subpartition", value=self.index
            )

    def _drop_all(self, failure: SluiceError | None, reason: str) -> BufferBuilder | None:
        self.state = SubpartitionState.RELEASED
        self._failure = failure or PartitionReleased(reason, value=f"subpartition {self.index}")
        queue, self._queue = self._queue, deque()
        priority, self._priority = self._priority, deque()
        unfinished, self._open = self._open, None
        self._complete = 0
        self._flushed = self._blocked = False
        for consumer in (*priority, *queue):
            consumer.close()
        return None if unfinished is None else unfinished.builder


def _event_of(consumer: BufferConsumer) -> OutgoingBuffer:
    """Take an event out of its buffer, which is free then: an event is short."""
    piece = consumer.build_last()
    event = OutgoingBuffer(bytes(piece.payload), None, consumer.data_type)
    piece.recycle()
    return event


class PipelinedSubpartitionView:
    """The reader's side of a subpartition, a :class:`~sluice.shuffle.partition.view.PipelinedView`.

    Attributes:
        failure: Why nothing more will come, once that is so; set by the subpartition.
        listener: Called when the reader, which could take nothing, can take something.
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
        """Buffers and events that wait to be taken, without priority ones."""
        return self._subpartition.backlog

    @property
    def holds_segments(self) -> bool:
        """True: what the reader does not take stays in the partition's pool."""
        return True

    @property
    def has_priority_event(self) -> bool:
        """True if the next buffer is an event that overtakes data."""
        return self._subpartition.has_priority_event

    def is_available(self, credit: int) -> bool:
        """True if that much credit is enough for the next buffer; the end needs none."""
        return self._subpartition.is_available(credit)

    def next_buffer(self, credit: int) -> OutgoingBuffer | None:
        """Take the next buffer, which is the producer's own; None if there is none yet.

        Raises:
            SluiceError: The partition failed or was released by its producer.
        """
        if self.failure is not None:
            raise self.failure.with_traceback(None)  # its frames would keep buffers alive
        return self._subpartition.poll(credit)

    def take_more(self, most_bytes: int) -> OutgoingBuffer | None:
        """Return None: each buffer that is read makes room for another, so none are joined."""
        return None

    def resume_consumption(self) -> None:
        """Resume after a blocking event.

        Raises:
            InvalidRequest: The reader has not taken a blocking event.
        """
        if not self._released:
            self._subpartition.resume()

    def release(self) -> None:
        """Stop reading, at the end or before; buffers taken stay valid. Idempotent."""
        if not self._released:
            self._released = True
            self._subpartition.view_released()
