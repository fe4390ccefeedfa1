"""Both flow control modes: negotiation, the effect of one stuck reader, and no leaks.

In watermark mode the socket is the only bound: data without a buffer stops its whole connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    FLOW_CREDIT,
    FLOW_WATERMARK,
    AddCredit,
    BacklogAnnouncement,
    GateOpened,
)
from sluice.shuffle.gate.partition_request_client import (
    PartitionRequestClient,
    UncreditedPartitionRequestClient,
)
from sluice.shuffle.taskmanager.serve.peer_handler import PeerHandler
from sluice.shuffle.taskmanager.status.snapshot import _connections
from sluice.transport.errors import ConnectionLost
from tests.support.mini_cluster import (
    DISK_ONLY,
    MEMORY_TIER,
    SEGMENT_SIZE_BYTES,
    MiniCluster,
    eventually,
    mini_cluster,
)
from tests.support.tcp_proxy import Cut, Fault, FaultProxy
from tests.support.wire_clients import Client, Gate, open_gate, read_gate

if TYPE_CHECKING:
    from sluice.protocol.schema import HelloAck, Message
    from sluice.shuffle.taskmanager.wiring import NetworkEnvironment

LARGE = 14 * 1024 * 1024
"""More than the kernel's socket buffers take on their way."""

PATIENCE_SECONDS = 60
SILENCE_SECONDS = 0.2
"""How long nothing may come where nothing must come; any data there would take a millisecond."""

MODES = ("credit", "watermark")
modes = pytest.mark.parametrize("flow_control", MODES)
both_tiers = pytest.mark.parametrize(
    "memory_tier_bytes", [MEMORY_TIER, DISK_ONLY], ids=["memory", "disk"]
)


def serving(environment: NetworkEnvironment) -> PeerHandler:
    """The one peer connection that was accepted."""
    (handler,) = (
        handler for handler in environment.handlers.values() if isinstance(handler, PeerHandler)
    )
    return handler


def consuming(environment: NetworkEnvironment) -> PartitionRequestClient:
    """The one peer connection that was made."""
    (client,) = environment.peers.clients()
    return client


def shown_modes(environment: NetworkEnvironment) -> dict[str, str]:
    """The mode that the status shows for each leg."""
    return {status.leg: status.flow_control for status in _connections(environment, {})}


async def stuck_gate(cluster: MiniCluster, ack: HelloAck) -> tuple[Client, Gate]:
    """Open a gate on TaskManager 1 that takes one buffer of map attempt 1 and then stops.

    Returns when nothing moves any more: the channel's buffers are full, and without credit the
    connection stands still, with more data on its way than the kernel takes.
    """
    client = await cluster.consumer(1)
    gate = open_gate(client, 1, [(ack, [1])], 0, 1, credit=1)
    while not await gate.read_one(give_credit=0):
        pass
    memory = cluster[1].config.memory
    most = memory.exclusive_buffers_per_channel + memory.floating_buffers_per_gate
    await eventually(lambda: cluster[1].network_pool.lent_segments >= most - 1)
    peer = consuming(cluster[1])
    if isinstance(peer, UncreditedPartitionRequestClient):
        await eventually(lambda: peer.waits_for is not None, "standing still")
        await eventually(lambda: not serving(cluster[0]).connection.writable, "back pressure")
    return client, gate


@modes
@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_stuck_receiver_and_the_shared_connection(tmp_path, flow_control):
    """Without credit it stops all channels of the connection, with credit only its own."""
    data = random.Random(1).randbytes(LARGE)
    other_data = random.Random(2).randbytes(50 * SEGMENT_SIZE_BYTES)
    async with mini_cluster(
        tmp_path, memory_tier_bytes=2 * LARGE, flow_control=flow_control
    ) as cluster:
        ack = await cluster.write(0, 1, [[data]])
        await cluster.write(0, 2, [[other_data]])
        _, stuck = await stuck_gate(cluster, ack)

        reader = await cluster.consumer(1)
        gate = open_gate(reader, 1, [(ack, [2])], 0, 1)
        await reader.expect(GateOpened)
        assert len(cluster[1].peers.clients()) == 1  # it is shared
        if flow_control == "watermark":
            await eventually(lambda: len(serving(cluster[0]).readers) == 2, "the other's request")
            with pytest.raises(TimeoutError):
                await reader.receive(timeout=SILENCE_SECONDS)
            stuck.add_credit(0, 1_000_000)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await asyncio.gather(stuck.read_all(), gate.read_all())
        else:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await gate.read_all()
            assert stuck.buffers == [1]  # and that while the stuck one stood still
            stuck.add_credit(0, 1_000_000)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await stuck.read_all()
        assert gate.content == [other_data]
        assert stuck.content == [data]
        await gate.close()
        await stuck.close()


