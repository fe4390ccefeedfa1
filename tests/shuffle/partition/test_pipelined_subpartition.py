"""The queue between a producer and its reader: what may be taken, and when the reader is told."""

from __future__ import annotations

import pytest

from sluice.protocol.credit import MAX_OVERDRAFT_EVENTS
from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.protocol.events import EndOfPartition, decode_event
from sluice.protocol.schema import BLOCKING_EVENT, EVENT, PRIORITY_EVENT
from sluice.shuffle.errors import (
    InvalidRequest,
    PartitionAlreadyFinished,
    PartitionReleased,
)
from sluice.shuffle.partition.partition_states import SubpartitionState
from sluice.shuffle.partition.shared_buffer import finished_consumer
from sluice.shuffle.partition.view import is_pipelined
from tests.shuffle.partition.rig import SubpartitionRig, read
from tests.support.raises_code import raises_code


@pytest.fixture
def rig():
    rig = SubpartitionRig()
    yield rig
    rig.release()
    assert rig.pool.lent_segments == 0, "a buffer was not given up"


# ---- notifications and backlog --------------------------------------------------------------


def test_flushing_twice_with_one_unfinished_buffer_tells_the_reader_once(rig):
    view = rig.view()
    builder = rig.open(b"abc")
    assert (rig.told.take(), view.backlog, view.is_available(1)) == (0, 0, False)
    assert view.next_buffer(1) is None
    rig.subpartition.flush()
    assert (rig.told.take(), view.backlog, view.is_available(1)) == (1, 1, True)
    builder.append_and_commit(b"de")
    rig.subpartition.flush()
    assert (rig.told.take(), view.backlog) == (0, 1)
    assert read(view) == b"abcde"
    assert (view.backlog, view.is_available(1)) == (0, False)
    rig.subpartition.flush()  # nothing unread
    assert rig.told.take() == 0
    builder.append_and_commit(b"f")
    rig.subpartition.flush()
    assert rig.told.take() == 1
    assert read(view) == b"f"
    builder.finish()
    assert (rig.told.take(), view.backlog, view.next_buffer(1)) == (0, 0, None)
    assert rig.pool.lent_segments == 0


def test_adding_behind_an_open_buffer_finishes_it(rig):
    """This rule keeps the order of the channel, whatever is added."""
    view = rig.view()
    first = rig.open(b"a")
    second = rig.open(b"b")
    assert (first.is_finished, second.is_finished) == (True, False)
    assert (rig.told.take(), view.backlog) == (1, 1)
    assert (read(view), view.next_buffer(1)) == (b"a", None)
    rig.subpartition.flush()
    assert (rig.told.take(), view.backlog) == (1, 1)
    rig.subpartition.flush()
    assert rig.told.take() == 0
    assert read(view) == b"b"


def test_empty_buffers_are_not_kept(rig):
    view = rig.view()
    rig.subpartition.add(rig.finished(b""))
    rig.open(b"").finish()
    rig.open(b"")
    rig.subpartition.flush()
    assert (rig.told.take(), view.backlog, rig.pool.lent_segments) == (0, 0, 1)
    rig.subpartition.add(rig.finished(b"x"))
    assert (rig.told.take(), view.backlog, rig.pool.lent_segments) == (1, 1, 1)
    assert read(view) == b"x"


def test_a_second_view_is_refused_and_so_is_adding_after_the_end(rig):
    view = rig.view()
    with raises_code(ErrorCode.SUBPARTITION_IN_USE, "subpartition 0"):
        rig.view()
    rig.subpartition.finish()
    with pytest.raises(PartitionAlreadyFinished):
        rig.subpartition.add(rig.finished(b"late"))
    with pytest.raises(PartitionAlreadyFinished):
        rig.event(b"late", EVENT)
    assert rig.pool.lent_segments == 0
    view.release()
    with pytest.raises(PartitionReleased, match="reader of the subpartition is gone"):
        rig.view()


def test_a_view_created_late_is_told_of_waiting_buffers(rig):
    rig.subpartition.add(rig.finished(b"a"))
    view = rig.view()
    assert (rig.told.take(), view.backlog) == (1, 1)
    rig.subpartition.add(rig.finished(b"b"))
    assert rig.told.take() == 0
    assert is_pipelined(view)
    assert view.is_local


# ---- credit and events ----------------------------------------------------------------------


def test_data_needs_credit(rig):
    view = rig.view()
    rig.subpartition.add(rig.finished(b"a"))
    assert not view.is_available(0)
    assert view.next_buffer(0) is None
    assert view.backlog == 1
    assert read(view, 1) == b"a"


