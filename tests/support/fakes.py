"""Stand-ins for the collaborators of one class of the network stack, driven by hand."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeVar

from sluice.protocol.credit import MAX_OVERDRAFT_EVENTS
from sluice.protocol.events import encode_end_of_partition
from sluice.protocol.limits import MAX_CREDIT, MAX_LARGE_PAYLOAD_BYTES
from sluice.protocol.schema import DATA, EVENT, FLOW_CREDIT, PRIORITY_EVENT, Message
from sluice.shuffle.partition.view import OutgoingBuffer
from sluice.transport.connection import Connection
from sluice.transport.loop_share import LoopShare, LoopTurns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sluice.protocol.errors import SluiceError
    from sluice.shuffle.gate.remote_input_channel import RemoteInputChannel
    from sluice.shuffle.taskmanager.serve.credit_based_view_reader import CreditBasedViewReader

SomeMessage = TypeVar("SomeMessage")


class FakeConnection(Connection):
    """Records what is sent, and keeps payloads until it is drained.

    A connection by type, since compiled code takes nothing else for one; of its state it has
    what is set here.
    """

    # What a connection works out, and a test sets.
    writable = True
    closing = False
    close_reason: SluiceError | None = None
    max_payload_bytes = MAX_LARGE_PAYLOAD_BYTES
    large_payload_bytes = MAX_LARGE_PAYLOAD_BYTES

    def __init__(self, flow_control: int = FLOW_CREDIT) -> None:
        self.loop_share = LoopShare(LoopTurns())
        self.remote = self.key = "fake"
        self.application_id = "app"
        self.flow_control = flow_control
        self.other_segment_size_bytes = 0
        self.is_encrypted = False
        self.error: SluiceError | None = None
        self.sent: list[Message] = []
        self.payloads: list[bytes] = []
        self.leases: list[Callable[[], None]] = []

    def cork(self) -> None:
        """Each message goes at once here."""

    def uncork(self) -> None:
        """Nothing is gathered."""

    def send(
        self,
        message: Message,
        payload: memoryview | bytes = b"",
        release: Callable[[], None] | None = None,
        more: Sequence[memoryview | bytes] = (),
    ) -> None:
        self.sent.append(message)
        self.payloads.append(b"".join((payload, *more)))
        if release is not None:
            self.leases.append(release)

    def send_together(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.send(message)

    def close(self) -> None:
        self.closing = True
        self.writable = False

    def fail(self, error: SluiceError) -> None:
        self.error = error
        self.close()

    def drain(self) -> None:
        leases, self.leases = self.leases, []
        for release in leases:
            release()

    def take(self, kind: type[SomeMessage]) -> list[SomeMessage]:
        """Return the messages of a kind and forget all that was sent."""
        sent, self.sent = self.sent, []
        self.payloads = []
        return [message for message in sent if isinstance(message, kind)]


END_OF_NOTHING = encode_end_of_partition(0, 0)


class FakeView:
    """A view whose buffers a test puts in.

    Args:
        credit_bytes: What one credit pays for, if a buffer can cost more than one.
    """

    is_local = True
    holds_segments = True

    def __init__(self, credit_bytes: int = MAX_LARGE_PAYLOAD_BYTES) -> None:
        self._credit_bytes = credit_bytes
        self.failure: SluiceError | None = None
        self.releases = 0
        self.recycled = 0
        self.listener: Callable[[], None] = lambda: None
        self._buffers: deque[tuple[bytes, int]] = deque()

    def put(self, *payloads: bytes, end: bool = False) -> None:
        self._buffers.extend((payload, DATA) for payload in payloads)
        if end:
            self._buffers.append((END_OF_NOTHING, EVENT))
        self.listener()

    def event(self, payload: bytes, data_type: int) -> None:
        self._buffers.append((payload, data_type))
        self.listener()

    @property
    def backlog(self) -> int:
        return sum(
            kind != PRIORITY_EVENT and payload != END_OF_NOTHING for payload, kind in self._buffers
        )

    def is_available(self, credit: int) -> bool:
        if not self._buffers:
            return False
        payload, kind = self._buffers[0]
        if kind == PRIORITY_EVENT:
            return credit > -MAX_OVERDRAFT_EVENTS
        fits = kind != DATA or len(payload) <= credit * self._credit_bytes
        return payload == END_OF_NOTHING or (credit > 0 and fits)

    def next_buffer(self, credit: int) -> OutgoingBuffer | None:
        if self.failure is not None:
            raise self.failure
        if not self.is_available(credit):
            return None
        payload, kind = self._buffers.popleft()
        return OutgoingBuffer(payload, self._recycle if kind == DATA else None, kind)

    def take_more(self, most_bytes: int) -> OutgoingBuffer | None:
        if not self._buffers or self._buffers[0][1] != DATA:
            return None
        return self.next_buffer(MAX_CREDIT) if len(self._buffers[0][0]) <= most_bytes else None

    def release(self) -> None:
        self.releases += 1

    def _recycle(self) -> None:
        self.recycled += 1


class FakeCreditSender:
    """The peer connection of a remote channel."""

    def __init__(self) -> None:
        self.announcing: list[RemoteInputChannel] = []
        self.cancelled: list[RemoteInputChannel] = []
        self.resumed: list[RemoteInputChannel] = []
        self.task_events: list[tuple[int, bytes]] = []

    def resume_consumption(self, channel: RemoteInputChannel) -> None:
        self.resumed.append(channel)

    def send_task_event(self, channel: RemoteInputChannel, event_type: int, payload: bytes) -> None:
        self.task_events.append((event_type, payload))

    def announce_credit(self, channel: RemoteInputChannel) -> None:
        self.announcing.append(channel)

    def cancel(self, channel: RemoteInputChannel) -> None:
        self.cancelled.append(channel)


class Ended:
    """Records what a request queue tells of its readers."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []
        self.ended: list[tuple[int, SluiceError | None]] = []

    def on_sent(self, reader: CreditBasedViewReader, length: int) -> None:
        self.sent.append((reader.channel, length))

    def on_ended(self, reader: CreditBasedViewReader, error: SluiceError | None) -> None:
        self.ended.append((reader.channel, error))


async def no_drain(migrate: bool = False) -> None:
    """Stand in for the draining of a TaskManager that has nothing to do."""