@pytest.mark.parametrize("how", ["closes its gate", "vanishes"])
@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_stuck_receiver_that_leaves_lets_the_connection_go_on(tmp_path, how):
    """Its data is dropped, and the other gate reads everything."""
    data = random.Random(1).randbytes(LARGE)
    async with mini_cluster(
        tmp_path, memory_tier_bytes=2 * LARGE, flow_control="watermark"
    ) as cluster:
        ack = await cluster.write(0, 1, [[data]])
        await cluster.write(0, 2, [[b"the other one's"]])
        client, stuck = await stuck_gate(cluster, ack)
        reader = await cluster.consumer(1)
        gate = open_gate(reader, 1, [(ack, [2])], 0, 1)
        await reader.expect(GateOpened)
        if how == "vanishes":
            client.vanish()
        else:
            await stuck.close()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await gate.read_all()
        assert gate.content == [b"the other one's"]
        await gate.close()


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_producer_that_dies_while_the_connection_stands_still(tmp_path):
    """The reader takes the buffers here; then its socket is read again, and it gets the failure."""
    data = random.Random(1).randbytes(LARGE)
    async with mini_cluster(
        tmp_path, memory_tier_bytes=2 * LARGE, flow_control="watermark"
    ) as cluster:
        ack = await cluster.write(0, 1, [[data]])
        _, stuck = await stuck_gate(cluster, ack)
        serving(cluster[0]).connection.abort(ConnectionLost("killed"))
        stuck.add_credit(0, 1_000_000)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await stuck.read_all(raise_failures=False)
        assert stuck.failures[0].code is ErrorCode.CONNECTION_LOST
        assert data.startswith(bytes(stuck.content[0]))
        await stuck.close()


@pytest.mark.parametrize("asked", [("credit", "watermark"), ("watermark", "credit")])
async def test_each_connection_has_the_mode_that_its_connecting_side_asks_for(tmp_path, asked):
    """Two TaskManagers with different modes, one connection in each direction."""
    async with mini_cluster(tmp_path, count=0) as cluster:
        for index, flow_control in enumerate(asked):
            cluster.environments.append(
                await cluster.start_one(index, {"flow_control": flow_control})
            )
        acks = [await cluster.write(index, index, [[b"from %d" % index]]) for index in (0, 1)]
        gates = []
        for reader in (0, 1):
            client = await cluster.consumer(reader)
            assert client.connection.flow_control == FLOW_CREDIT
            gate = open_gate(client, 1, [(acks[1 - reader], [1 - reader])], 0, 1)
            await gate.read_all()
            assert gate.content == [b"from %d" % (1 - reader)]
            gates.append(gate)
            mode = {"credit": FLOW_CREDIT, "watermark": FLOW_WATERMARK}[asked[reader]]
            assert consuming(cluster[reader]).connection.flow_control == mode
            assert serving(cluster[1 - reader]).connection.flow_control == mode
            assert shown_modes(cluster[reader])["peer out"] == asked[reader]
            assert shown_modes(cluster[1 - reader])["peer in"] == asked[reader]
        for gate in gates:
            await gate.close()