def test_a_blocking_event_stops_reading_until_consumption_is_resumed(rig):
    view = rig.view()
    rig.subpartition.add(rig.finished(b"a"))
    rig.event(b"barrier", BLOCKING_EVENT)
    rig.subpartition.add(rig.finished(b"b"))
    assert read(view) == b"a"
    assert view.next_buffer(1) == (b"barrier", None, BLOCKING_EVENT)
    assert rig.told.take() == 1
    for _ in range(2):
        assert (view.is_available(5), view.next_buffer(5), view.backlog) == (False, None, 0)
        rig.subpartition.add(rig.finished(b"c"))
        rig.event(b"priority", PRIORITY_EVENT)
        rig.open(b"d")
        rig.subpartition.flush()
        assert (rig.told.take(), view.has_priority_event) == (0, False)
    view.resume_consumption()
    assert (rig.told.take(), view.backlog, view.has_priority_event) == (1, 5, True)
    seen = [read(view) for _ in range(8)]
    assert seen == [b"priority", b"priority", b"b", b"c", b"d", b"c", b"d", None]
    with pytest.raises(InvalidRequest, match="not blocked"):
        view.resume_consumption()


def test_a_priority_event_is_seen_first_and_the_rest_in_order(rig):
    view = rig.view()
    rig.subpartition.add(rig.finished(b"1"))
    rig.event(b"2", EVENT)
    rig.subpartition.add(rig.finished(b"3"))
    assert rig.told.take() == 1
    rig.event(b"first", PRIORITY_EVENT)
    # It may be taken without credit, which a reader that waits for credit cannot know.
    assert (rig.told.take(), view.is_available(0), view.has_priority_event) == (1, True, True)
    rig.event(b"second", PRIORITY_EVENT)
    assert (rig.told.take(), view.backlog) == (0, 3)
    assert view.next_buffer(0) == (b"first", None, PRIORITY_EVENT)
    assert view.next_buffer(0) == (b"second", None, PRIORITY_EVENT)
    assert (view.next_buffer(0), view.has_priority_event) == (None, False)
    assert [read(view) for _ in range(4)] == [b"1", b"2", b"3", None]


def test_an_event_takes_a_buffer_and_a_credit_until_it_is_read(rig):
    view = rig.view()
    rig.event(b"1", EVENT)
    rig.event(b"2", BLOCKING_EVENT)
    assert (rig.pool.lent_segments, view.backlog) == (2, 2)
    assert (view.is_available(0), view.next_buffer(0)) == (False, None)
    assert read(view, 1) == b"1"
    assert rig.pool.lent_segments == 1
    assert read(view, 1) == b"2"
    assert (rig.pool.lent_segments, view.backlog) == (0, 0)


def test_a_priority_event_takes_no_buffer_and_may_go_on_account(rig):
    view = rig.view()
    rig.event(b"first", PRIORITY_EVENT)
    assert (rig.pool.lent_segments, view.backlog) == (0, 0)
    for credit in (-MAX_OVERDRAFT_EVENTS, -MAX_OVERDRAFT_EVENTS - 1):
        assert (view.is_available(credit), view.next_buffer(credit)) == (False, None)
    assert read(view, 1 - MAX_OVERDRAFT_EVENTS) == b"first"


def test_the_end_does_not_overtake_a_priority_event(rig):
    view = rig.view()
    rig.event(b"first", PRIORITY_EVENT)
    rig.subpartition.finish()
    assert view.next_buffer(-MAX_OVERDRAFT_EVENTS) is None
    assert read(view, 0) == b"first"
    assert decode_event(read(view, -MAX_OVERDRAFT_EVENTS) or b"") == EndOfPartition(0, 0)


# ---- the three answers: nothing yet, released, the end --------------------------------------


def test_the_end_comes_last_with_the_totals_of_the_channel(rig):
    view = rig.view()
    builder = rig.open(b"abc")
    rig.subpartition.flush()
    assert read(view) == b"abc"
    builder.append_and_commit(b"de")
    rig.subpartition.add(rig.finished(b"fg"))
    rig.told.take()
    rig.subpartition.finish()
    rig.subpartition.finish()
    assert rig.told.take() == 0
    assert [read(view), read(view)] == [b"de", b"fg"]
    assert view.is_available(0)
    end = view.next_buffer(0)
    assert end.data_type == EVENT
    assert decode_event(end.payload) == EndOfPartition(7, 3)  # the open buffer went in two parts
    assert (view.is_available(1), view.next_buffer(1)) == (False, None)
    rig.subpartition.release()
    assert view.failure is None  # it has had everything
    view.release()
    assert rig.owner.consumed == [0]


def test_a_partition_released_under_its_reader_is_an_error(rig):
    view = rig.view()
    rig.subpartition.add(rig.finished(b"a"))
    rig.open(b"b")
    rig.event(b"event", PRIORITY_EVENT)
    rig.told.take()
    builder = rig.subpartition.release()
    assert builder is not None
    assert rig.subpartition.release() is None
    assert (rig.told.take(), rig.pool.lent_segments) == (1, 1)  # the builder has it
    assert isinstance(view.failure, PartitionReleased)
    with pytest.raises(PartitionReleased):
        view.next_buffer(1)
    builder.finish()
    assert rig.pool.lent_segments == 0
    assert (view.is_available(1), view.backlog, view.has_priority_event) == (False, 0, False)


