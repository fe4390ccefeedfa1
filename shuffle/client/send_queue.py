"""The queue of all that a pipelined partition has to send, for all its subpartitions.

A client has one connection for all subpartitions and one credit account for all of a partition's
buffers, so one queue is enough; and a broadcast buffer goes over it once. Complete and flushed
buffers wait in the queue; an event is a complete buffer. A buffer that is being filled is *open*:
at most one of each subpartition, and none beside an open broadcast buffer. A buffer or event that
is added behind an open buffer finishes it first, so the order of every channel is kept although
subpartitions overtake one another.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ...protocol.credit import MAX_OVERDRAFT_EVENTS
from ...protocol.schema import PRIORITY_EVENT
from ..partition.result_partition_writer import ALL_SUBPARTITIONS
from ..partition.shared_buffer import BufferConsumer
from ..partition.view import OutgoingBuffer


class Outgoing(NamedTuple):
    """One message to send: a buffer or event, and its subpartition."""

    subpartition: int
    buffer: OutgoingBuffer


class _QueuedItem(NamedTuple):
    subpartition: int
    consumer: BufferConsumer
    partly: bool
    """Whether the buffer is open and was flushed: its later bytes follow in another entry."""


class SendQueue:
    """Buffers and events on their way to a TaskManager.

    Args:
        available: Called when the queue had nothing to send and now has something.
    """

    def __init__(self, available: Callable[[], None]) -> None:
        self._available = available
        self._ready: deque[_QueuedItem] = deque()
        self._open: dict[int, BufferConsumer] = {}
        self._flushed: set[BufferConsumer] = set()
        self.completed_buffers = 0
        """Number of open buffers that became complete, mostly because they were full."""

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def has_open_buffers(self) -> bool:
        """Whether a buffer is still being filled."""
        return bool(self._open)

    def add(self, consumer: BufferConsumer, subpartition: int) -> None:
        """Queue a buffer, complete or being filled; finish the open ones before it.

        A priority event overtakes, and finishes none.
        """
        if consumer.data_type == PRIORITY_EVENT:
            self._overtake(_QueuedItem(subpartition, consumer, partly=False))
            return
        self._finish_before(subpartition)
        builder = consumer.builder
        if builder is None or builder.is_finished:
            self._put(_QueuedItem(subpartition, consumer, partly=False))
            return
        self._open[subpartition] = consumer
        builder.add_finish_listener(partial(self._completed, subpartition, consumer))

    def flush(self, subpartition: int) -> None:
        """Queue the committed bytes of an open buffer; no effect if they are queued already.

        A subpartition's open buffer may be the one that is open for all of them.
        """
        for number in (subpartition, ALL_SUBPARTITIONS):
            consumer = self._open.get(number)
            if consumer is not None and consumer not in self._flushed and consumer.has_unread:
                self._flushed.add(consumer)
                self._put(_QueuedItem(number, consumer, partly=True))

    def flush_all(self) -> None:
        """Flush every open buffer. The flusher calls this often, so it looks at each only once."""
        flushed = self._flushed
        for subpartition, consumer in self._open.items():
            if consumer not in flushed and consumer.has_unread:
                flushed.add(consumer)
                self._put(_QueuedItem(subpartition, consumer, partly=True))

    def unread_flushed(self) -> int:
        """Return the number of open buffers whose flushed bytes still wait."""
        return len(self._flushed)

    def finish_open(self, *, only_sent: bool = False) -> None:
        """Finish open buffers.

        Args:
            only_sent: Finish only those of which every byte has been sent.
        """
        for consumer in list(self._open.values()):
            if consumer.builder is not None and not (only_sent and consumer.has_unread):
                consumer.builder.finish()

    def next(self, credit: int) -> Outgoing | None:
        """Take the next buffer or event to send; None if there is none, or no credit for it."""
        ready = self._ready
        while ready:
            entry = ready[0]
            subpartition, consumer, partly = entry
            has_unread = consumer.has_unread  # otherwise all of it went with a flush
            if has_unread and credit <= _least_credit(consumer):
                return None
            ready.popleft()
            if partly:
                self._flushed.discard(consumer)
            elif not has_unread:
                consumer.close()
            if has_unread:
                taken = consumer.build() if partly else consumer.build_last()
                return Outgoing(
                    subpartition, OutgoingBuffer(taken.payload, taken.recycle, taken.data_type)
                )
        return None

    def is_available(self, credit: int) -> bool:
        """Whether :meth:`next` could give something for that much credit."""
        ready = self._ready
        if not ready:
            return False
        consumer = ready[0].consumer
        return credit > _least_credit(consumer) or not consumer.has_unread

    def clear(self) -> None:
        """Drop everything and release its memory."""
        ready, self._ready = self._ready, deque()
        opened, self._open = self._open, {}
        self._flushed.clear()
        for consumer in opened.values():
            if consumer.builder is not None:
                consumer.builder.finish()
            consumer.close()
        for entry in ready:
            entry.consumer.close()

    def _finish_before(self, subpartition: int) -> None:
        if subpartition == ALL_SUBPARTITIONS:
            self.finish_open()
            return
        for number in (subpartition, ALL_SUBPARTITIONS):
            consumer = self._open.get(number)
            if consumer is not None and consumer.builder is not None:
                consumer.builder.finish()

    def _completed(self, subpartition: int, consumer: BufferConsumer) -> None:
        """Move a buffer that has just been finished from the open ones to the queue."""
        if self._open.get(subpartition) is consumer:
            del self._open[subpartition]
            self.completed_buffers += 1
            self._flushed.discard(consumer)  # its last entry has all bytes that are left
            self._put(_QueuedItem(subpartition, consumer, partly=False))

    def _overtake(self, entry: _QueuedItem) -> None:
        """Queue a priority event behind those that wait already, and before all else."""
        place = 0
        for waiting in self._ready:
            if waiting.consumer.data_type != PRIORITY_EVENT:
                break
            place += 1
        self._ready.insert(place, entry)
        if place == 0:  # data at the head may have waited for credit, which this does not need
            self._available()

    def _put(self, entry: _QueuedItem) -> None:
        self._ready.append(entry)
        if len(self._ready) == 1:
            self._available()


def _least_credit(consumer: BufferConsumer) -> int:
    """Return the credit above which a buffer may be sent."""
    return -MAX_OVERDRAFT_EVENTS if consumer.data_type == PRIORITY_EVENT else 0
