"""A slow disk takes its time for each byte, whoever calls, and moves them all."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast

from benchmarks import slow_disk
from benchmarks.slow_disk import SlowDisk

if TYPE_CHECKING:
    import pytest

    from sluice.shuffle.taskmanager.store.tiers.disk_tier import DiskTier


class Clock:
    """A clock of its own, which sleeping moves on."""

    def __init__(self) -> None:
        self.now = 100.0
        self._lock = threading.Lock()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self.now += seconds


def test_a_call_takes_the_time_of_its_bytes(monkeypatch: pytest.MonkeyPatch):
    clock = Clock()
    monkeypatch.setattr(slow_disk, "time", clock)
    moved: list[tuple[int, int]] = []

    def call(tier: DiskTier, offset: int, buffers: list[memoryview]) -> None:
        moved.append((offset, sum(map(len, buffers))))
        buffers.clear()  # as writing does

    slow = SlowDisk(1000).slowed(call)
    tier = cast("DiskTier", None)
    slow(tier, 5, [memoryview(bytes(300)), memoryview(bytes(200))])
    assert clock.now == 100.5
    slow(tier, 7, [memoryview(bytes(1000))])
    assert clock.now == 101.5
    assert moved == [(5, 500), (7, 1000)]
