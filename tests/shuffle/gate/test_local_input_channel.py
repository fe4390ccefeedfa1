"""The consuming end of a channel on the same TaskManager."""

from __future__ import annotations

import pytest

from sluice.protocol.errors import SluiceError
from sluice.protocol.schema import EVENT
from sluice.shuffle.errors import InvalidRequest
from sluice.shuffle.gate.local_input_channel import LocalInputChannel
from tests.support.fakes import FakeView


class Rig:
    def __init__(self) -> None:
        self.notified = 0
        self.channel = LocalInputChannel(self._notify)
        self.view = FakeView()

    def _notify(self) -> None:
        self.notified += 1


@pytest.fixture
def rig():
    return Rig()


def test_nothing_yet_end_and_failure_are_three_answers(rig):
    assert not rig.channel.is_available(1)
    assert rig.channel.next_buffer(1) is None
    rig.channel.attach(rig.view)
    assert rig.channel.next_buffer(1) is None
    rig.view.put(b"data", end=True)
    assert rig.channel.backlog == 1
    assert rig.channel.next_buffer(0) is None
    assert rig.channel.next_buffer(1).payload == b"data"
    assert rig.channel.next_buffer(0).data_type == EVENT
    assert (rig.channel.bytes_in, rig.channel.buffers_in) == (4, 1)
    rig.view.failure = SluiceError("read failed")
    assert rig.channel.failure is rig.view.failure
    with pytest.raises(SluiceError, match="read failed"):
        rig.channel.next_buffer(1)


def test_data_for_the_message_before_is_counted(rig):
    assert rig.channel.take_more(9) is None
    rig.channel.attach(rig.view)
    rig.view.put(b"data", b"more", b"too much", end=True)
    rig.channel.next_buffer(1)
    assert rig.channel.take_more(5).payload == b"more"
    assert rig.channel.take_more(5) is None
    assert (rig.channel.bytes_in, rig.channel.buffers_in) == (8, 2)


def test_a_local_channel_gives_the_partitions_own_buffer(rig):
    """The consumer holds the producer's own buffer until it releases it."""
    rig.channel.attach(rig.view)
    rig.view.put(b"own")
    buffer = rig.channel.next_buffer(1)
    assert rig.view.recycled == 0
    buffer.release()
    assert rig.view.recycled == 1


def test_a_view_that_comes_after_the_release_is_given_back(rig):
    rig.channel.release()
    rig.channel.attach(rig.view)
    assert (rig.view.releases, rig.notified) == (1, 0)
    assert rig.channel.next_buffer(1) is None


def test_release_is_idempotent_and_nothing_fails_after_it(rig):
    rig.channel.attach(rig.view)
    rig.channel.release()
    rig.channel.release()
    rig.channel.fail(SluiceError("late"))
    assert (rig.view.releases, rig.notified) == (1, 1)
    assert rig.channel.failure is None


def test_the_first_failure_counts(rig):
    rig.channel.fail(SluiceError("first"))
    rig.channel.fail(SluiceError("second"))
    assert rig.notified == 1
    with pytest.raises(SluiceError, match="first"):
        rig.channel.next_buffer(1)


class FakePipelinedView(FakeView):
    has_priority_event = False

    def __init__(self) -> None:
        super().__init__()
        self.resumed = 0

    def resume_consumption(self) -> None:
        self.resumed += 1


def test_messages_of_the_consumer_reach_a_pipelined_view(rig):
    rig.view = FakePipelinedView()
    rig.channel.attach(rig.view)
    rig.channel.resume_consumption()
    assert rig.view.resumed == 1
    rig.channel.release()
    rig.channel.resume_consumption()
    assert rig.view.resumed == 1


def test_a_priority_event_shows_in_the_channel(rig):
    rig.view = FakePipelinedView()
    assert not rig.channel.has_priority_event
    rig.channel.attach(rig.view)
    assert not rig.channel.has_priority_event
    rig.view.has_priority_event = True
    assert rig.channel.has_priority_event


def test_a_stored_partition_refuses_resumption(rig):
    rig.channel.attach(rig.view)
    assert not rig.channel.has_priority_event
    with pytest.raises(InvalidRequest, match="not blocked"):
        rig.channel.resume_consumption()
