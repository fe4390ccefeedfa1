"""Connections between TaskManagers outlive the gates that use them, and hold nothing meanwhile."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sluice.protocol.schema import ROLE_PEER
from tests.support.mini_cluster import DISK_ONLY, eventually, mini_cluster
from tests.support.wire_clients import read_gate

if TYPE_CHECKING:
    from sluice.shuffle.memory import NetworkBufferPool

LONG_SECONDS = 1000.0


def no_local_pools(pool: NetworkBufferPool) -> bool:
    return not pool.local_pools


async def test_successive_gates_share_a_connection(tmp_path):
    """On the disk tier, whose reads take segments of the connection."""
    async with mini_cluster(
        tmp_path,
        memory_tier_bytes=DISK_ONLY,
        peer_idle_timeout_seconds=LONG_SECONDS,
        check=False,
    ) as cluster:
        ack = await cluster.write(0, 1, [[b"a" * 10_000]])
        client = await cluster.consumer(1)
        for _ in range(3):
            assert await read_gate(client, 1, [(ack, [1])], 0, 1) == [b"a" * 10_000]
            for environment in cluster.environments:
                await eventually(partial(no_local_pools, environment.network_pool))
        (peer,) = cluster[1].peers.clients()
        assert peer.channels == 0
        assert [c.role for c in cluster[0].listener.connections] == [ROLE_PEER]
        producers, peers = 1, 1
        assert cluster[0].listener.accepted_total == producers + peers
