"""The consuming end of a channel whose partition is on another TaskManager.

Buffers arrive straight in segments of this channel, wait here in sequence, and become credit again
when the consumer has recycled them. An event keeps a buffer of the channel until the consumer has
taken it; priority events overtake, and may come on account (:mod:`sluice.protocol.credit`). It is a
view like a stored partition's, so that a gate and a reader on the consumer leg use both alike.

Messages of the consumer to the producer are kept until the request has gone out.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from ...protocol.credit import MAX_OVERDRAFT_EVENTS, ReceiverCredit
from ...protocol.errors import CreditExceeded, ErrorCode, InvalidEvent, SluiceError
from ...protocol.events import EndOfPartition, decode_event
from ...protocol.limits import MAX_U32
from ...protocol.schema import BLOCKING_EVENT, DATA, EVENT, PRIORITY_EVENT, BufferResponse
from ..errors import InvalidRequest, UnknownProducer, detached
from ..memory.buffer import BufferGroup
from ..partition.view import DataListener, OutgoingBuffer, no_listener
from .buffer_manager import BufferManager
from .task_events import KeptTaskEvents, check_task_event


class CreditSender(Protocol):
    """A peer connection as a remote channel sees it."""

    def announce_credit(self, channel: "RemoteInputChannel") -> None:
        """Send the channel's unannounced credit when the connection can take it."""

    def cancel(self, channel: "RemoteInputChannel") -> None:
        """Forget the channel; notify the producer unless the channel has ended."""

    def resume_consumption(self, channel: "RemoteInputChannel") -> None:
        """Ask the producer to resume after a blocking event."""

    def send_task_event(
        self, channel: "RemoteInputChannel", event_type: int, payload: bytes
    ) -> None:
        """Send an event to the producer.

        Raises:
            TooManyTaskEvents: As many wait already as may wait.
        """


class _Event(NamedTuple):
    payload: bytes
    data_type: int
    held: BufferGroup | None
    """The buffer that its credit stands for; None for the end, and for an event on account."""


