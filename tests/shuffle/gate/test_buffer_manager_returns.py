"""Buffers of a channel that come back: kept while they are required, given up after the release."""

from __future__ import annotations

from sluice.shuffle.gate.buffer_manager import BufferManager
from sluice.shuffle.memory import NetworkBufferPool


class Credit:
    def __init__(self) -> None:
        self.total = 0

    def credit_available(self, buffers: int) -> None:
        self.total += buffers


class Rig:
    """A channel with two exclusive buffers, of a gate with four floating ones."""

    def __init__(self) -> None:
        self.network = NetworkBufferPool(16, 32)
        self.pool = self.network.create_local_pool("gate", 1, 4)
        self.credit = Credit()
        self.manager = BufferManager(
            self.network, self.pool, self.network.request_segments(2), self.credit
        )

    def take(self):
        groups = self.manager.take(1)
        assert groups is not None
        (group,) = groups
        return group

    def check_all_back(self) -> None:
        self.manager.release()
        self.pool.destroy()
        assert self.network.available_segments == 16


def test_an_exclusive_buffer_that_comes_back_replaces_no_floating_one_that_is_required():
    rig = Rig()
    rig.manager.on_backlog(4)
    taken = [rig.take() for _ in range(6)]  # floating ones first
    for group in taken[:4]:
        group.recycle()
    rig.manager.on_backlog(4)
    assert (rig.manager.floating_available, rig.manager.exclusive_available) == (4, 0)
    credit = rig.credit.total
    taken[4].recycle()
    assert (rig.manager.floating_available, rig.manager.exclusive_available) == (4, 1)
    assert rig.credit.total == credit + 1
    rig.manager.on_backlog(2)
    taken[5].recycle()  # six with it, and four are required
    assert (rig.manager.floating_available, rig.manager.exclusive_available) == (3, 2)
    assert rig.credit.total == credit + 1
    rig.check_all_back()


def test_a_released_channel_does_not_wait():
    rig = Rig()
    rig.manager.on_backlog(5)
    assert rig.manager.is_waiting
    rig.manager.release()
    assert not rig.manager.is_waiting
    assert rig.pool.waiting_listeners == 0
    rig.check_all_back()


def test_a_channel_that_got_one_of_several_floating_buffers_waits_for_the_next():
    rig = Rig()
    elsewhere = [rig.pool.request_segment_nowait() for _ in range(4)]
    rig.manager.on_backlog(3)
    for came, segment in enumerate(elsewhere, 1):
        assert rig.manager.is_waiting == (came <= 3)
        assert segment is not None
        rig.pool.recycle(segment)
        assert rig.manager.floating_available == rig.credit.total == min(came, 3)
    assert rig.pool.idle_segments == 1
    rig.check_all_back()
