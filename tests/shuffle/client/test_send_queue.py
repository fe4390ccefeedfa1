"""The send queue keeps the order of each channel, however channels overtake one another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.protocol.credit import MAX_OVERDRAFT_EVENTS
from sluice.protocol.schema import BLOCKING_EVENT, DATA, EVENT, PRIORITY_EVENT
from sluice.shuffle.client.send_queue import SendQueue
from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.partition.event_buffers import EventBuffers
from sluice.shuffle.partition.result_partition_writer import ALL_SUBPARTITIONS
from sluice.shuffle.partition.shared_buffer import BufferBuilder

CHANNELS = 3
SEGMENTS = 64
SIZE = 8


class Rig:
    """A queue with memory, and builders as a record writer uses them."""

    def __init__(self) -> None:
        self.network = NetworkBufferPool(SEGMENTS, SIZE)
        self.pool = self.network.create_local_pool("queue", 1, SEGMENTS)
        self.told = 0
        self.queue = SendQueue(self._available)
        self.builders: dict[int, BufferBuilder] = {}
        self._events = EventBuffers(self.pool)

    def _available(self) -> None:
        self.told += 1

    def write(self, subpartition: int, content: bytes) -> None:
        while content:
            builder = self.builders.get(subpartition)
            if builder is None or builder.is_finished:
                buffer = self.pool.request_buffer_nowait()
                assert buffer is not None
                builder = self.builders[subpartition] = BufferBuilder(buffer)
                self.queue.add(builder.create_consumer(), subpartition)
            content = content[builder.append_and_commit(content) :]
            if builder.is_full:
                builder.finish()

    def event(self, payload: bytes, data_type: int, subpartition: int) -> None:
        self.queue.add(self._events.consumer_of(payload, data_type), subpartition)

    def take(self, credit: int = 1):
        """Take one message and let its memory go; return subpartition, type and content."""
        outgoing = self.queue.next(credit)
        if outgoing is None:
            return None
        payload, release, data_type = outgoing.buffer
        content = bytes(payload)
        if release is not None:
            release()
        return outgoing.subpartition, data_type, content

    def all_memory_is_back(self) -> bool:
        self.pool.destroy()  # gives the segments kept for the next writer back too
        return self.network.available_segments == SEGMENTS


@pytest.fixture
def rig():
    return Rig()


def test_an_open_buffer_stays_until_it_is_flushed_or_full(rig):
    rig.write(0, b"abc")
    assert rig.take() is None
    assert rig.told == 0
    assert rig.queue.has_open_buffers
    rig.queue.flush(0)
    assert rig.told == 1
    assert rig.take() == (0, DATA, b"abc")
    rig.queue.flush(0)
    assert rig.take() is None
    rig.write(0, b"defgh")
    assert rig.take() == (0, DATA, b"defgh")
    assert not rig.queue.has_open_buffers


def test_data_and_events_wait_for_credit(rig):
    rig.event(b"first", EVENT, 1)
    rig.write(0, bytes(SIZE))
    rig.event(b"second", EVENT, 0)
    for expected in ((1, EVENT, b"first"), (0, DATA, bytes(SIZE)), (0, EVENT, b"second")):
        assert not rig.queue.is_available(0)
        assert rig.take(0) is None
        assert rig.take(1) == expected


def test_a_priority_event_overtakes_data_that_has_no_credit(rig):
    rig.write(0, bytes(SIZE))
    told = rig.told
    rig.event(b"one", PRIORITY_EVENT, 0)
    assert rig.told > told  # without this, the queue is not asked before credit comes
    rig.event(b"two", PRIORITY_EVENT, ALL_SUBPARTITIONS)
    assert rig.queue.is_available(0)
    assert not rig.queue.is_available(-MAX_OVERDRAFT_EVENTS)
    assert rig.take(-MAX_OVERDRAFT_EVENTS) is None
    assert rig.take(0) == (0, PRIORITY_EVENT, b"one")
    assert rig.take(1 - MAX_OVERDRAFT_EVENTS) == (ALL_SUBPARTITIONS, PRIORITY_EVENT, b"two")
    assert rig.take(1) == (0, DATA, bytes(SIZE))


def test_a_second_buffer_can_be_flushed_while_the_first_ones_flush_waits(rig):
    rig.write(0, b"abc")
    rig.queue.flush(0)
    rig.write(0, b"defgh")  # the first buffer is complete
    rig.write(0, b"xyz")
    rig.queue.flush(0)
    assert [rig.take(), rig.take(), rig.take()] == [
        (0, DATA, b"abcdefgh"),
        (0, DATA, b"xyz"),
        None,
    ]


def test_a_second_flush_promises_no_bytes_that_are_written_later(rig):
    rig.write(0, b"abc")
    for _ in range(2):
        rig.queue.flush(0)
        rig.queue.flush_all()
    assert rig.take() == (0, DATA, b"abc")
    rig.write(0, b"d")
    assert rig.take() is None


def test_a_flush_of_a_subpartition_includes_the_open_broadcast_buffer(rig):
    rig.write(ALL_SUBPARTITIONS, b"abc")
    rig.queue.flush(2)
    assert rig.take() == (ALL_SUBPARTITIONS, DATA, b"abc")


def test_a_buffer_without_unread_bytes_needs_no_credit(rig):
    rig.write(0, b"abc")
    rig.queue.flush(0)
    assert rig.take(1) == (0, DATA, b"abc")
    rig.queue.finish_open()
    assert len(rig.queue) == 1
    assert rig.queue.is_available(0)
    assert rig.take(0) is None
    assert len(rig.queue) == 0
    assert rig.all_memory_is_back()


def test_read_buffers_are_finished_and_others_stay_open(rig):
    rig.write(0, b"abc")
    rig.write(1, b"abc")
    rig.queue.flush(0)
    assert rig.queue.unread_flushed() == 1
    rig.take()
    rig.queue.finish_open(only_sent=True)
    assert rig.builders[0].is_finished
    assert not rig.builders[1].is_finished


def test_clear_gives_everything_back(rig):
    rig.write(0, b"abc")
    rig.queue.flush(0)
    rig.write(1, bytes(3 * SIZE + 1))
    rig.event(b"e", EVENT, 0)
    rig.queue.clear()
    assert len(rig.queue) == 0
    assert rig.take() is None
    assert rig.all_memory_is_back()


WHERE = st.integers(ALL_SUBPARTITIONS, CHANNELS - 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), WHERE, st.integers(1, 2 * SIZE)),
        st.tuples(
            st.just("event"), WHERE, st.sampled_from([EVENT, PRIORITY_EVENT, BLOCKING_EVENT])
        ),
        st.tuples(st.just("flush"), WHERE, st.just(0)),
        st.tuples(st.just("flush all"), WHERE, st.just(0)),
        st.tuples(st.just("finish"), WHERE, st.just(0)),
        st.tuples(st.just("take"), WHERE, st.integers(0, 3)),
    ),
    max_size=40,
)


@given(STEPS)
def test_any_interleaving_keeps_the_order_of_each_channel(steps):
    rig = Rig()
    # By channel: bytes and events in the order of adding; priority events apart.
    added: list[list[int | bytes]] = [[] for _ in range(CHANNELS)]
    urgent: list[list[bytes]] = [[] for _ in range(CHANNELS)]
    got: list[list[int | bytes]] = [[] for _ in range(CHANNELS)]
    got_urgent: list[list[bytes]] = [[] for _ in range(CHANNELS)]
    written = 0

    def channels(where):
        return range(CHANNELS) if where == ALL_SUBPARTITIONS else [where]

    def take(credit):
        taken = rig.take(credit)
        if taken is None:
            return False
        where, data_type, content = taken
        assert data_type == PRIORITY_EVENT or (credit and content)
        for channel in channels(where):
            if data_type == PRIORITY_EVENT:
                got_urgent[channel].append(content)
            else:
                got[channel] += content if data_type == DATA else [content]
        return True

    for number, (what, where, value) in enumerate(steps):
        if what == "write":
            content = bytes((written + i) % 251 for i in range(value))
            written += value
            rig.write(where, content)
            for channel in channels(where):
                added[channel] += content
        elif what == "event":
            event = b"event %d" % number
            rig.event(event, value, where)
            for channel in channels(where):
                if value == PRIORITY_EVENT:
                    urgent[channel].append(event)
                else:
                    added[channel].append(event)
        elif what == "flush":
            rig.queue.flush(where)
        elif what == "flush all":
            rig.queue.flush_all()
        elif what == "finish":
            builder = rig.builders.get(where)
            if builder is not None:
                builder.finish()
        else:
            take(value)
        for channel in range(CHANNELS):
            assert got[channel] == added[channel][: len(got[channel])]
    rig.queue.finish_open()
    while take(1):
        pass
    assert got == added
    assert got_urgent == urgent
    assert len(rig.queue) == 0
    assert rig.all_memory_is_back()
