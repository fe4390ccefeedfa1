"""A channel whose producer is not known yet: kept, updated, released."""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.schema import DATA
from sluice.shuffle.errors import InvalidRequest, TooManyTaskEvents, UnknownProducer
from sluice.shuffle.gate.input_gate import UnknownInputChannel
from sluice.shuffle.gate.local_input_channel import LocalInputChannel
from sluice.shuffle.gate.remote_input_channel import RemoteInputChannel
from sluice.shuffle.gate.task_events import MAX_KEPT_TASK_EVENTS
from tests.support.gates import KEY, HandFilledGate, gate_of, here, source
from tests.support.mini_cluster import mini_cluster
from tests.support.raises_code import raises_code

DEADLINE_SECONDS = 0.05


class Producer:
    def __init__(self) -> None:
        self.events: list[tuple[int, bytes]] = []

    def hear(self, event_type: int, payload: bytes) -> None:
        self.events.append((event_type, payload))


def test_an_unknown_channel_gives_nothing_and_is_never_blocked():
    channel = UnknownInputChannel(lambda: None)
    assert not channel.is_available(100)
    assert channel.next_buffer(100) is None
    with pytest.raises(InvalidRequest, match="not blocked"):
        channel.resume_consumption()


async def test_events_kept_for_an_unknown_channel_are_delivered_when_it_becomes_known():
    gate = HandFilledGate()
    producer = Producer()
    gate.services.task_events.register(KEY, 7, producer.hear)
    gate.add_unknown_channel()
    gate.send_task_event(1, b"first")
    gate.send_task_event(2, b"second")
    gate.update_channel(0, here(7))
    gate.send_task_event(3, b"third")
    await asyncio.sleep(0)
    assert producer.events == [(1, b"first"), (2, b"second"), (3, b"third")]
    gate.release()


async def test_events_kept_for_an_unknown_channel_are_bounded_and_the_others_get_theirs():
    gate = HandFilledGate()
    producer = Producer()
    gate.services.task_events.register(KEY, 7, producer.hear)
    gate.add_unknown_channel()
    gate.add_channel(here(7))
    await asyncio.sleep(0)
    for number in range(MAX_KEPT_TASK_EVENTS):
        gate.send_task_event(number)
    with pytest.raises(TooManyTaskEvents):
        gate.send_task_event(99)
    assert len(producer.events) == MAX_KEPT_TASK_EVENTS + 1
    gate.release()


async def test_an_event_to_a_gate_reports_the_channel_without_a_producer():
    """The channel behind it has passed the event on."""
    gate = HandFilledGate(2)
    producer = Producer()
    gate.services.task_events.register(KEY, 1, producer.hear)
    await asyncio.sleep(0)
    with pytest.raises(UnknownProducer) as caught:
        gate.send_task_event(5, b"x")
    assert caught.value.map_attempt_id == 0
    assert producer.events == [(5, b"x")]
    gate.views[0].end()
    assert gate.take() == (0, "event")
    gate.send_task_event(6)  # a channel that has ended has no producer to tell
    assert producer.events[1:] == [(6, b"")]
    gate.release()


async def test_a_gate_waits_for_its_unknown_channel_and_reads_it_in_turn():
    gate = HandFilledGate(1)
    gate.add_unknown_channel()
    await asyncio.sleep(0)
    gate.views[0].end()
    assert gate.take() == (0, "event")
    reading = asyncio.ensure_future(gate.next_buffer_or_event())
    await asyncio.sleep(0)
    assert not gate.has_ended
    channel = gate.update_channel(1, here(7))
    assert gate.channels[1] is channel
    await asyncio.sleep(0)
    gate.views[7].put(b"late")
    taken = await reading
    assert taken is not None
    assert (taken.channel_index, taken.buffer.payload) == (1, b"late")
    gate.release()


async def test_a_producer_is_named_once():
    gate = HandFilledGate()
    gate.add_unknown_channel()
    gate.update_channel(0, here(7))
    with pytest.raises(InvalidRequest, match="is known already"):
        gate.update_channel(0, here(8))
    with pytest.raises(InvalidRequest, match="No such channel"):
        gate.update_channel(1, here(8))
    await asyncio.sleep(0)
    gate.release()


async def test_a_gate_is_released_while_a_producer_is_unknown():
    """An update that comes late does nothing."""
    gate = HandFilledGate()
    unknown = gate.add_unknown_channel()
    gate.send_task_event(1, b"")
    reading = asyncio.ensure_future(gate.next_buffer_or_event())
    await asyncio.sleep(0)
    gate.release()
    assert await reading is None
    assert gate.update_channel(0, here(7)) is unknown
    await asyncio.sleep(0)
    assert gate.views == {}
    assert len(unknown.task_events) == 0
    with pytest.raises(InvalidRequest, match="no more channels"):
        gate.add_unknown_channel()


async def test_the_successor_of_an_unknown_channel_has_its_listener():
    """The consumer leg reads channels through its own listeners."""
    calls: list[str] = []
    gate = HandFilledGate()
    gate.add_unknown_channel(lambda: calls.append("told"))
    channel = gate.update_channel(0, here(7))
    await asyncio.sleep(0)
    calls.clear()
    gate.views[7].put(b"x")
    assert calls == ["told"]
    assert not gate.is_available
    buffer = channel.next_buffer(1)
    assert buffer is not None
    gate.release()


async def test_one_gate_with_local_remote_and_unknown_channels(tmp_path):
    """One unknown channel becomes local, one remote."""
    async with mini_cluster(tmp_path) as cluster, gate_of(cluster[0]) as gate:
        for attempt in range(4):
            await cluster.write(attempt % 2, attempt, [[b"%d" % attempt * 5000]])
        gate.add_channel(source(cluster[0], 0))
        gate.add_channel(source(cluster[1], 1))
        gate.add_unknown_channel()
        gate.add_unknown_channel()
        content = [b"", b"", b"", b""]

        async def take() -> None:
            taken = await gate.next_buffer_or_event()
            assert taken is not None
            if taken.buffer.data_type == DATA:
                content[taken.channel_index] += bytes(taken.buffer.payload)
            if taken.buffer.release is not None:
                taken.buffer.release()

        while gate.statistics().ended_channels < 2:
            await take()
        assert content[2:] == [b"", b""]
        assert isinstance(gate.update_channel(2, source(cluster[0], 2)), LocalInputChannel)
        assert isinstance(gate.update_channel(3, source(cluster[1], 3)), RemoteInputChannel)
        while not gate.has_ended:
            await take()
        assert content == [b"%d" % attempt * 5000 for attempt in range(4)]
        assert gate.statistics()[:2] == (4, 4)
        done = gate.statistics()
        assert (done.bytes_in_local, done.bytes_in_remote) == (10_000, 10_000)
        assert done.buffers_in_local >= 4
        assert done.buffers_in_remote >= 4
        assert done.idle_seconds > 0


async def test_the_deadline_starts_when_the_producer_is_known(tmp_path):
    async with (
        mini_cluster(tmp_path, 1, partition_request_timeout_seconds=DEADLINE_SECONDS) as cluster,
        gate_of(cluster[0]) as gate,
    ):
        loop = asyncio.get_running_loop()
        gate.add_unknown_channel()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(4 * DEADLINE_SECONDS):
                await gate.next_buffer_or_event()
        known_at = loop.time()
        gate.update_channel(0, source(cluster[0], 9))
        with raises_code(ErrorCode.PARTITION_NOT_FOUND) as caught:
            await gate.next_buffer_or_event()
        assert loop.time() - known_at >= 0.9 * DEADLINE_SECONDS
        assert caught.value.map_attempt_id == 9
