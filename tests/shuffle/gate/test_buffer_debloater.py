"""Adaptive buffer sizes: the arithmetic by table and property, and the thin part with the timer."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.shuffle.client.config import ClientConfig
from sluice.shuffle.gate.buffer_debloater import (
    ANNOUNCE_THRESHOLD,
    UNSEEN_BUFFERS,
    BufferDebloater,
    BufferSizeCalculator,
    DebloatSettings,
    QueuedData,
    debloat_settings,
)
from sluice.shuffle.gate.union_input_gate import UnionInputGate
from sluice.shuffle.taskmanager.sections import NetworkMemoryConfig
from tests.support.gates import HandFilledGate, shown

SETTINGS = DebloatSettings(1.0, 0.2, 256, 32768)
LEAST, LARGEST = SETTINGS.least_bytes, SETTINGS.largest_bytes
MANY_PERIODS = 60


@pytest.mark.parametrize(
    ("consumed_bytes", "busy_seconds", "buffers", "announced"),
    [
        pytest.param(20_000, 0.2, 10, 10_000, id="what is read in 1 s, in ten buffers"),
        pytest.param(20_000, 0.1, 10, 20_000, id="the same in half the busy time"),
        pytest.param(20_000, 0.2, 0, None, id="nothing in use counts as one buffer"),
        pytest.param(20_000, 0.2, 1_000, LEAST, id="the lower bound"),
        pytest.param(2_000_000, 0.2, 10, None, id="the upper bound, where it begins"),
        pytest.param(24_000, 0.2, 4, None, id="30000 differs by less than 10 %"),
        pytest.param(20_000, 0.2, 4, 25_000, id="25000 differs by more"),
        pytest.param(20_000, 0.2, 5, 20_000, id="20000 differs by more"),
        pytest.param(0, 0.2, 10, None, id="nothing has ever come"),
        pytest.param(20_000, 0.0, 10, None, id="no busy time"),
    ],
)
def test_the_first_period(consumed_bytes, busy_seconds, buffers, announced):
    calculator = BufferSizeCalculator(SETTINGS)
    assert calculator.measured(consumed_bytes, busy_seconds, buffers) == announced
    assert calculator.size_bytes == (announced or LARGEST)


def test_time_in_flight_assumes_full_buffers():
    calculator = BufferSizeCalculator(SETTINGS)
    assert calculator.in_flight_seconds is None
    calculator.measured(20_000, 0.2, 20)
    assert calculator.size_bytes == 5_000
    assert calculator.in_flight_seconds == pytest.approx(1.0)


def test_buffers_of_a_reader_that_stops_shrink_to_the_minimum():
    calculator = BufferSizeCalculator(SETTINGS)
    calculator.measured(20_000, 0.2, 10)
    sizes = [calculator.measured(0, 0.2, 10) for _ in range(MANY_PERIODS)]
    told = [size for size in sizes if size is not None]
    assert told == sorted(told, reverse=True)
    assert calculator.size_bytes == LEAST


def test_a_bound_within_the_threshold_is_announced():
    calculator = BufferSizeCalculator(SETTINGS)
    assert calculator.measured(44_000, 0.2, 10) == 22_000
    sizes = [calculator.measured(80_000, 0.2, 10) for _ in range(MANY_PERIODS)]
    assert calculator.size_bytes == LARGEST
    assert LARGEST in sizes


PERIODS = st.lists(
    st.tuples(st.integers(0, 10**9), st.just(0.0) | st.floats(0.002, 10), st.integers(0, 100_000)),
    max_size=40,
)


@given(PERIODS)
def test_an_announced_size_is_within_bounds_and_beyond_the_threshold(periods):
    calculator = BufferSizeCalculator(SETTINGS)
    last = LARGEST
    for period in periods:
        size = calculator.measured(*period)
        if size is None:
            continue
        assert LEAST <= size <= LARGEST
        assert abs(size - last) > ANNOUNCE_THRESHOLD * last or size in (LEAST, LARGEST)
        assert size != last
        last = size
    assert calculator.size_bytes == last


@given(PERIODS, st.integers(1, 10**8), st.integers(0, 10_000))
def test_the_size_settles_at_constant_throughput(periods, rate, buffers):
    """The size settles within the threshold of the target's, and stays."""
    calculator = BufferSizeCalculator(SETTINGS)
    for period in periods:
        calculator.measured(*period)
    for _ in range(4 * MANY_PERIODS):
        calculator.measured(rate, 1.0, buffers)
    wish = min(max(rate / max(1, buffers), LEAST), LARGEST)
    settled = calculator.size_bytes
    assert abs(settled - wish) <= ANNOUNCE_THRESHOLD * settled + 1
    assert [calculator.measured(rate, 1.0, buffers) for _ in range(10)] == [None] * 10


class Channel:
    """A channel with counts that a test sets."""

    def __init__(self) -> None:
        self.bytes_in = 0
        self.queued = QueuedData(0, 0)

    def queued_data(self) -> QueuedData:
        return self.queued


class Gate:
    """A gate that records the announced sizes."""

    def __init__(self) -> None:
        self.channels = [Channel(), Channel()]
        self.has_ended = False
        self.busy_seconds = 100.0
        self.sizes: list[int] = []
        self.announced = asyncio.Event()

    def announce_buffer_size(self, size_bytes: int) -> None:
        self.sizes.append(size_bytes)
        self.announced.set()


