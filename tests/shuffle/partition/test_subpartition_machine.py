"""Any order of adding, flushing, reading, resuming and releasing, against a model of the rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluice.protocol.credit import MAX_OVERDRAFT_EVENTS
from sluice.protocol.errors import ErrorCode
from sluice.protocol.events import EndOfPartition, decode_event
from sluice.protocol.schema import BLOCKING_EVENT, DATA, EVENT, PRIORITY_EVENT
from sluice.shuffle.errors import PartitionAlreadyFinished, PartitionReleased
from tests.shuffle.partition.rig import SubpartitionRig
from tests.support.raises_code import raises_code

SEGMENTS = 12
SIZE = 16

SELDOM = st.integers(0, 9).map(lambda number: number == 7)
"""Makes an end rare: hypothesis would choose it early, and learn nothing afterwards."""


class Item:
    """An entry of the model's queue: the unread data of a buffer, or an event."""

    def __init__(self, data_type: int, content: bytes, open_: bool = False) -> None:
        self.data_type = data_type
        self.content = content
        self.open = open_
        self.flushed = False


class SubpartitionMachine(RuleBasedStateMachine):
    @initialize(late=st.integers(0, 3))
    def start(self, late):
        self.rig = SubpartitionRig(SEGMENTS, SIZE)
        self.subpartition = self.rig.subpartition
        self.view: Any = None
        self.queue: list[Item] = []
        self.priority: list[Item] = []
        self.builder: Any = None
        self.pending = b""  # appended, not committed
        self.taken: list = []  # buffers that the reader holds, and their content
        self.blocked = self.finished = self.released = self.left = self.end_taken = False
        self.failed = False  # the reader was told that the rest is gone
        self.totals = [0, 0]
        self.knew = False
        self.urgent = False  # a priority event came first in a queue without one
        self.number = 0
        if late:
            self.create_view()

    def teardown(self):
        if not hasattr(self, "rig"):
            return
        self.rig.release()
        for buffer, _ in self.taken:
            buffer.release()
        assert self.rig.pool.lent_segments == 0
        self.rig.pool.destroy()
        assert self.rig.network.available_segments == self.rig.network.total_segments

    # ---- the model

    @property
    def gone(self):
        return self.released or self.left

    def takable(self):
        """List the entries that a reader with enough credit could take now, in order."""
        if self.blocked or self.gone or self.view is None:
            return []
        items = list(self.priority)
        for item in self.queue:
            if item.open and not item.flushed:
                break
            items.append(item)
            if item.data_type == BLOCKING_EVENT:
                break
        if self.finished and not self.end_taken and not self.queue and not self.priority:
            items.append(Item(EVENT, b"end"))
        return items

    def close_open(self):
        """Finish the open buffer: an entry comes behind it, or its writer has finished it."""
        if self.queue and self.queue[-1].open:
            last = self.queue[-1]
            last.content += self.pending  # finishing commits
            self.pending = b""
            last.open = last.flushed = False
            if not last.content:
                self.queue.pop()

    def fresh(self):
        self.number += 1
        return b"%d" % self.number

    def forget(self):
        self.queue.clear()
        self.priority.clear()
        self.pending = b""
        self.blocked = False

    # ---- the producer

    @precondition(lambda self: self.rig.pool.is_available)
    @rule(empty=st.booleans())
    def add_complete(self, empty):
        content = b"" if empty else self.fresh()
        consumer = self.rig.finished(content)
        if self.finished and not self.gone:
            with pytest.raises(PartitionAlreadyFinished):
                self.subpartition.add(consumer)
            return
        self.subpartition.add(consumer)
        if not self.gone:
            self.close_open()
            if content:
                self.queue.append(Item(DATA, content))

    @precondition(lambda self: self.rig.pool.is_available and not self.finished)
    @rule()
    def add_open(self):
        self.builder = self.rig.builder()
        self.subpartition.add(self.builder.create_consumer())
        if self.gone:
            self.builder.finish()
        else:
            self.close_open()
            self.queue.append(Item(DATA, b"", True))

    @precondition(lambda self: self.builder is not None and not self.builder.is_finished)
    @rule(commit=st.booleans())
    def write(self, commit):
        content = self.fresh()
        content = content[: self.builder.append(content)]
        self.pending += content
        if commit:
            self.builder.commit()
            self.queue[-1].content += self.pending
            self.pending = b""

    @precondition(lambda self: self.builder is not None)
    @rule()
    def finish_builder(self):
        self.close_open()
        self.builder.finish()

    @rule(data_type=st.sampled_from([EVENT, PRIORITY_EVENT, BLOCKING_EVENT]))
    def add_event(self, data_type):
        content = self.fresh()
        if self.finished and not self.gone:
            with pytest.raises(PartitionAlreadyFinished):
                self.rig.event(content, data_type)
            return
        self.rig.event(content, data_type)
        if self.gone:
            return
        if data_type == PRIORITY_EVENT:
            self.urgent = not self.priority
            self.priority.append(Item(data_type, content))
        else:
            self.close_open()
            self.queue.append(Item(data_type, content))

    @rule()
    def flush(self):
        self.subpartition.flush()
        if self.queue and self.queue[-1].open and self.queue[-1].content:
            self.queue[-1].flushed = True

    @rule(really=SELDOM)
    def finish(self, really):
        if not really:
            return
        self.subpartition.finish()
        if not self.gone:
            self.close_open()
            self.finished = True

    @precondition(lambda self: self.number > 12)
    @rule(really=SELDOM)
    def release(self, really):
        if not really:
            return
        was_waiting = self.view is not None and not self.gone and not self.end_taken
        self.rig.told.take()
        self.rig.release()
        assert self.rig.told.take() == was_waiting
        self.failed = self.failed or was_waiting
        if not self.gone:
            self.released = True
        self.forget()

    # ---- the reader

    @precondition(lambda self: not self.gone)
    @rule()
    def create_view(self):
        if self.view is not None:
            with raises_code(ErrorCode.SUBPARTITION_IN_USE):
                self.rig.view()
        else:
            self.view = self.rig.view()

    @precondition(lambda self: self.view is not None)
    @rule(credit=st.sampled_from([-8, -7, 0, 1, 1, 5]))
    def read(self, credit):
        self.read_one(credit)

    @precondition(lambda self: self.view is not None)
    @rule(credit=st.integers(0, 3))
    def flush_and_read(self, credit):
        self.flush()
        self.check_told()
        self.read_one(credit)

    @precondition(lambda self: self.builder is not None and not self.builder.is_finished)
    @rule()
    def write_and_flush(self):
        self.write(commit=True)
        self.flush()

    def least_credit(self, item):
        if item.data_type == PRIORITY_EVENT:
            return -MAX_OVERDRAFT_EVENTS
        return -100 if item.content == b"end" else 0

    def read_one(self, credit):
        if self.failed:
            with pytest.raises(PartitionReleased):
                self.view.next_buffer(credit)
            return
        items = self.takable()
        expected = items[0] if items and credit > self.least_credit(items[0]) else None
        assert self.view.is_available(credit) is (expected is not None)
        buffer = self.view.next_buffer(credit)
        self.knew = bool(self.takable())
        if expected is None:
            assert buffer is None
            return
        assert buffer.data_type == expected.data_type
        if expected.data_type == DATA:
            assert bytes(buffer.payload) == expected.content
            self.taken.append((buffer, expected.content))
            self.totals[0] += len(expected.content)
            self.totals[1] += 1
            if expected.open:
                expected.content, expected.flushed = b"", False
            else:
                self.queue.pop(0)
        elif expected.content == b"end":
            assert decode_event(buffer.payload) == EndOfPartition(*self.totals)
            self.end_taken = True
        else:
            assert buffer.payload == expected.content
            (self.priority if expected.data_type == PRIORITY_EVENT else self.queue).pop(0)
            self.blocked = expected.data_type == BLOCKING_EVENT
        self.knew = bool(self.takable())

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def give_back(self, data):
        buffer, content = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        assert bytes(buffer.payload) == content
        buffer.release()

    @precondition(lambda self: self.blocked)
    @rule()
    def resume(self):
        self.view.resume_consumption()
        self.blocked = False

    @precondition(lambda self: self.view is not None and self.number > 12)
    @rule(really=SELDOM)
    def leave(self, really):
        if not really:
            return
        self.view.release()
        self.left = True
        self.forget()
        assert self.rig.owner.consumed == [0]

    # ---- what holds after every step

    @invariant()
    def the_reader_was_told_exactly_when_it_had_to_be(self):
        self.check_told()

    def check_told(self):
        items = self.takable()
        urgent = self.urgent and not self.blocked and self.view is not None
        expected = 1 if items and (not self.knew or urgent) else 0
        told = self.rig.told.take()
        assert told == expected, (told, expected)
        self.knew = bool(items)
        self.urgent = False

    @invariant()
    def the_backlog_is_what_can_be_taken(self):
        if self.view is not None:
            # A blocking event hides the entries behind it only when it has been taken.
            takable = [item for item in self.queue if not item.open or item.flushed]
            assert self.view.backlog == (0 if self.blocked or self.gone else len(takable))
            assert self.view.is_available(1) is bool(self.takable())
            assert self.view.has_priority_event is (bool(self.priority) and not self.blocked)

    @invariant()
    def buffers_are_conserved(self):
        assert self.rig.pool.lent_segments <= len(self.taken) + len(self.queue)
        assert self.rig.events.beside_pool <= len(self.queue) + len(self.priority)

    @invariant()
    def what_was_taken_stays_as_it_is(self):
        for buffer, content in self.taken:
            assert bytes(buffer.payload) == content


class TestSubpartitionMachine(SubpartitionMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
