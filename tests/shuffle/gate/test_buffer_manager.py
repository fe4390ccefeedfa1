"""The receive buffers of one channel: exclusive ones, floating ones, and their credit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sluice.protocol.limits import RECEIVE_TAIL_BYTES
from sluice.shuffle.gate.buffer_manager import BufferManager
from sluice.shuffle.memory import NetworkBufferPool
from tests.support.network_memory import take_exclusive

if TYPE_CHECKING:
    from sluice.shuffle.memory.buffer import BufferGroup


def take(manager: BufferManager) -> BufferGroup | None:
    """One buffer."""
    groups = manager.take(1)
    if groups is None:
        return None
    (group,) = groups
    return group


class Credit:
    def __init__(self) -> None:
        self.total = 0

    def credit_available(self, buffers: int) -> None:
        self.total += buffers


class Rig:
    """A buffer manager and its pools."""

    def __init__(self, floating: int, exclusive: int = 2) -> None:
        self.network_pool = NetworkBufferPool(64, 32)
        self.pool = self.network_pool.create_local_pool("gate", min(1, floating), floating)
        self.credit = Credit()
        self.manager = self.another(self.credit, exclusive)

    def another(self, credit: Credit, exclusive: int = 2) -> BufferManager:
        segments = take_exclusive(self.network_pool, exclusive)
        return BufferManager(self.network_pool, self.pool, segments, credit)

    def check_all_back(self) -> None:
        self.pool.destroy()
        assert self.network_pool.available_segments == 64


def test_fourteen_floating_two_exclusive_and_a_growing_backlog():
    """Never more than required: a surplus floating buffer goes for an exclusive one."""
    rig = Rig(floating=14)
    out = []
    for backlog in range(1, 25):
        rig.manager.on_backlog(backlog)
        assert rig.manager.available <= rig.manager.required == backlog + 2
    assert (rig.manager.available, rig.manager.is_waiting) == (16, True)
    while (group := take(rig.manager)) is not None:
        out.append(group)
    assert len(out) == 16
    # Floating ones were taken first; recycled, they come back for the backlog, one by one.
    rig.manager.on_backlog(5)
    for buffer in out[:3]:
        buffer.recycle()
    assert rig.manager.available == 3
    for buffer in out[3:14]:
        buffer.recycle()
    assert (rig.manager.available, rig.manager.is_waiting) == (7, False)
    assert rig.pool.lent_segments == 7
    rig.manager.on_backlog(0)
    before = rig.credit.total
    out[14].recycle()
    out[15].recycle()
    # Each exclusive one takes the place, and the credit, of a floating one that goes.
    assert (rig.manager.available, rig.pool.lent_segments) == (7, 5)
    assert rig.credit.total == before
    rig.manager.release()
    rig.check_all_back()


def test_a_waiting_channel_that_needs_no_more_declines():
    rig = Rig(floating=1)
    other_credit = Credit()
    other = rig.another(other_credit)
    rig.manager.on_backlog(1)
    other.on_backlog(1)
    other.on_backlog(0)
    taken = take(rig.manager)
    assert taken is not None
    taken.recycle()
    assert other_credit.total == 0
    assert rig.pool.idle_segments == 1
    rig.manager.release()
    other.release()
    rig.check_all_back()


@pytest.mark.parametrize("released_first", [True, False])
def test_buffers_taken_before_the_release_are_recycled_after_it(released_first):
    rig = Rig(floating=3)
    rig.manager.on_backlog(3)
    out = [take(rig.manager) for _ in range(5)]
    assert take(rig.manager) is None
    if released_first:
        rig.manager.release()
        rig.manager.release()
    for buffer in out:
        assert buffer is not None
        buffer.recycle()
    rig.manager.release()
    total = rig.credit.total
    rig.manager.on_backlog(9)
    assert rig.credit.total == total
    rig.check_all_back()


def test_a_payload_of_several_buffers_takes_neighbours_as_one_piece():
    rig = Rig(floating=8)
    rig.manager.on_backlog(6)
    assert rig.manager.available == 8
    groups = rig.manager.take(7 * 32 + 1)
    assert groups is not None
    assert (sum(len(group.segments) for group in groups), rig.manager.available) == (8, 0)
    assert sum(group.length for group in groups) == 7 * 32 + 1
    stride = 32 + RECEIVE_TAIL_BYTES
    assert [len(group.memory) for group in groups] == [stride * len(g.segments) for g in groups]
    content = bytes(range(7 * 32 + 1))
    left = content
    for group in groups:
        group.payload[:] = left[: group.length]
        left = left[group.length :]
    assert (b"".join(group.payload for group in groups), left) == (content, b"")
    assert rig.manager.take(1) is None
    for group in groups:
        group.recycle()
    rig.manager.release()
    rig.check_all_back()


def test_the_only_channel_that_waits_keeps_its_floating_buffers():
    """The pool would return them to it, one by one."""
    rig = Rig(floating=2)
    rig.manager.on_backlog(9)
    groups = rig.manager.take(4 * 32)
    assert groups is not None
    before = rig.credit.total
    for group in groups:
        group.recycle()
    assert (rig.credit.total - before, rig.manager.available, rig.pool.lent_segments) == (4, 4, 2)
    assert rig.pool.waiting_listeners == 1
    rig.manager.release()
    rig.check_all_back()


def test_segments_recycled_together_go_to_the_channel_that_waits_longest():
    rig = Rig(floating=4)
    credits = [Credit(), Credit()]
    others = [rig.another(credit) for credit in credits]
    rig.manager.on_backlog(4)
    for other in others:
        other.on_backlog(3)
    groups = rig.manager.take(4 * 32)
    assert groups is not None
    for group in groups:
        group.recycle()
    assert [credit.total for credit in credits] == [3, 1]
    for manager in (rig.manager, *others):
        manager.release()
    rig.check_all_back()


def test_without_exclusive_buffers_free_floating_ones_can_be_given_up():
    """Those in use follow when they are recycled; a wait for more is over."""
    rig = Rig(floating=4, exclusive=0)
    rig.manager.on_backlog(6)
    taken = take(rig.manager)
    assert (rig.manager.available, rig.manager.is_waiting) == (3, True)
    assert rig.manager.give_up_floating()
    assert (rig.manager.available, rig.manager.required, rig.manager.is_waiting) == (0, 0, False)
    assert rig.pool.lent_segments == 1
    assert taken is not None
    taken.recycle()
    assert (rig.manager.available, rig.pool.lent_segments, rig.credit.total) == (0, 0, 4)
    rig.manager.on_backlog(1)
    assert rig.manager.available == 1
    rig.manager.release()
    rig.check_all_back()
