"""Both ends of a channel under every interleaving: no credit and no segment is ever lost.

The machine carries the messages between a reader on the serving side and a remote channel by hand,
so that arrival, consumption, recycling, release and failure come in any order.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluice.protocol.errors import SluiceError
from sluice.protocol.schema import DATA, BufferResponse
from sluice.shuffle.gate.buffer_manager import BufferManager
from sluice.shuffle.gate.remote_input_channel import RemoteInputChannel
from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.taskmanager.serve.credit_based_view_reader import CreditBasedViewReader
from tests.support.fakes import FakeCreditSender, FakeView
from tests.support.network_memory import take_exclusive

if TYPE_CHECKING:
    from sluice.shuffle.memory.buffer import BufferGroup
    from sluice.shuffle.partition.view import OutgoingBuffer


SEGMENTS = 16
CHANNELS = 3
SEGMENT_BYTES = 8
MESSAGE_BYTES = 3 * SEGMENT_BYTES
index = st.integers(0, CHANNELS - 1)


class Pair:
    """A channel: its sender, its receiver, and what is on the wire both ways."""

    def __init__(self, network_pool: NetworkBufferPool, gate_pool) -> None:
        self.announcer = FakeCreditSender()
        self.receiver = RemoteInputChannel(lambda: None)
        exclusive = take_exclusive(network_pool, 2)
        self.buffers = BufferManager(network_pool, gate_pool, exclusive, self.receiver)
        self.receiver.attach(self.buffers, self.announcer)
        self.sender = CreditBasedViewReader(
            1, self.receiver.initial_credit, lambda reader: None, SEGMENT_BYTES
        )
        self.view = FakeView(SEGMENT_BYTES)
        self.sender.attach(self.view, MESSAGE_BYTES)
        self.data_wire: deque[tuple[BufferResponse, bytes]] = deque()
        self.credit_wire: deque[int] = deque()
        self.arriving: tuple[BufferResponse, list[BufferGroup]] | None = None
        self.held: list[OutgoingBuffer] = []
        self.sent = b""
        self.read = b""
        self.over = False


class ChannelMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.pool = NetworkBufferPool(SEGMENTS, SEGMENT_BYTES)
        self.gate_pool = self.pool.create_local_pool("gate", 1, 6)
        self.pairs = [Pair(self.pool, self.gate_pool) for _ in range(CHANNELS)]
        self.byte = 0

    @rule(at=index, count=st.integers(1, 12), size=st.sampled_from([0, 1, 8, 9, 16, 30]))
    def produce(self, at: int, count: int, size: int) -> None:
        for _ in range(count):
            self.byte = (self.byte + 1) % 256
            self.pairs[at].view.put(bytes([self.byte]) * size)

    @rule(at=index, most=st.integers(1, 8))
    def send(self, at: int, most: int) -> None:
        pair = self.pairs[at]
        for _ in range(most):
            pieces = pair.sender.next_message()
            if not pieces:
                break
            payload = b"".join(piece.payload for piece in pieces)
            number = pair.sender.next_sequence_number()
            message = BufferResponse(1, number, pair.view.backlog, DATA)
            pair.data_wire.append((message, payload))
            pair.sent += payload

    @rule(at=index)
    def begin_arrival(self, at: int) -> None:
        pair = self.pairs[at]
        if pair.arriving is not None or not pair.data_wire:
            return
        message, payload = pair.data_wire.popleft()
        if not payload:
            pair.receiver.buffer_received(message, None)
            return
        groups = pair.receiver.take_buffers(len(payload))
        if pair.over:
            assert groups is None
            return  # discarded
        assert groups is not None, "data was sent without a buffer for it"
        for group in groups:
            group.payload[:] = payload[: group.length]
            payload = payload[group.length :]
        assert not payload
        pair.arriving = message, groups

    @rule(at=index)
    def end_arrival(self, at: int) -> None:
        pair = self.pairs[at]
        if pair.arriving is not None:
            arriving, pair.arriving = pair.arriving, None
            pair.receiver.buffer_received(*arriving)

    @rule(at=index, room=st.integers(0, 3 * SEGMENT_BYTES))
    def consume(self, at: int, room: int) -> None:
        pair = self.pairs[at]
        if pair.over:
            return
        buffer = pair.receiver.next_buffer(1)
        if buffer is not None:
            pair.read += bytes(buffer.payload)
            pair.held.append(buffer)
            if room and (more := pair.receiver.take_more(room)) is not None:
                assert 0 < len(more.payload) <= room
                pair.read += bytes(more.payload)
                pair.held.append(more)

    @rule(at=index, which=st.integers(0, 20))
    def recycle(self, at: int, which: int) -> None:
        held = self.pairs[at].held
        if held:
            release = held.pop(which % len(held)).release
            if release is not None:
                release()

    @rule(at=index)
    def announce(self, at: int) -> None:
        pair = self.pairs[at]
        if pair.over:
            return
        credit = pair.receiver.credit.announce()
        if credit:
            pair.credit_wire.append(credit)

    @rule(at=index)
    def deliver_credit(self, at: int) -> None:
        pair = self.pairs[at]
        if pair.credit_wire:
            pair.sender.add_credit(pair.credit_wire.popleft())

    @precondition(lambda self: sum(not pair.over for pair in self.pairs) > 1)
    @rule(at=index, failed=st.booleans())
    def end_channel(self, at: int, failed: bool) -> None:
        pair = self.pairs[at]
        pair.over = True
        if failed:
            pair.receiver.fail(SluiceError("connection lost"))
        else:
            pair.receiver.release()

    @invariant()
    def credit_is_conserved(self) -> None:
        for pair in getattr(self, "pairs", []):
            if pair.over:
                continue
            credit = pair.receiver.credit
            arriving = 0
            if pair.arriving is not None:
                arriving = sum(len(group.segments) for group in pair.arriving[1])
            on_the_wire = arriving + sum(
                max(1, -(-len(payload) // SEGMENT_BYTES)) for _, payload in pair.data_wire
            )
            assert (
                pair.sender.credit.available + on_the_wire + sum(pair.credit_wire) == credit.granted
            )
            empty_waiting = sum(content is None for content in pair.receiver._received)
            assert (
                credit.granted - arriving + credit.unannounced + empty_waiting
                == pair.buffers.available
            )

    @invariant()
    def what_is_read_is_what_was_sent(self) -> None:
        for pair in getattr(self, "pairs", []):
            assert pair.sent.startswith(pair.read)

    def teardown(self) -> None:
        for pair in getattr(self, "pairs", []):
            pair.receiver.release()
            if pair.arriving is not None:
                pair.receiver.buffer_received(*pair.arriving)
            for buffer in pair.held:
                if buffer.release is not None:
                    buffer.release()
        if hasattr(self, "pool"):
            self.gate_pool.destroy()
            assert self.pool.available_segments == SEGMENTS
            assert self.pool.reserved_segments == 0


TestChannels = ChannelMachine.TestCase
TestChannels.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
