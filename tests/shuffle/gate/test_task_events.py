"""Events from consumers back to producers: delivered, kept within bounds, or refused aloud."""

from __future__ import annotations

import pytest

from sluice.protocol.errors import ErrorCode, InvalidEvent
from sluice.protocol.limits import MAX_EVENT_BYTES, MAX_U32
from sluice.shuffle.errors import TooManyTaskEvents, UnknownProducer
from sluice.shuffle.gate.input_gate import UnknownInputChannel
from sluice.shuffle.gate.local_input_channel import LocalInputChannel, TaskEventDispatcher
from sluice.shuffle.gate.task_events import (
    MAX_KEPT_TASK_EVENTS,
    KeptTaskEvents,
)
from sluice.shuffle.names import ShuffleKey
from tests.support.fakes import FakeView
from tests.support.raises_code import raises_code

KEY = ShuffleKey("app", 1)


class Producer:
    def __init__(self) -> None:
        self.events: list[tuple[int, bytes]] = []

    def hear(self, event_type: int, payload: bytes) -> None:
        self.events.append((event_type, payload))


@pytest.fixture
def dispatcher():
    return TaskEventDispatcher()


def test_an_event_goes_to_the_producer_of_its_map_attempt_and_no_other(dispatcher):
    producers = [Producer() for _ in range(3)]
    dispatcher.register(KEY, 1, producers[0].hear)
    dispatcher.register(KEY, 2, producers[1].hear)
    dispatcher.register(ShuffleKey("app", 2), 1, producers[2].hear)
    dispatcher.publish(KEY, 2, 7, b"back")
    assert [producer.events for producer in producers] == [[], [(7, b"back")], []]


def test_an_unknown_producer_is_reported_with_its_number(dispatcher):
    with pytest.raises(UnknownProducer) as caught:
        dispatcher.publish(KEY, 9, 7, b"")
    assert caught.value.code is ErrorCode.UNKNOWN_PRODUCER
    assert caught.value.map_attempt_id == 9
    assert "shuffle 1" in str(caught.value)


def test_a_producer_that_has_finished_is_unknown_and_its_successor_stays(dispatcher):
    old, new = Producer(), Producer()
    dispatcher.register(KEY, 1, old.hear)
    with raises_code(ErrorCode.DUPLICATE_MAP_OUTPUT, "has a producer already"):
        dispatcher.register(KEY, 1, new.hear)
    dispatcher.unregister(KEY, 1, old.hear)
    with pytest.raises(UnknownProducer):
        dispatcher.publish(KEY, 1, 7, b"")
    dispatcher.register(KEY, 1, new.hear)
    dispatcher.unregister(KEY, 1, old.hear)
    dispatcher.publish(KEY, 1, 7, b"x")
    assert (old.events, new.events) == ([], [(7, b"x")])
    dispatcher.unregister(KEY, 1, new.hear)
    assert len(dispatcher) == 0


def test_kept_events_are_bounded_and_in_order():
    kept = KeptTaskEvents()
    for number in range(MAX_KEPT_TASK_EVENTS):
        kept.keep(number, b"")
    with pytest.raises(TooManyTaskEvents) as caught:
        kept.keep(99, b"")
    assert caught.value.limit == MAX_KEPT_TASK_EVENTS
    assert [event_type for event_type, _ in kept.take()] == list(range(MAX_KEPT_TASK_EVENTS))
    assert kept.take() == []
    kept.keep(1, b"again")
    assert len(kept) == 1


def a_local_channel(publish):
    return LocalInputChannel(lambda: None, publish)


@pytest.mark.parametrize(
    "make", [a_local_channel, lambda publish: UnknownInputChannel(lambda: None)]
)
@pytest.mark.parametrize(
    ("event_type", "payload"), [(-1, b""), (MAX_U32 + 1, b""), (0, bytes(MAX_EVENT_BYTES + 1))]
)
def test_an_event_that_does_not_fit_the_wire_is_refused_on_every_channel(make, event_type, payload):
    channel = make(Producer().hear)
    with pytest.raises(InvalidEvent):
        channel.send_task_event(event_type, payload)
    channel.send_task_event(MAX_U32, bytes(MAX_EVENT_BYTES))


def test_a_local_channel_keeps_events_until_its_partition_is_found():
    producer = Producer()
    channel = a_local_channel(producer.hear)
    channel.send_task_event(1, b"first")
    channel.send_task_event(2, b"second")
    assert producer.events == []
    channel.attach(FakeView())
    channel.send_task_event(3, b"third")
    assert producer.events == [(1, b"first"), (2, b"second"), (3, b"third")]


def test_an_event_kept_for_a_producer_that_never_registers_fails_the_channel(dispatcher):
    """The call that sent it has returned without an error, so that the channel must fail now."""
    channel = a_local_channel(lambda kind, payload: dispatcher.publish(KEY, 1, kind, payload))
    channel.send_task_event(1, b"")
    channel.attach(FakeView())
    with pytest.raises(UnknownProducer):
        channel.next_buffer(1)


def test_an_event_to_an_open_channel_without_a_producer_is_refused_and_the_channel_lives(
    dispatcher,
):
    channel = a_local_channel(lambda kind, payload: dispatcher.publish(KEY, 1, kind, payload))
    channel.attach(FakeView())
    with pytest.raises(UnknownProducer):
        channel.send_task_event(1, b"")
    assert channel.failure is None
    assert channel.next_buffer(1) is None


def test_a_channel_without_a_way_back_refuses_events():
    channel = LocalInputChannel(lambda: None)
    channel.attach(FakeView())
    with pytest.raises(UnknownProducer, match="no way back"):
        channel.send_task_event(1, b"")


def test_a_released_channel_sends_nothing():
    producer = Producer()
    channel = a_local_channel(producer.hear)
    channel.send_task_event(1, b"")
    channel.release()
    channel.send_task_event(2, b"")
    channel.resume_consumption()
    channel.attach(FakeView())
    assert producer.events == []