def test_a_failure_reaches_present_and_later_readers(rig):
    cause = SluiceError("the producer died")
    rig.subpartition.release(cause)
    with pytest.raises(SluiceError, match="the producer died"):
        rig.view()
    other = SubpartitionRig()
    view = other.view()
    other.subpartition.release(cause)
    assert view.failure is cause
    assert other.told.take() == 1


def test_buffers_that_were_taken_outlive_the_release(rig):
    """The consumer holds the producer's own buffer, not a copy."""
    view = rig.view()
    source = rig.buffer(b"abc")
    rig.subpartition.add(finished_consumer(source))
    taken = view.next_buffer(1)
    rig.subpartition.release()
    view.release()
    assert rig.pool.lent_segments == 1
    source.segment.memory[:3] = b"xyz"
    assert bytes(taken.payload) == b"xyz"
    taken.release()
    with pytest.raises(SluiceError):
        taken.release()


def test_bytes_extend_the_last_buffer_while_it_waits(rig):
    view = rig.view()
    joins = rig.subpartition.extend_last
    assert not joins(b"nothing waits")
    rig.subpartition.add(rig.finished(b"abc"))
    assert joins(b"de")
    assert (rig.told.take(), view.backlog) == (1, 1)
    assert not joins(bytes(60))  # of 64 in all
    assert joins(b"f")
    assert (read(view), read(view)) == (b"abcdef", None)


def test_an_event_and_a_shared_or_open_buffer_are_not_extended(rig):
    view = rig.view()
    joins = rig.subpartition.extend_last
    shared = rig.finished(b"for all")
    other = shared.copy()
    rig.subpartition.add(shared)
    assert not joins(b"for one")
    other.close()
    rig.open(b"open")
    assert not joins(b"behind it")
    rig.event(b"event", EVENT)
    assert not joins(b"behind it")
    assert [read(view) for _ in range(4)] == [b"for all", b"open", b"event", None]
    assert view.next_buffer(1) is None


def test_buffers_and_events_after_the_reader_left_are_dropped(rig):
    view = rig.view()
    builder = rig.open(b"a")
    rig.event(b"barrier", BLOCKING_EVENT)
    view.release()
    view.release()
    assert rig.owner.consumed == [0]
    assert rig.subpartition.state is SubpartitionState.RELEASED
    assert (builder.is_finished, rig.pool.lent_segments) == (True, 0)
    rig.subpartition.add(rig.finished(b"b"))
    rig.open(b"c").finish()
    rig.event(b"event", EVENT)
    rig.subpartition.flush()
    rig.subpartition.finish()
    assert rig.pool.lent_segments == 0
    assert (view.next_buffer(1), view.is_available(1), view.failure) == (None, False, None)
    view.resume_consumption()


def test_resuming_a_subpartition_that_was_just_released_is_no_error(rig):
    view = rig.view()
    rig.event(b"barrier", BLOCKING_EVENT)
    read(view)
    rig.subpartition.release()
    view.resume_consumption()
    assert isinstance(view.failure, PartitionReleased)


def test_a_release_returns_the_builder_of_the_open_buffer(rig):
    builder = rig.open(b"a")
    assert rig.subpartition.release() is builder
    assert (builder.is_finished, rig.pool.lent_segments) == (False, 1)
    builder.finish()
    assert rig.pool.lent_segments == 0


def test_a_broadcast_buffer_is_finished_in_every_subpartition_at_once(rig):
    other = SubpartitionRig()
    other.view()
    view = rig.view()
    builder = rig.builder()
    consumer = builder.create_consumer()
    other.subpartition.add(consumer.copy())
    rig.subpartition.add(consumer)
    builder.append_and_commit(b"both")
    rig.event(b"event", EVENT)
    assert (rig.told.take(), other.told.take()) == (1, 1)
    assert [read(view), read(view)] == [b"both", b"event"]
    assert rig.pool.lent_segments == 1
    other.release()
    assert rig.pool.lent_segments == 0


def test_a_listener_that_reads_at_once_finds_everything_in_order(rig):
    seen: list[bytes] = []

    def listen():
        while (content := read(view)) is not None:
            seen.append(content)

    view = rig.subpartition.create_view(listen)
    rig.subpartition.add(rig.finished(b"a"))
    rig.open(b"b")
    rig.open(b"c")
    rig.subpartition.flush()
    rig.event(b"d", EVENT)
    rig.event(b"e", PRIORITY_EVENT)
    assert seen == [b"a", b"b", b"c", b"d", b"e"]
    view.release()