class RemoteInputChannel:
    """A channel to a partition on another TaskManager.

    Args:
        listener: Called when a channel that had nothing has a buffer, or has failed.
        buffer_bytes: Largest buffer to give; by default all bytes of a message.
        credit_bytes: Bytes that one credit of the reader pays for; a whole buffer by default.
        on_done: Called once, when the channel is released or has failed.
    """

    is_local = False
    holds_segments = True  # of its own

    def __init__(
        self,
        listener: DataListener,
        buffer_bytes: int | None = None,
        credit_bytes: int | None = None,
        on_done: Callable[["RemoteInputChannel"], None] | None = None,
    ) -> None:
        self.failure: SluiceError | None = None
        self.number = 0
        """Number on the peer connection, given by the client."""
        self.ended = False
        """True once the end of the partition has arrived."""
        self.bytes_in = 0
        self.buffers_in = 0
        self.credit = ReceiverCredit(0)
        self.sender_backlog = 0
        self._listener = listener
        self._buffer_bytes = buffer_bytes
        self._credit_bytes = credit_bytes
        self._on_done = on_done
        self._given_bytes = 0  # of the first buffer that waits, when it is given in parts
        self._buffers: BufferManager | None = None
        self._sender: CreditSender | None = None
        self._received: deque[BufferGroup | _Event | None] = deque()
        """The queue to read: buffers, events, None for an empty buffer."""
        self._priority: deque[_Event] = deque()  # read before that queue
        self.events_on_account = 0  # unread, and the channel keeps no buffer for them
        self._blocked = False  # since a blocking event was read, until consumption is resumed
        self._requested = False
        self._kept = KeptTaskEvents()
        self._next_sequence_number = 0
        self._released = False

    # ---- set-up --------------------------------------------------------------------------------

    def attach(self, buffers: BufferManager, sender: CreditSender) -> bool:
        """Give the channel its memory and its connection; the request goes out next.

        Returns:
            False if the channel is released already: it has given the memory back.
        """
        if self._released:
            buffers.release()
            return False
        self._buffers = buffers
        self._sender = sender
        self.credit = ReceiverCredit(buffers.initial_credit)
        return True

    @property
    def initial_credit(self) -> int:
        """Credit to send with the request."""
        return self.credit.granted

    # ---- called by the peer client ---------------------------------------------------------------

    def take_buffers(self, length: int) -> list[BufferGroup] | None:
        """Supply memory for ``length`` bytes that arrive; None if they were sent without credit."""
        buffers = self._buffers
        if buffers is None or not self.may_take(length):
            return None
        return buffers.take(length)

    def may_take(self, length: int) -> bool:
        """Return whether the sender may send data of that length, with memory here or without."""
        buffers = self._buffers
        if buffers is None or self._released:
            return False
        return length <= self.credit.granted * buffers.segment_size_bytes

    def buffer_received(
        self, message: BufferResponse, content: list[BufferGroup] | bytes | None
    ) -> None:
        """Take buffers, an event's bytes, or an empty data message (None)."""
        if self._released or self.failure is not None:
            _recycle(content)
            return
        if message.sequence_number != self._next_sequence_number:
            _recycle(content)
            self.fail(
                SluiceError(
                    f"The sender of channel {message.channel} left out a buffer",
                    code=ErrorCode.SEQUENCE_GAP,
                    value=message.sequence_number,
                    limit=self._next_sequence_number,
                    remedy="Request the rest again; if it repeats, read the sender's log",
                )
            )
            return
        self._next_sequence_number = (message.sequence_number + 1) & MAX_U32
        if message.data_type != DATA:
            self._event_received(message, content)  # type: ignore[arg-type]
            return
        had_nothing = not self._received
        if self._data_received(message, content) and had_nothing:  # type: ignore[arg-type]
            self._listener()

    def fail(self, error: SluiceError) -> None:
        """End the channel with an error; buffers that wait to be read are dropped."""
        if self.failure is not None or self._released or self.ended:
            return
        self.failure = error
        self._give_back()
        self._listener()

    def credit_available(self, buffers: int) -> None:
        """Announce buffers that became free as credit (``BufferManager`` calls this)."""
        if self.credit.free(buffers) and self._sender is not None and not self.ended:
            self._sender.announce_credit(self)

    def on_backlog(self, backlog: int) -> None:
        """Record the buffers for which the sender has no credit."""
        self.sender_backlog = backlog
        if self._buffers is not None and not self._released and self.failure is None:
            self._buffers.on_backlog(backlog)

    # ---- SubpartitionView ------------------------------------------------------------------------

    @property
    def backlog(self) -> int:
        """Buffers and events waiting here and at the sender, without priority ones."""
        has_end = self.ended and bool(self._received)
        return len(self._received) - has_end + self.sender_backlog

    @property
    def has_priority_event(self) -> bool:
        """True if the next buffer is an event that overtakes data."""
        return bool(self._priority)

    @property
    def buffers(self) -> BufferManager | None:
        """The channel's memory; None before it is connected."""
        return self._buffers

    @property
    def queued_buffers(self) -> int:
        """Buffers and events waiting here; for status, because it takes a look at each."""
        return sum(len(x.segments) if isinstance(x, BufferGroup) else 1 for x in self._received)

    def is_available(self, credit: int) -> bool:
        """True if the next buffer or event is here and there is credit for it, or the end is."""
        if self._priority:
            return credit > -MAX_OVERDRAFT_EVENTS
        received = self._received
        return bool(received) if credit > 0 else self.ended and len(received) == 1

    def next_buffer(self, credit: int) -> OutgoingBuffer | None:
        """Take the next buffer; None if there is none yet."""
        if self.failure is not None:
            raise self.failure
        if self._priority:
            if credit <= -MAX_OVERDRAFT_EVENTS:
                return None
            return self._give_event(self._priority.popleft())
        received = self._received
        if not received:
            return None
        if credit <= 0 and not (self.ended and len(received) == 1):
            return None
        content = received[0]
        if isinstance(content, _Event):
            received.popleft()
            return self._give_event(content)
        if content is None:
            # An empty buffer took no memory, but a credit, which is free again now.
            received.popleft()
            self.credit_available(1)
            return OutgoingBuffer(b"", None, DATA)
        most = self._buffer_bytes or content.length
        return self._data_of(content, min(most, credit * (self._credit_bytes or most)))

    def take_more(self, most_bytes: int) -> OutgoingBuffer | None:
        """Take data that is there, for a message with the data taken before."""
        received = self._received
        if self._priority or not received:
            return None
        content = received[0]
        if type(content) is not BufferGroup:
            return None
        return self._data_of(content, most_bytes)

    # ---- to the producer -------------------------------------------------------------------------

    def request_sent(self) -> None:
        """Send the messages kept for the producer after the request, which has gone out.

        Raises:
            TooManyTaskEvents: The connection does not take them now.
        """
        self._requested = True
        if self._sender is None:
            return
        for event_type, payload in self._kept.take():
            self._sender.send_task_event(self, event_type, payload)

    def resume_consumption(self) -> None:
        """Resume after a blocking event.

        Raises:
            InvalidRequest: The channel is not blocked, or no longer is.
        """
        if self._released or self.failure is not None:
            return
        if not self._blocked or self._sender is None:
            raise InvalidRequest("Channel is not blocked: nothing to resume", value=self.number)
        self._blocked = False
        self._sender.resume_consumption(self)

    def send_task_event(self, event_type: int, payload: bytes) -> None:
        """Send an event to the producer; it is kept while the request has not gone out.

        Raises:
            InvalidEvent: It does not fit the wire.
            TooManyTaskEvents: As many wait already as may wait.
            UnknownProducer: The partition has ended.
            SluiceError: The failure of the channel.
        """
        check_task_event(event_type, payload)
        if self._released:
            return
        if self.failure is not None:
            raise self.failure
        if self.ended:
            raise UnknownProducer("The producer of this channel has finished", value=event_type)
        if self._requested and self._sender is not None:
            self._sender.send_task_event(self, event_type, payload)
        else:
            self._kept.keep(event_type, payload)

    def release(self) -> None:
        """Release the memory and notify the producer. Idempotent."""
        if self._released:
            return
        self._released = True
        self._listener = no_listener
        self._give_back()
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.cancel(self)

    # ---- inner workings --------------------------------------------------------------------------

    def _data_of(self, group: BufferGroup, most_bytes: int) -> OutgoingBuffer:
        """Give the first group, or a part of it; with the last part it leaves the queue."""
        start = self._given_bytes
        if group.length <= most_bytes and not start:
            self._received.popleft()
            return OutgoingBuffer(group.payload, group.recycle, DATA)
        part = group.payload[start : start + most_bytes]
        self._given_bytes = start + len(part)
        if self._given_bytes < group.length:
            group.retain()
        else:
            self._given_bytes = 0
            self._received.popleft()
        return OutgoingBuffer(part, group.recycle, DATA)

    def _data_received(self, message: BufferResponse, content: list[BufferGroup] | None) -> bool:
        """Queue data, count it, and record the backlog; False if the channel failed."""
        credit = self.credit
        if credit.granted <= 0:  # an empty buffer, for which no memory was requested
            self.fail(
                CreditExceeded(
                    f"Data without credit on channel {message.channel}", value=1, limit=0
                )
            )
            return False
        buffers = 0
        extended: BufferGroup | None = None
        if content is None:
            self._received.append(None)
            buffers = 1
        else:
            for group in content:
                buffers += len(group.segments)
                self.bytes_in += group.length
            if self._received and len(content) == 1 and self._extend_last(content[0]):
                extended = content[0]
            else:
                self._received += content
        self.buffers_in += buffers
        self.sender_backlog = message.backlog
        if self._buffers is not None:
            self._buffers.on_backlog(message.backlog)
        if credit.used(message.channel, buffers) and self._sender is not None:
            self._sender.announce_credit(self)
        if extended is not None:
            extended.recycle()  # its bytes are copied: it is credit again
        return True

    def _extend_last(self, group: BufferGroup) -> bool:
        """Copy a buffer into the one that waits before it, if that has room and is not being read.

        So data that was flushed often takes few buffers when its reader is slow.
        """
        last = self._received[-1]
        return (
            type(last) is BufferGroup
            and not (self._given_bytes and len(self._received) == 1)
            and last.extend(group)
        )

    def _event_received(self, message: BufferResponse, payload: bytes) -> None:
        """Queue an event; a bad one fails the channel, and no other."""
        data_type = message.data_type
        held: BufferGroup | None = None
        try:
            event = decode_event(payload)
            if type(event) is EndOfPartition:
                self._check_end(event, data_type)
                self.ended = True
            elif data_type == PRIORITY_EVENT:
                self.credit.overdraw(message.channel)
                self.events_on_account += 1
            else:
                held = self._hold_buffer(message)
        except SluiceError as error:
            self.fail(detached(error))
            return
        buffers = self._buffers
        if data_type == BLOCKING_EVENT and buffers is not None and buffers.give_up_floating():
            self.credit.void()  # the sender forgets it too, when consumption is resumed
            self.events_on_account = 0
        queue: deque[_Event] | deque[BufferGroup | _Event | None]
        queue = self._priority if data_type == PRIORITY_EVENT else self._received
        queue.append(_Event(payload, data_type, held))
        if len(queue) == 1:
            self._listener()

    def _hold_buffer(self, message: BufferResponse) -> BufferGroup | None:
        """Use up a credit for an event; return the buffer to keep until it is read, if any."""
        groups = self.take_buffers(1)
        if self.credit.used(message.channel) and self._sender is not None:
            self._sender.announce_credit(self)
        self.on_backlog(message.backlog)
        if groups is None:  # on a connection without credit
            self.events_on_account += 1
            return None
        return groups[0]

    def _give_event(self, event: _Event) -> OutgoingBuffer:
        payload, data_type, held = event
        if data_type != PRIORITY_EVENT:
            self._blocked = data_type == BLOCKING_EVENT
        if held is not None:
            held.recycle()
        elif self.events_on_account:
            self.events_on_account -= 1
            self.credit_available(1)
        return OutgoingBuffer(payload, None, data_type)

    def _check_end(self, event: EndOfPartition, data_type: int) -> None:
        if data_type != EVENT:
            raise InvalidEvent("EndOfPartition has the wrong data type", value=data_type)
        if (event.total_bytes, event.total_buffers) != (self.bytes_in, self.buffers_in):
            raise SluiceError(
                "Channel ended, but its totals are not those of the data that arrived",
                code=ErrorCode.END_OF_PARTITION_MISMATCH,
                value=f"{self.bytes_in} bytes in {self.buffers_in} buffers",
                limit=f"{event.total_bytes} bytes in {event.total_buffers} buffers",
                remedy="The reduce task requests it again",
            )

    def _give_back(self) -> None:
        self._priority.clear()
        self._kept.take()
        received, self._received = self._received, deque()
        for content in received:
            held = content.held if isinstance(content, _Event) else content
            if held is not None:
                held.recycle()
        if self._buffers is not None:
            self._buffers.release()
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            on_done(self)


def _recycle(content: list[BufferGroup] | bytes | None) -> None:
    if isinstance(content, list):
        for group in content:
            group.recycle()
