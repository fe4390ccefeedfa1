"""Regions that a producer on the same host puts into a region area are copied out of it."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest
from crc32c import crc32c

from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    AbortPartition,
    AttachRegionArea,
    FinishPartition,
    OpenPartition,
    PartitionAborted,
    PartitionFinished,
    PartitionOpened,
    PartitionResumed,
    RegionAreaAttached,
    RegionSecured,
    ResumePartition,
    SecureRegion,
    SharedRegion,
)
from sluice.shuffle.taskmanager.store.region_writer import DIRECT_COPY_BYTES
from tests.support.mini_cluster import DISK_ONLY, MEMORY_TIER, eventually, mini_cluster
from tests.support.store import Gate
from tests.support.wire_clients import read_gate, write_region

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.mini_cluster import MiniCluster
    from tests.support.wire_clients import Client

both_tiers = pytest.mark.parametrize("memory_tier_bytes", [MEMORY_TIER, DISK_ONLY])
both_sizes = pytest.mark.parametrize("size", [3_000, 3 * DIRECT_COPY_BYTES], ids=["small", "large"])

AREA_BYTES = 2 * 1024 * 1024
Area: TypeAlias = RegionAreaAttached
NONE = Area("", "", 0)

_random = random.Random(11)


def parts_of(size: int) -> list[bytes]:
    return [_random.randbytes(size), b"", _random.randbytes(700)]


async def attach(client: Client, token: str = "", size_bytes: int = AREA_BYTES) -> Area:
    client.send(AttachRegionArea(token, size_bytes))
    answer = await client.expect(RegionAreaAttached)
    assert isinstance(answer, RegionAreaAttached)
    return answer


def is_there(area: Area) -> bool:
    return Path(area.path).exists()


async def producer(cluster: MiniCluster, size_bytes: int = AREA_BYTES) -> tuple[Client, Area]:
    """Open a map output on a connection with an area."""
    client = await cluster.producer(0)
    area = await attach(client, size_bytes=size_bytes)
    client.send(OpenPartition(0, 1, 7, 3))
    await client.expect(PartitionOpened)
    return client, area


def put(
    client: Client,
    area: Area,
    region: int,
    parts: Sequence[bytes],
    offset: int,
    *,
    checksum: int | None = None,
) -> None:
    """Put a region into an area and announce it."""
    data = b"".join(parts)
    with Path(area.path).open("r+b") as file:
        file.seek(offset)
        file.write(data)
    lengths = [len(part) for part in parts]
    client.send(
        SharedRegion(0, region, 0, lengths, crc32c(data) if checksum is None else checksum, offset)
    )


async def secure(client: Client, region: int) -> None:
    client.send(SecureRegion(0, region))
    assert await client.expect(RegionSecured) == RegionSecured(0, region)


async def finish(cluster: MiniCluster, client: Client, regions: list[list[bytes]]) -> None:
    """Commit, and check that readers get what was written."""
    total = sum(len(part) for parts in regions for part in parts)
    client.send(FinishPartition(0, total, len(regions)))
    await client.expect(PartitionFinished)
    consumer = await cluster.consumer(0)
    content = await read_gate(consumer, 1, [(consumer.ack, [7])], 0, 3)
    assert content == [b"".join(part for parts in regions for part in parts)]


async def failure(client: Client) -> RemoteError:
    with pytest.raises(RemoteError) as caught:
        await client.expect(PartitionFinished)
    return caught.value


@both_tiers
@both_sizes
async def test_regions_are_copied_out_of_the_area(tmp_path, memory_tier_bytes, size):
    regions = [parts_of(size) for _ in range(3)]
    async with mini_cluster(tmp_path, 1, memory_tier_bytes=memory_tier_bytes) as cluster:
        client, area = await producer(cluster)
        for number, parts in enumerate(regions):
            put(client, area, number, parts, 4096 * (number % 2))
            await secure(client, number)  # its place in the area is free again
        await finish(cluster, client, regions)
        assert cluster[0].counters.region_area_bytes_in == 3 * (size + 700)
        assert cluster[0].counters.producer_bytes_in == 3 * (size + 700)


@both_tiers
async def test_regions_of_the_area_and_of_the_socket_mix(tmp_path, memory_tier_bytes):
    regions = [parts_of(9_000) for _ in range(4)]
    async with mini_cluster(tmp_path, 1, memory_tier_bytes=memory_tier_bytes) as cluster:
        client, area = await producer(cluster)
        for number, parts in enumerate(regions):
            if number % 2:
                await write_region(client, 0, number, parts)
            else:
                put(client, area, number, parts, 20_000 * number)
        await finish(cluster, client, regions)


async def test_the_file_cannot_be_found_by_others(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        area = await attach(await cluster.producer(0))
        path = Path(area.path)
        found = os.stat(path)
        assert found.st_size == AREA_BYTES
        assert found.st_blocks * 512 >= AREA_BYTES, "its pages are allotted"
        assert stat.S_IMODE(found.st_mode) == 0o666
        # Others can enter the directory, and not list it: they have to know the name.
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o711
        arena = next(path.parent.parent.glob("arena-*"))
        assert stat.S_IMODE(arena.stat().st_mode) == 0o600


async def test_an_area_lives_as_long_as_its_connections(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        first, second = await cluster.producer(0), await cluster.producer(0)
        area = await attach(first)
        assert await attach(second, area.token, 0) == area
        await first.close()
        await eventually(lambda: len(cluster[0].handlers) == 1)
        assert is_there(area)
        assert cluster[0].region_areas.used_bytes == AREA_BYTES
        assert await attach(second, "", 0) == NONE  # given up
        assert not is_there(area)
        assert await attach(second, area.token, 0) == NONE


async def test_an_area_of_another_application_is_unknown(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        area = await attach(await cluster.producer(0))
        stranger = await cluster.producer(0, "other")
        assert await attach(stranger, area.token, 0) == NONE


async def test_areas_have_a_limit(tmp_path):
    async with mini_cluster(tmp_path, 1, region_areas_bytes=3 * AREA_BYTES) as cluster:
        clients = [await cluster.producer(0) for _ in range(4)]
        for client in clients:
            client.send(AttachRegionArea("", AREA_BYTES))
        answers = [await client.expect(RegionAreaAttached) for client in clients]
        assert sorted(answer != NONE for answer in answers) == [False, True, True, True]
        clients[1].send(AttachRegionArea("", 2 * AREA_BYTES))  # its own is given up first
        assert await clients[1].expect(RegionAreaAttached) == NONE
        assert cluster[0].region_areas.used_bytes == 2 * AREA_BYTES


@pytest.mark.parametrize(
    "settings", [{"region_areas_bytes": 0}, {"memory_directory": None, "memory_tier_bytes": 0}]
)
async def test_a_taskmanager_without_areas_says_so(tmp_path, settings):
    async with mini_cluster(tmp_path, 1, **settings) as cluster:
        assert await attach(await cluster.producer(0)) == NONE


async def test_a_producer_that_gets_no_area_may_ask_again(tmp_path):
    async with mini_cluster(tmp_path, 1, region_areas_bytes=AREA_BYTES) as cluster:
        client = await cluster.producer(0)
        for _ in range(2):
            assert await attach(client, size_bytes=AREA_BYTES + 1) == NONE
        assert await attach(client) != NONE


@pytest.mark.parametrize("memory", [{}, {"memory_directory": None, "memory_tier_bytes": 0}])
async def test_areas_can_lie_elsewhere(tmp_path, memory):
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    directory = shared / "areas"
    async with mini_cluster(tmp_path, 1, region_areas_directory=directory, **memory) as cluster:
        area = await attach(await cluster.producer(0))
        assert Path(area.path).parent == directory
        assert stat.S_IMODE(directory.stat().st_mode) == 0o711
        assert stat.S_IMODE(shared.stat().st_mode) == 0o755, "is not the TaskManager's"


async def test_files_of_a_killed_daemon_go_at_the_next_start(tmp_path):
    left = tmp_path / "tm0" / "memory" / "areas" / ("0123456789abcdef" * 2)
    left.parent.mkdir(parents=True)
    left.write_bytes(b"left behind")
    async with mini_cluster(tmp_path, 1) as cluster:
        assert not left.exists()
        assert await attach(await cluster.producer(0), left.name, 0) == NONE


async def test_a_map_output_goes_on_by_socket_or_area_after_a_restart(tmp_path):
    regions = [parts_of(9_000) for _ in range(3)]
    async with mini_cluster(tmp_path, 1) as cluster:
        client, area = await producer(cluster)
        put(client, area, 0, regions[0], 0)
        await secure(client, 0)
        await cluster[0].close()
        cluster.environments[0] = await cluster.start_one(0, {})
        client = await cluster.producer(0)
        assert await attach(client, area.token, 0) == NONE
        area = await attach(client)
        client.send(ResumePartition(0, 1, 7, 3))
        assert await client.expect(PartitionResumed) == PartitionResumed(0, 1, 9_700, False)
        for number in (1, 2):
            put(client, area, number, regions[number], 4096)
            await secure(client, number)
        await finish(cluster, client, regions)


@both_tiers
@both_sizes
async def test_a_region_with_a_wrong_checksum_is_not_committed(tmp_path, memory_tier_bytes, size):
    async with mini_cluster(tmp_path, 1, memory_tier_bytes=memory_tier_bytes) as cluster:
        client, area = await producer(cluster)
        put(client, area, 0, parts_of(size), 0, checksum=1)
        client.send(FinishPartition(0, size + 700, 1))
        assert (await failure(client)).code is ErrorCode.CHECKSUM_MISMATCH
        assert cluster[0].counters.map_outputs_committed == 0


@both_tiers
@both_sizes
async def test_a_file_cut_short_fails_its_map_output_alone(tmp_path, memory_tier_bytes, size):
    async with mini_cluster(tmp_path, 1, memory_tier_bytes=memory_tier_bytes) as cluster:
        client, area = await producer(cluster)
        os.truncate(area.path, 100)
        client.send(SharedRegion(0, 0, 0, [size], 7, 0))
        client.send(SecureRegion(0, 0))
        assert (await failure(client)).code is ErrorCode.REGION_MISMATCH
        other, others = await producer(cluster)
        parts = parts_of(size)
        put(other, others, 0, parts, 0)
        await finish(cluster, other, [parts])


@pytest.mark.parametrize("offset", [AREA_BYTES - 99, AREA_BYTES, 2**64 - 1])
async def test_a_region_beyond_the_area_is_refused(tmp_path, offset):
    async with mini_cluster(tmp_path, 1) as cluster:
        client, _area = await producer(cluster)
        client.send(SharedRegion(0, 0, 0, [100], 7, offset))
        error = await failure(client)
        assert error.code is ErrorCode.REGION_MISMATCH
        assert f"100 bytes at {offset}" in str(error)


async def test_a_region_without_an_area_is_refused(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        client, _ = await producer(cluster, size_bytes=0)
        client.send(SharedRegion(0, 0, 0, [100], 7, 0))
        error = await failure(client)
        assert error.code is ErrorCode.REGION_MISMATCH
        assert "without a region area" in str(error)


async def test_a_second_question_before_the_answer_ends_the_connection(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        client = await cluster.producer(0)
        client.send(AttachRegionArea("", AREA_BYTES))
        client.send(AttachRegionArea("", AREA_BYTES))
        with pytest.raises(RemoteError, match="before the answer"):
            await client.expect(PartitionFinished)


@both_tiers
@pytest.mark.parametrize("gone", [False, True], ids=["aborted", "connection lost"])
async def test_giving_up_during_the_copy_leaves_nothing(tmp_path, memory_tier_bytes, gone, caplog):
    """The cluster checks at its end that neither area nor extent is held."""
    parts = parts_of(3 * DIRECT_COPY_BYTES)
    async with mini_cluster(tmp_path, 1, memory_tier_bytes=memory_tier_bytes) as cluster:
        client, area = await producer(cluster)
        put(client, area, 0, parts, 0)
        if gone:
            client.vanish()
        else:
            client.send(AbortPartition(0))
            await client.expect(PartitionAborted)
        other, others = await producer(cluster)
        put(other, others, 0, parts, 0)
        await finish(cluster, other, [parts])
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_connection_lost_while_its_area_is_made_leaves_nothing(tmp_path, monkeypatch):
    # Without a memory tier no other thread allots pages.
    async with mini_cluster(tmp_path, 1, memory_tier_bytes=DISK_ONLY) as cluster:
        gate = Gate(monkeypatch, os, "posix_fallocate")
        client = await cluster.producer(0)
        client.send(AttachRegionArea("", AREA_BYTES))
        await gate.wait_entered()
        directory = tmp_path / "tm0" / "memory" / "areas"
        assert len(list(directory.iterdir())) == 2
        client.vanish()
        await eventually(lambda: not cluster[0].handlers)
        gate.proceed.set()
        await eventually(lambda: [path.name for path in directory.iterdir()] == ["lock"])