def test_a_period_measures_the_bytes_taken_from_all_channels_in_busy_time():
    gate = Gate()
    debloater = BufferDebloater(gate, SETTINGS, lambda: gate.busy_seconds)
    first, second = gate.channels
    first.bytes_in, first.queued = 25_000, QueuedData(6, 10_000)
    second.bytes_in, second.queued = 5_000, QueuedData(4, 0)
    gate.busy_seconds += 0.2
    debloater.recalculate()  # 20000 bytes in 0.2 s, ten buffers in use
    assert gate.sizes == [10_000]
    assert debloater.calculator.buffers_in_use == 10
    gate.busy_seconds += 0.2
    first.bytes_in += 20_000
    debloater.recalculate()
    assert gate.sizes == [10_000]
    assert debloater.calculator.throughput == pytest.approx(100_000)


def test_a_reader_that_only_waits_is_not_measured_and_a_fast_one_has_full_buffers():
    gate = Gate()
    debloater = BufferDebloater(gate, SETTINGS, lambda: gate.busy_seconds)
    gate.channels[0].bytes_in, gate.channels[0].queued = 20_000, QueuedData(10, 0)
    gate.busy_seconds += 0.2
    debloater.recalculate()
    assert gate.sizes == [10_000]
    gate.channels[0].queued = QueuedData(0, 0)
    for _ in range(20):
        debloater.recalculate()  # the reader only waits: its speed is not measured
    assert gate.sizes == [10_000]
    assert debloater.calculator.throughput == pytest.approx(100_000)
    for _ in range(20):
        gate.channels[0].bytes_in += 20_000
        gate.busy_seconds += 0.0001  # the reader nearly always waits
        debloater.recalculate()
    assert gate.sizes[-1] == LARGEST


async def test_the_timer_runs_from_start_to_stop():
    gate = Gate()
    settings = SETTINGS._replace(period_seconds=0.001)
    debloater = BufferDebloater(gate, settings, lambda: gate.busy_seconds)
    assert not debloater.is_running
    debloater.start()
    debloater.start()
    for rate in (10_000, 100):
        gate.announced.clear()
        gate.channels[0].bytes_in += rate
        gate.channels[0].queued = QueuedData(1, 0)
        gate.busy_seconds += 1.0
        async with asyncio.timeout(10):
            await gate.announced.wait()
    assert gate.sizes[0] == 10_000
    assert debloater.is_running
    debloater.stop()
    debloater.stop()
    assert not debloater.is_running


async def test_the_timer_is_not_set_again_when_the_gate_has_ended():
    gate = Gate()
    gate.has_ended = True
    debloater = BufferDebloater(gate, SETTINGS._replace(period_seconds=0.001), lambda: 0.0)
    debloater.start()
    async with asyncio.timeout(10):
        while debloater.is_running:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.001)
    assert gate.sizes == []


async def test_a_gate_announces_a_size_to_its_channels_and_shows_it_in_its_statistics():
    gate = HandFilledGate(1)
    await asyncio.sleep(0)
    assert gate.statistics().buffer_size_bytes is None
    busy = 0.0
    gate.debloat(DebloatSettings(1.0, 30.0, 16, 1024), lambda: busy)
    assert gate.debloater is not None
    assert gate.statistics().buffer_size_bytes == 1024
    assert gate.statistics().in_flight_seconds is None
    gate.views[0].put(*[bytes(100)] * (11 - UNSEEN_BUFFERS))
    gate.take()
    busy = 0.5
    gate.debloater.recalculate()  # 100 bytes in 0.5 s; ten buffers are in flight, unseen ones too
    assert gate.views[0].sizes == [20]
    assert gate.statistics().buffer_size_bytes == 20
    assert gate.statistics().in_flight_seconds == pytest.approx(1.0)
    assert gate.debloater.is_running
    gate.release()
    assert not gate.debloater.is_running


async def test_a_gate_of_a_union_is_idle_when_the_union_waits():
    gate = HandFilledGate(1)
    await asyncio.sleep(0)
    gate.debloat(DebloatSettings(1.0, 30.0, 16, 1024))
    assert gate.debloater is not None
    union = UnionInputGate([gate])
    assert union.statistics().buffer_size_bytes == 1024
    busy_before = gate.debloater._busy_seconds()
    waiting = asyncio.create_task(union.next_buffer_or_event())
    await asyncio.sleep(0.05)  # this time must not count
    busy_after = gate.debloater._busy_seconds()
    gate.views[0].put(b"x")
    assert shown(await waiting) == (0, b"x")
    assert busy_after - busy_before < 0.04
    union.release()
    assert not gate.debloater.is_running


@pytest.mark.parametrize("config", [ClientConfig, NetworkMemoryConfig])
def test_debloating_is_off_by_default_and_its_minimum_is_at_most_a_segment(config):
    assert debloat_settings(config(), 32768) is None
    on = config(debloat_target_seconds=0.5, debloat_min_buffer_size_bytes="2 KiB")
    assert debloat_settings(on, 32768) == DebloatSettings(0.5, 0.2, 2048, 32768)
    assert debloat_settings(on, 1024) == DebloatSettings(0.5, 0.2, 1024, 1024)
