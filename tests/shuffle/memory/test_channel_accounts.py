"""The accounts of channels, and the maximum per channel that makes a pool unavailable."""

import pytest

from sluice.shuffle.memory import InvalidPoolSize, NetworkBufferPool, SegmentNotLent
from sluice.shuffle.memory.channel_accounts import ChannelAccount
from tests.shuffle.memory.rig import take


def account(segment) -> ChannelAccount:
    assert isinstance(segment.holder, ChannelAccount)
    return segment.holder


def test_availability_turns_false_at_the_maximum_and_true_after_a_recycle():
    network = NetworkBufferPool(20, 64)
    local = network.create_local_pool("a", 1, max_buffers_per_channel=3)
    segments = [take(local, channel) for channel in (0, 1, 0, 1, 1)]
    assert [account(segment).lent for segment in segments] == [2, 3, 2, 3, 3]
    assert (local.is_available, local.channels.full_channels) == (False, 1)
    local.recycle(segments[0])  # of the other channel
    assert not local.is_available
    local.recycle(segments[1])
    assert (local.is_available, local.channels.full_channels) == (True, 0)
    assert [account(segment).lent for segment in segments[2:]] == [1, 2, 2]


def test_buffers_settle_their_channels_account_with_the_last_reference():
    network = NetworkBufferPool(20, 64)
    local = network.create_local_pool("a", 1, max_buffers_per_channel=1)
    buffer = local.request_buffer_nowait(5)
    assert buffer is not None
    buffer.retain()
    buffer.recycle()
    assert (local.channels.full_channels, local.is_available) == (1, False)
    buffer.recycle()
    assert (local.channels.full_channels, local.is_available) == (0, True)
    again = local.request_buffer_nowait(5)  # an idle one this time
    assert again is not None
    assert (local.channels.full_channels, local.is_available) == (1, False)


def test_recycling_twice_or_to_another_pool_changes_no_account():
    network = NetworkBufferPool(20, 64)
    local = network.create_local_pool("a", 1, max_buffers_per_channel=2)
    other = network.create_local_pool("b", 1, max_buffers_per_channel=2)
    one, two = take(local, 1), take(local, 1)
    channel = account(one)
    for stranger in (other, network.create_local_pool("c", 1)):
        with pytest.raises(SegmentNotLent):
            stranger.recycle(one)
    assert (channel.lent, local.channels.full_channels, other.channels.full_channels) == (2, 1, 0)
    local.recycle(one)
    with pytest.raises(SegmentNotLent):
        local.recycle(one)
    with pytest.raises(SegmentNotLent):
        local.recycle_together([two, one])
    assert (channel.lent, local.lent_segments, local.idle_segments) == (0, 0, 2)


def test_a_maximum_below_one_is_refused():
    network = NetworkBufferPool(4, 64)
    with pytest.raises(InvalidPoolSize, match="per channel") as caught:
        network.create_local_pool("a", 1, max_buffers_per_channel=0)
    assert (caught.value.value, caught.value.limit) == (0, 1)
