"""Opening channels, whatever their kind: shared memory, tasks and failures."""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.shuffle.errors import InsufficientNetworkBuffers, InvalidRequest, NetworkBufferTimeout
from sluice.shuffle.gate.channel_opener import ChannelOpener, ChannelSource, GateMemory, Opening
from sluice.shuffle.gate.remote_input_channel import RemoteInputChannel
from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.names import ShuffleKey, SubpartitionRange
from sluice.transport.address import Address
from tests.support.fakes import FakeCreditSender

KEY = ShuffleKey("app", 1)
ONE = SubpartitionRange(KEY, 0, 1)
SEGMENTS = 8
SOURCE = ChannelSource("tm", Address("host", 1), (7,))


class OpenerOfRemoteChannels(ChannelOpener):
    """Attaches channels to a fake connection, or raises."""

    def __init__(
        self,
        pool: NetworkBufferPool,
        exclusive: int = 2,
        floating: int = 2,
        wanted: SubpartitionRange = ONE,
    ) -> None:
        super().__init__("gate", wanted, GateMemory(pool, exclusive, floating, 0.02))
        self.sender = FakeCreditSender()
        self.error: Exception | None = None
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.attached: list[bool] = []

    def make(self, source, listener):
        return RemoteInputChannel(listener)

    def open(self, channel, source):
        self.start([(channel, source)])

    async def open_now(self, batch: list[Opening]) -> None:
        await self.go_on.wait()
        if self.error is not None:
            raise self.error
        for channel, _ in batch:
            assert isinstance(channel, RemoteInputChannel)
            self.attached.append(await self.attach(channel, self.sender))


@pytest.fixture
async def pool():
    return NetworkBufferPool(SEGMENTS, 64)


def new_channel() -> RemoteInputChannel:
    return RemoteInputChannel(lambda: None)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("start", "end"), [(3, 3), (4, 2)])
async def test_an_empty_range_is_refused(pool, start, end):
    with pytest.raises(InvalidRequest, match=f"{start} to {end}"):
        OpenerOfRemoteChannels(pool, wanted=SubpartitionRange(KEY, start, end))


async def test_a_channel_gets_exclusive_buffers_and_the_shared_pool(pool):
    opener = OpenerOfRemoteChannels(pool)
    channels = [new_channel(), new_channel()]
    for channel in channels:
        opener.open(channel, SOURCE)
    await turns()
    assert opener.attached == [True, True]
    assert [channel.initial_credit for channel in channels] == [2, 2]
    managers = [channel.buffers for channel in channels]
    assert managers[0] is not None
    assert managers[1] is not None
    assert managers[0].floating_pool is managers[1].floating_pool is opener.floating_pool()
    for channel in channels:
        channel.release()
    opener.close()
    opener.close()
    pool.create_local_pool("all", SEGMENTS, SEGMENTS).destroy()


async def test_a_gate_without_floating_buffers_has_no_pool(pool):
    opener = OpenerOfRemoteChannels(pool, floating=0)
    assert opener.floating_pool() is None
    opener.close()


async def test_no_segment_for_the_floating_pool_is_an_error_at_once(pool):
    others = pool.create_local_pool("all", SEGMENTS, SEGMENTS)
    opener = OpenerOfRemoteChannels(pool)
    with pytest.raises(InsufficientNetworkBuffers):
        opener.floating_pool()
    others.destroy()
    opener.close()


async def test_exclusive_segments_that_do_not_come_fail_the_channel(pool):
    opener = OpenerOfRemoteChannels(pool, exclusive=SEGMENTS, floating=1)
    others = pool.create_local_pool("others", 1, 1)
    failed = asyncio.Event()
    channel = RemoteInputChannel(failed.set)
    opener.open(channel, SOURCE)
    async with asyncio.timeout(10):
        await failed.wait()
    assert isinstance(channel.failure, NetworkBufferTimeout)
    others.destroy()
    opener.close()


async def test_an_error_fails_all_channels_of_its_task(pool, caplog):
    opener = OpenerOfRemoteChannels(pool)
    opener.error = error = SluiceError("not here", code=ErrorCode.PARTITION_NOT_FOUND)
    channels = [new_channel(), new_channel()]
    opener.start([(channel, SOURCE) for channel in channels])
    await turns()
    assert [channel.failure for channel in channels] == [error, error]
    assert error.__traceback__ is None, "it would keep frames and their memory alive"
    assert not caplog.records


async def test_a_bug_fails_the_channel_and_is_logged(pool, caplog):
    opener = OpenerOfRemoteChannels(pool)
    opener.error = RuntimeError("a bug")
    channel = new_channel()
    opener.open(channel, SOURCE)
    await turns()
    assert isinstance(channel.failure, SluiceError)
    assert "a bug" in str(channel.failure)
    assert "internal error while opening channels of gate" in caplog.text
    assert "Traceback" in caplog.text


async def test_stopping_cancels_the_tasks(pool):
    opener = OpenerOfRemoteChannels(pool)
    opener.go_on.clear()
    channel = new_channel()
    opener.open(channel, SOURCE)
    await turns()
    opener.stop()
    opener.go_on.set()
    await turns()
    assert opener.attached == []
    assert channel.failure is None
    opener.stop()
    opener.close()


async def test_a_channel_released_while_it_opens_keeps_no_memory(pool):
    opener = OpenerOfRemoteChannels(pool)
    opener.go_on.clear()
    channel = new_channel()
    opener.open(channel, SOURCE)
    await turns()
    channel.release()
    opener.go_on.set()
    await turns()
    assert opener.attached == [False]
    opener.close()
    pool.create_local_pool("all", SEGMENTS, SEGMENTS).destroy()
