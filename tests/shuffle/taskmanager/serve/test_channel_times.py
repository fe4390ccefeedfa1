"""Times of channels: by the test's own clock, and in a queue."""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol.limits import MAX_LARGE_PAYLOAD_BYTES
from sluice.shuffle.counters import ServingSeconds
from sluice.shuffle.histogram import Histogram
from sluice.shuffle.taskmanager.serve import channel_times
from sluice.shuffle.taskmanager.serve.channel_times import SENDING, ChannelTimes
from sluice.shuffle.taskmanager.serve.channel_times import WAITING_FOR_CREDIT as FOR_CREDIT
from sluice.shuffle.taskmanager.serve.channel_times import WAITING_FOR_DATA as FOR_DATA
from sluice.shuffle.taskmanager.serve.credit_based_view_reader import CreditBasedViewReader
from sluice.shuffle.taskmanager.serve.partition_request_queue import PartitionRequestQueue
from tests.support.clock import Clock
from tests.support.fakes import Ended, FakeConnection, FakeView


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(channel_times, "monotonic", clock)
    return clock


@pytest.mark.parametrize(
    ("activities", "seconds"),
    [
        ([], ServingSeconds()),
        ([FOR_DATA], ServingSeconds(data_wait=2, idle=2)),
        ([FOR_CREDIT], ServingSeconds(credit_wait=2, back_pressured=2)),
        ([SENDING], ServingSeconds(busy=2)),
        ([FOR_DATA, FOR_CREDIT], ServingSeconds(data_wait=2, credit_wait=2, idle=2)),
        ([FOR_DATA, FOR_DATA, SENDING], ServingSeconds(data_wait=4, busy=2)),
        ([FOR_CREDIT, SENDING], ServingSeconds(credit_wait=2, busy=2)),
    ],
)
def test_the_common_state_follows_from_the_activity_of_each_channel(clock, activities, seconds):
    times = ChannelTimes(ServingSeconds(), Histogram())
    for activity in activities:
        times.open(activity)
    clock.now += 2
    assert times.seconds() == seconds
    for activity in activities:
        times.close(activity, clock.now)
    clock.now += 2
    assert times.seconds() == seconds
    assert times.counts == [0, 0, 0]


def test_only_a_wait_of_all_channels_is_a_wait_for_credit(clock):
    times = ChannelTimes(ServingSeconds(), Histogram())
    assert times.credit_wait_seconds() == 0
    times.open(FOR_CREDIT)
    times.open(FOR_DATA)
    clock.now += 2
    assert times.credit_wait_seconds() == 0
    assert times.credit_wait_seconds(unopened=1) == 2
    since = times.change(FOR_DATA, FOR_CREDIT, clock.now)
    clock.now += 3
    times.seconds()  # a status does not end it
    assert times.credit_wait_seconds() == 3
    times.change(FOR_CREDIT, SENDING, since)
    clock.now += 1
    assert times.credit_wait_seconds() == 0


def test_the_sums_go_to_the_total_once(clock):
    total = ServingSeconds(busy=10)
    times = ChannelTimes(total, Histogram())
    times.open(SENDING)
    clock.now += 1
    since = times.change(SENDING, FOR_CREDIT, 0)
    clock.now += 2
    times.close(FOR_CREDIT, since)
    assert total == ServingSeconds(busy=10)
    times.end()
    times.end()
    assert total == ServingSeconds(busy=11, credit_wait=2, back_pressured=2)


class Rig:
    """A queue and a channel in it, on a clock that only the test moves."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.connection = FakeConnection()
        self.log = Ended()
        self.queue = PartitionRequestQueue(self.connection, self.log.on_sent, self.log.on_ended)
        self.credit_waits = Histogram()
        self.times = ChannelTimes(ServingSeconds(), self.credit_waits)

    def reader(self, credit: int) -> tuple[CreditBasedViewReader, FakeView]:
        reader = CreditBasedViewReader(
            1, credit, self.queue.notify, MAX_LARGE_PAYLOAD_BYTES, self.times
        )
        view = FakeView()
        view.listener = reader.data_available
        return reader, view

    async def passes(self, seconds: float) -> None:
        """Let the queue run, then let time pass."""
        for _ in range(3):
            await asyncio.sleep(0)
        self.clock.now += seconds


@pytest.fixture
def rig(clock):
    return Rig(clock)


async def test_a_channel_without_credit_waits_for_credit(rig):
    reader, view = rig.reader(credit=1)
    reader.attach(view)
    await rig.passes(1)
    assert rig.times.seconds() == ServingSeconds(data_wait=1, idle=1)
    view.put(b"a", b"b")
    await rig.passes(2)  # one buffer was sent, the other waits
    assert rig.times.counts[FOR_CREDIT] == 1
    reader.add_credit(1)
    await rig.passes(4)
    seconds = rig.times.seconds()
    assert (seconds.credit_wait, seconds.data_wait) == (2, 5)
    assert len(rig.connection.sent) == 2


async def test_each_wait_for_credit_is_counted_when_it_ends(rig):
    """Waits for data are not; a channel that is closed has waited too."""
    reader, view = rig.reader(credit=1)
    reader.attach(view)
    await rig.passes(64)
    view.put(b"a", b"b", b"c")
    await rig.passes(2)
    assert sum(rig.credit_waits.counts) == 0
    reader.add_credit(1)
    await rig.passes(4)
    assert (sum(rig.credit_waits.counts), rig.credit_waits.sum_seconds) == (1, 2)
    rig.queue.remove(reader)
    assert (sum(rig.credit_waits.counts), rig.credit_waits.sum_seconds) == (2, 6)
    assert rig.credit_waits.sum_seconds == rig.times.seconds().credit_wait


async def test_a_channel_that_gets_data_without_credit_waits_for_credit(rig):
    reader, view = rig.reader(credit=0)
    reader.attach(view)
    await rig.passes(1)
    assert rig.times.counts[FOR_DATA] == 1
    view.put(b"a")
    await rig.passes(2)
    assert rig.times.counts[FOR_CREDIT] == 1
    assert rig.times.seconds() == ServingSeconds(
        data_wait=1, credit_wait=2, idle=1, back_pressured=2
    )


async def test_a_channel_on_an_unwritable_connection_is_busy(rig):
    rig.connection.writable = False
    reader, view = rig.reader(credit=1)
    reader.attach(view)
    view.put(b"a")
    await rig.passes(3)
    assert rig.times.seconds().busy == 3


async def test_a_released_channel_waits_for_nothing(rig):
    reader, view = rig.reader(credit=0)
    reader.attach(view)
    view.put(b"a")
    rig.queue.remove(reader)
    rig.queue.remove(reader)
    assert rig.times.counts == [0, 0, 0]
    view.put(b"b")  # too late
    await rig.passes(5)
    assert rig.times.seconds() == ServingSeconds()
