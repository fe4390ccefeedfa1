"""Statistics of gates: sums over channels, and receive buffers in use."""

from __future__ import annotations

from sluice.shuffle.gate.buffer_manager import BufferManager, BufferUsage, buffer_usage
from sluice.shuffle.gate.input_gate import GateStatistics
from sluice.shuffle.gate.local_input_channel import LocalInputChannel
from sluice.shuffle.gate.remote_input_channel import RemoteInputChannel
from sluice.shuffle.memory import NetworkBufferPool
from tests.support.gates import HandFilledGate
from tests.support.network_memory import take_exclusive

SIZE = 32


class IgnoredCredit:
    def credit_available(self, buffers: int) -> None:
        pass


def test_usage_of_a_gate_without_channels_is_nothing():
    assert buffer_usage([]) == BufferUsage(0, 0, 0, 0)


def test_usage_without_floating_buffers_counts_exclusive_ones():
    network = NetworkBufferPool(8, SIZE)
    manager = BufferManager(network, None, take_exclusive(network, 2), IgnoredCredit())
    assert manager.take(1) is not None
    assert buffer_usage([manager]) == BufferUsage(2, 1, 0, 0)


def test_usage_adds_up_the_channels_that_share_floating_buffers():
    network = NetworkBufferPool(16, SIZE)
    pool = network.create_local_pool("gate", 1, 4)
    managers = [
        BufferManager(network, pool, take_exclusive(network, 2), IgnoredCredit()) for _ in range(2)
    ]
    assert buffer_usage(managers) == BufferUsage(4, 0, 4, 0)
    managers[0].on_backlog(3)
    # The lent buffers can take data: they are not used yet.
    assert (pool.lent_segments, managers[0].floating_available) == (3, 3)
    assert buffer_usage(managers) == BufferUsage(4, 0, 4, 0)
    taken = managers[0].take(4 * SIZE)
    assert taken is not None
    # Floating buffers are filled first.
    assert buffer_usage(managers) == BufferUsage(4, 1, 4, 3)
    assert managers[1].take(1) is not None
    assert buffer_usage(managers) == BufferUsage(4, 2, 4, 3)


def test_usage_is_above_the_limit_for_a_while_after_it_has_fallen():
    network = NetworkBufferPool(6, SIZE)
    pool = network.create_local_pool("gate", 1, 4)
    manager = BufferManager(network, pool, take_exclusive(network, 1), IgnoredCredit())
    manager.on_backlog(4)
    assert manager.take(4 * SIZE) is not None
    network.create_local_pool("other", 3, 3)
    assert pool.size_segments < 4
    assert buffer_usage([manager]) == BufferUsage(1, 0, pool.size_segments, 4)


def test_channels_are_counted_by_their_origin():
    gate = HandFilledGate()
    for kind, bytes_in, buffers_in in (
        (LocalInputChannel, 10, 1),
        (RemoteInputChannel, 200, 2),
        (LocalInputChannel, 30, 3),
    ):
        channel = kind(lambda: None)
        channel.bytes_in, channel.buffers_in = bytes_in, buffers_in
        gate.channels.append(channel)
    assert gate.statistics() == GateStatistics(3, 0, 40, 4, 200, 2, 0.0)