@modes
@both_tiers
async def test_both_modes_give_the_same_bytes_and_only_one_announces_credit(
    tmp_path, memory_tier_bytes, flow_control, monkeypatch
):
    """Without credit mode, no credit is announced in either direction."""
    seen: Counter[type[Message]] = Counter()

    def spy(kind: type[PeerHandler] | type[PartitionRequestClient]) -> None:
        receive = kind.message_received

        def message_received(self, message, payload_length):
            seen[type(message)] += 1
            receive(self, message, payload_length)

        monkeypatch.setattr(kind, "message_received", message_received)

    spy(PeerHandler)
    spy(PartitionRequestClient)
    noise = random.Random(5)
    lengths = [0, 1, 900, SEGMENT_SIZE_BYTES, SEGMENT_SIZE_BYTES + 1, 30_000, 200_000]
    outputs = [[[noise.randbytes(noise.choice(lengths)) for _ in range(4)]] for _ in range(5)]
    async with mini_cluster(
        tmp_path, memory_tier_bytes=memory_tier_bytes, flow_control=flow_control
    ) as cluster:
        acks = [await cluster.write(0, attempt, regions) for attempt, regions in enumerate(outputs)]
        sources = [(ack, [attempt]) for attempt, ack in enumerate(acks)]
        client = await cluster.consumer(1)
        for start, end in ((0, 4), (1, 2), (2, 4)):
            got = await read_gate(client, 1, sources, start, end)
            assert got == [b"".join(regions[0][start:end]) for regions in outputs]
        sent = cluster[1].counters.credits_sent
    messages = seen[AddCredit] + seen[BacklogAnnouncement]
    assert (messages > 0, sent > 0) == ((flow_control == "credit",) * 2)


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_credit_on_a_connection_without_it_is_refused(tmp_path):
    """AddCredit does not belong to this mode: the connection closes with the reason."""
    async with mini_cluster(
        tmp_path, memory_tier_bytes=2 * LARGE, flow_control="watermark"
    ) as cluster:
        ack = await cluster.write(0, 1, [[bytes(LARGE)]])
        _, gate = await stuck_gate(cluster, ack)
        consuming(cluster[1]).connection.send(AddCredit(0, 1))
        gate.add_credit(0, 1_000_000)
        with pytest.raises(RemoteError, match="AddCredit is not allowed") as caught:
            await gate.read_all()
        assert caught.value.code is ErrorCode.UNEXPECTED_MESSAGE
        await gate.close()


@pytest.mark.parametrize("seed", range(6))
@both_tiers
@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_memory_is_conserved_when_gates_come_and_go(tmp_path, memory_tier_bytes, seed):
    """In watermark mode: gates that read, stop, close early and vanish, over links that break.

    At its end the cluster checks that segments, pools, leases and connections are back to zero.
    """
    chance = random.Random(seed)
    data = [chance.randbytes(60 * SEGMENT_SIZE_BYTES) for _ in range(3)]
    async with (
        mini_cluster(
            tmp_path,
            memory_tier_bytes=memory_tier_bytes,
            flow_control="watermark",
            network_segments=48,
            exclusive_request_timeout_seconds=PATIENCE_SECONDS,
        ) as cluster,
        FaultProxy(cluster[0].address) as proxy,
    ):
        acks = [await cluster.write(0, attempt, [[part]]) for attempt, part in enumerate(data)]
        by_proxy = replace(acks[0], data_port=proxy.address[1])

        async def one_reader(number: int) -> None:
            for _ in range(4):
                attempts = [chance.randrange(3) for _ in range(chance.randint(1, 2))]
                with contextlib.suppress(RemoteError):
                    await visit(number, attempts, chance.random())

        async def visit(number: int, attempts: list[int], fate: float) -> None:
            client = await cluster.consumer(1)
            gate = open_gate(client, 1, [(by_proxy, [a]) for a in attempts], 0, 1)
            await client.expect(GateOpened)
            if fate < 0.2:
                client.vanish()
                return
            stop_after = None if fate < 0.6 else chance.randrange(40)
            while gate.open and (stop_after is None or sum(gate.buffers) < stop_after):
                await gate.read_one(raise_failures=False)
            for index, attempt in enumerate(attempts):
                got = bytes(gate.content[index])
                whole = stop_after is None and index not in gate.failures
                assert got == data[attempt] if whole else data[attempt].startswith(got)
            await gate.close()
            await client.close()

        async def breaker() -> None:
            for cut in (Cut.RESET, Cut.CLOSE, Cut.STALL):
                connection = await proxy.connection(len(proxy.connections))
                # Of that connection only: the next may come before this task has its turn.
                connection.down.fault = Fault(cut_after_bytes=chance.randrange(400_000), cut=cut)
                ends = [connection.down.ended.wait(), connection.down.stalled.wait()]
                waits = [asyncio.ensure_future(end) for end in ends]
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for wait in waits:
                        wait.cancel()
                connection.close()

        breaking = asyncio.ensure_future(breaker())
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await asyncio.gather(*(one_reader(number) for number in range(5)))
        finally:
            breaking.cancel()
            await asyncio.gather(breaking, return_exceptions=True)
        # And after all that a link without faults serves a reader as before.
        got = await read_gate(await cluster.consumer(1), 1, [(acks[1], [1])], 0, 1)
        assert got == [data[1]]
