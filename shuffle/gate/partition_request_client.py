"""The consuming side of a peer leg: one connection, many remote input channels.

Data arrives straight in the segments of its channel. Credit is announced once a turn of the event
loop, one sum a channel, and accumulates while the connection cannot be written.

In watermark mode (:class:`UncreditedPartitionRequestClient`) there is no credit: the producer sends
whenever the connection is writable. Data takes the exclusive buffers of its channel and the
floating ones of the gate. Without a free one the client stops reading the connection: **all** its
channels stop until the channel of the next data has a buffer again, or is released. The same
happens before an event, while the channel has as many unread ones as it may have without a buffer.
That is why credit is the default.

::

    READING ── no memory for the next data ──▶ STANDING STILL (for one channel)
       ▲                                            │ that channel has a buffer, or is released
       └───────── read again, in a later turn ◀─────┘
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from crc32c import crc32c

from ...protocol.credit import MAX_OVERDRAFT_EVENTS, Uncounted
from ...protocol.errors import CreditExceeded, MalformedMessage, SluiceError, UnexpectedMessage
from ...protocol.framing import PayloadMemory
from ...protocol.limits import DAMAGE_REPORTS, MAX_EVENT_BYTES, MAX_LOST_ATTEMPTS, MAX_U32, TRACES
from ...protocol.remote_error import RemoteError
from ...protocol.schema import (
    DATA,
    FLOW_CREDIT,
    AddCredit,
    BacklogAnnouncement,
    BufferResponse,
    CancelPartitionRequest,
    ChecksummedBuffer,
    CloseRequest,
    ErrorResponse,
    HelloAck,
    Message,
    PartitionRequest,
    ResumeConsumption,
    TaskEvent,
    TraceContext,
    VerifyOutputs,
)
from ...transport.connection import Connection
from ...transport.errors import ConnectionLost
from ..counters import Counters
from ..errors import ChecksumMismatch, TooManyTaskEvents
from ..memory.buffer import BufferGroup, ScratchMemory, memory_to_receive
from ..names import SubpartitionRange
from .remote_input_channel import RemoteInputChannel

MAX_WAITING_TASK_EVENTS: Final = 1024
"""Task events kept while the connection takes nothing: 1 MiB of the longest ones."""


class PartitionRequestClient:
    """Requests partitions of one other TaskManager.

    Args:
        connection: The open connection.
        ack: The description of the other TaskManager in its handshake.
        counters: The TaskManager's counters.
    """

    def __init__(self, connection: Connection, ack: HelloAck, counters: Counters) -> None:
        self.connection = connection
        self.taskmanager_id = ack.taskmanager_id
        self.features = ack.features
        """Bits of the additions to the protocol that the other TaskManager knows."""
        self._counters = counters
        self._channels: dict[int, RemoteInputChannel] = {}
        self._last_number = -1
        self._arriving: list[BufferGroup] | None = None
        self._arriving_event: bytearray | None = None
        self._scratch = ScratchMemory()
        self._announcing: set[RemoteInputChannel] = set()
        self._flush_due = False
        self._task_events: deque[tuple[RemoteInputChannel, int, bytes]] = deque()

    @property
    def closing(self) -> bool:
        """True once the connection takes no more requests."""
        return self.connection.closing

    @property
    def channels(self) -> int:
        """Channels in use."""
        return len(self._channels)

    def request(
        self,
        channel: RemoteInputChannel,
        wanted: SubpartitionRange,
        map_attempt_ids: Sequence[int],
        trace: TraceContext | None = None,
    ) -> None:
        """Ask for a range of subpartitions; the channel has its buffers already.

        Raises:
            ConnectionLost: The connection has ended meanwhile.
            TooManyTaskEvents: The channel has kept more than the connection takes now.
        """
        if self.closing:
            raise ConnectionLost(f"Connection to {self.connection.remote} was lost")
        number = self._free_number()
        channel.number = number
        self._channels[number] = channel
        if trace is not None and self.features & TRACES:
            self.connection.send(trace.numbered(number))
        self.connection.send(
            PartitionRequest(
                number,
                wanted.shuffle.application_id,
                wanted.shuffle.shuffle_id,
                list(map_attempt_ids),
                wanted.start,
                wanted.end,
                channel.initial_credit,
            )
        )
        if self.connection.flow_control == FLOW_CREDIT:
            self._counters.credits_sent += channel.initial_credit
        channel.request_sent()

    def announce_credit(self, channel: RemoteInputChannel) -> None:
        """Announce the channel's free buffers after this turn, with those of other channels."""
        self._announcing.add(channel)
        if not self._flush_due and self.connection.writable:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def resume_consumption(self, channel: RemoteInputChannel) -> None:
        """Ask the producer to resume after a blocking event; at most once for each event."""
        if self._channels.get(channel.number) is channel:
            self.connection.send(ResumeConsumption(channel.number))

    def send_task_event(self, channel: RemoteInputChannel, event_type: int, payload: bytes) -> None:
        """Send an event to a channel's producer, now or when the connection can be written.

        Raises:
            TooManyTaskEvents: As many wait already as may wait.
        """
        waiting = self._task_events
        if len(waiting) >= MAX_WAITING_TASK_EVENTS:
            raise TooManyTaskEvents(
                f"{self.connection.remote} takes no more task events now",
                value=len(waiting) + 1,
                limit=MAX_WAITING_TASK_EVENTS,
                remedy="Send fewer task events",
            )
        waiting.append((channel, event_type, payload))
        if self.connection.writable:
            self._send_task_events()

    def verify(self, wanted: SubpartitionRange, map_attempt_ids: Sequence[int]) -> None:
        """Pass on that stored data of the other TaskManager arrived damaged.

        Nothing is sent to a TaskManager that does not know the message, or does not read.
        """
        if self.closing or not self.features & DAMAGE_REPORTS or not self.connection.writable:
            return
        key, start, end = wanted
        attempts = list(map_attempt_ids)
        for first in range(0, len(attempts), MAX_LOST_ATTEMPTS):
            some = attempts[first : first + MAX_LOST_ATTEMPTS]
            self.connection.send(
                VerifyOutputs(key.application_id, key.shuffle_id, start, end, some)
            )

    def cancel(self, channel: RemoteInputChannel) -> None:
        """Forget a channel; notify the producer unless the channel has ended."""
        self._announcing.discard(channel)
        if self._channels.get(channel.number) is not channel:
            return
        del self._channels[channel.number]
        if not channel.ended and channel.failure is None:
            self.connection.send(CancelPartitionRequest(channel.number))

    def close(self) -> None:
        """Announce the end and close. Idempotent."""
        if not self.closing:
            self.connection.send(CloseRequest())
            self.connection.close()

    # ---- sluice.transport.connection.ConnectionHandler ------------------------------------------

    def payload_buffer(self, message: Message, length: int) -> PayloadMemory:
        """Supply segments of the channel, or scratch memory for data that is dropped."""
        if type(message) is not BufferResponse and type(message) is not ChecksummedBuffer:
            raise UnexpectedMessage("Payload on a peer leg", value=type(message).__name__)
        if message.data_type != DATA:
            if length > MAX_EVENT_BYTES:
                raise MalformedMessage("Event is too large", value=length, limit=MAX_EVENT_BYTES)
            if self._waits_for_reader(message.channel):
                return None
            self._arriving_event = bytearray(length)
            return memoryview(self._arriving_event)
        channel = self._channels.get(message.channel)
        if channel is not None:
            groups = channel.take_buffers(length)
            if groups is not None:
                self._arriving = groups
                return memory_to_receive(groups)
            if self._waits_for_memory(channel, length):
                return None
            channel.fail(
                CreditExceeded(
                    f"Data without credit on channel {message.channel}", value=length, limit=0
                )
            )
            self._refuse(message.channel)
        return self._scratch.take(length)

    def message_received(self, message: Message, payload_length: int) -> None:
        """Handle a message of the producer."""
        checksum = -1
        if type(message) is ChecksummedBuffer:
            checksum = message.crc32c
            message = BufferResponse(
                message.channel, message.sequence_number, message.backlog, message.data_type
            )
        if type(message) is BufferResponse:
            content: list[BufferGroup] | bytes | None = None
            if payload_length and message.data_type == DATA:
                content, self._arriving = self._arriving, None
                counters = self._counters
                counters.peer_bytes_in += payload_length
                counters.peer_buffers_in += self._buffers_of(payload_length)
            elif message.data_type != DATA:
                content = self._take_event(payload_length)
            channel = self._channels.get(message.channel)
            if channel is None:
                if isinstance(content, list):
                    _recycle(content)
                self._counters.late_messages.bump("BufferResponse")
                return
            if checksum >= 0 and checksum != _checksum(message.channel, content):
                if isinstance(content, list):
                    _recycle(content)
                channel.fail(_damaged(message, checksum))
            else:
                channel.buffer_received(message, content)
            if channel.ended:
                del self._channels[message.channel]
            elif channel.failure is not None:
                self._refuse(message.channel)
        elif type(message) is BacklogAnnouncement:
            channel = self._channels.get(message.channel)
            if channel is not None:
                channel.on_backlog(message.backlog)
        elif type(message) is ErrorResponse and message.channel is not None:
            channel = self._channels.pop(message.channel, None)
            if channel is None:
                self._counters.late_messages.bump("ErrorResponse")
            else:
                channel.fail(RemoteError(message))
        elif type(message) is CloseRequest:
            self.connection.close()

    def writable(self) -> None:
        """Send the messages that have accumulated: the connection can be written again."""
        if self._announcing:
            self._flush()
        if self._task_events:
            self._send_task_events()

    def connection_lost(self, error: SluiceError) -> None:
        """Fail every channel."""
        reason = self.connection.close_reason
        if reason is not None and not isinstance(reason, RemoteError):  # this side closed it
            self._counters.errors_by_code.bump(reason.code.name)
        arriving, self._arriving = self._arriving, None
        _recycle(arriving or ())
        self._announcing.clear()
        self._task_events.clear()
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.fail(error)

    # ---- inner workings --------------------------------------------------------------------------

    def _waits_for_memory(self, channel: RemoteInputChannel, length: int) -> bool:
        """Return whether reading stops until the channel can take data.

        With credit, never: data without a free buffer must not have been sent.
        """
        return False

    def _waits_for_reader(self, number: int) -> bool:
        """Return whether reading stops until the channel's reader has taken an event.

        With credit, never: the event must not have been sent.
        """
        return False

    def _take_event(self, payload_length: int) -> bytes:
        event, self._arriving_event = self._arriving_event, None
        if not payload_length or event is None:
            raise MalformedMessage("Event without content", value=0, limit=1)
        return bytes(event)

    def _buffers_of(self, length: int) -> int:
        return -(-length // self.connection.max_payload_bytes)

    def _refuse(self, number: int) -> None:
        """Drop a channel that broke a rule; the connection and the others live on."""
        if self._channels.pop(number, None) is not None:
            self.connection.send(CancelPartitionRequest(number))

    def _flush(self) -> None:
        self._flush_due = False
        connection = self.connection
        if not connection.writable:
            return
        announcing, self._announcing = self._announcing, set()
        counters = self._counters
        credits: list[AddCredit] = []
        for channel in announcing:
            if self._channels.get(channel.number) is not channel:
                continue  # the channel has ended or failed meanwhile: its producer has forgotten it
            credit = channel.credit.announce()
            if credit:
                credits.append(AddCredit(channel.number, credit))
                counters.credits_sent += credit
        if credits:
            connection.send_together(credits)

    def _send_task_events(self) -> None:
        waiting = self._task_events
        while waiting and self.connection.writable:
            channel, event_type, payload = waiting.popleft()
            if self._channels.get(channel.number) is channel:
                self.connection.send(TaskEvent(channel.number, event_type), payload)

    def _free_number(self) -> int:
        number = self._last_number
        while True:
            number = (number + 1) & MAX_U32
            if number not in self._channels:
                self._last_number = number
                return number


class UncreditedPartitionRequestClient(PartitionRequestClient):
    """Requests partitions of one other TaskManager, over a connection without credit.

    A message is never larger than the exclusive buffers of its channel. So a channel that is read
    makes progress, even if the other channels of its gate hold all floating buffers.

    Args:
        connection: The open connection.
        ack: The description of the other TaskManager in its handshake.
        counters: The TaskManager's counters.
    """

    def __init__(self, connection: Connection, ack: HelloAck, counters: Counters) -> None:
        super().__init__(connection, ack, counters)
        self.waits_for: RemoteInputChannel | None = None
        """The channel that the connection waits for, standing still."""
        self._resume_due = False

    def request(
        self,
        channel: RemoteInputChannel,
        wanted: SubpartitionRange,
        map_attempt_ids: Sequence[int],
        trace: TraceContext | None = None,
    ) -> None:
        """Ask for a range of subpartitions; the channel has its buffers already.

        Raises:
            ConnectionLost: The connection has ended meanwhile.
            TooManyTaskEvents: The channel has kept more than the connection takes now.
        """
        channel.credit = Uncounted(channel.initial_credit)
        super().request(channel, wanted, map_attempt_ids, trace)

    def announce_credit(self, channel: RemoteInputChannel) -> None:
        """Read on if the connection waits for the channel, which has free buffers now."""
        if channel is self.waits_for:
            self._resume()

    def cancel(self, channel: RemoteInputChannel) -> None:
        """Forget a channel; if its data is next, that is dropped."""
        super().cancel(channel)
        if channel is self.waits_for:
            self._resume()

    def connection_lost(self, error: SluiceError) -> None:
        """Fail every channel."""
        self.waits_for = None
        super().connection_lost(error)

    def _waits_for_memory(self, channel: RemoteInputChannel, length: int) -> bool:
        if channel.failure is not None or not channel.may_take(length):
            return False
        self.waits_for = channel
        # Set before the channel requests floating buffers: one that is free comes at once.
        channel.on_backlog(max(1, channel.sender_backlog))
        return True

    def _waits_for_reader(self, number: int) -> bool:
        channel = self._channels.get(number)
        if channel is None or channel.failure is not None:
            return False
        if channel.events_on_account < MAX_OVERDRAFT_EVENTS:
            return False
        self.waits_for = channel
        return True

    def _resume(self) -> None:
        """Read on in a turn of its own: the code that recycles memory must not be re-entered."""
        if not self._resume_due:
            self._resume_due = True
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        self._resume_due = False
        self.waits_for = None
        self.connection.resume_reading()


def _recycle(groups: Iterable[BufferGroup]) -> None:
    for group in groups:
        group.recycle()


def _checksum(channel: int, content: list[BufferGroup] | bytes | None) -> int:
    """Compute the checksum of data or of an event that has arrived for a channel."""
    if not isinstance(content, list):
        return crc32c(content or b"", channel)
    checksum = channel
    for group in content:
        checksum = crc32c(group.payload, checksum)
    return checksum


def _damaged(message: BufferResponse, checksum: int) -> ChecksumMismatch:
    return ChecksumMismatch(
        f"Buffer {message.sequence_number} of channel {message.channel} was damaged on its way",
        limit=f"a CRC-32C of {checksum:#010x}",
        remedy="Check memory and network of both hosts",
    )
