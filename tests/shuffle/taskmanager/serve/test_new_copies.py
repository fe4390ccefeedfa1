"""A map output with the name of another one counts as its copy only if it has the same bytes."""

from __future__ import annotations

from sluice.shuffle.names import MapAttemptKey
from sluice.shuffle.taskmanager.replicas import migration
from sluice.shuffle.taskmanager.store.output_index import DAMAGED
from tests.support.copies import KEY, copying, holders, read, write

OURS = [[b"a" * 5000, b"", b"b" * 2000]]
THEIRS = [[b"a" * 5000, b"b" * 2000, b""]]
"""The same bytes for other subpartitions."""
ATTEMPT = MapAttemptKey(KEY, 7)


async def test_other_bytes_of_the_same_name_are_no_copy(tmp_path, caplog):
    async with copying(tmp_path, 2) as (cluster, _):
        await cluster.write(1, 7, THEIRS)
        await write(cluster[0], 7, OURS)
        assert cluster[0].counters.commits_without_copies == 1
        assert ATTEMPT in cluster[0].copies.replication.holdings.short
        assert "it has other bytes" in caplog.text
        assert await read(cluster[1], 7, 2) == b"a" * 5000 + b"b" * 2000


async def test_a_third_taskmanager_gets_the_copy(tmp_path):
    async with copying(tmp_path, 3) as (cluster, _):
        await write(cluster[0], 6, OURS)
        (first,) = set(holders(cluster, 6)) - {0}
        await cluster.write(first, 7, THEIRS)
        await write(cluster[0], 7, OURS)
        assert holders(cluster, 7) == [0, 1, 2]
        holding = cluster[0].copies.replication.holdings.get(ATTEMPT)
        assert holding is not None
        assert holding.others == {cluster[3 - first].taskmanager_id}


async def test_a_copy_of_the_same_bytes_is_found(tmp_path):
    async with copying(tmp_path, 2) as (cluster, _):
        sparse = [[b"", b"x" * 100, *[b""] * 998], [b"y"] * 1000]
        await cluster.write(1, 7, sparse)
        await write(cluster[0], 7, sparse)
        assert cluster[0].counters.copies_found == 1
        assert cluster[0].counters.copies_made == 0


async def test_new_bytes_of_the_origin_replace_its_copy(tmp_path):
    async with copying(tmp_path, 2) as (cluster, _):
        await write(cluster[0], 7, THEIRS)
        before = cluster[0].store.lookup(*ATTEMPT)
        assert before is not None
        # It is lost, and its task writes other bytes under the same name.
        cluster[0].store.drop(before, DAMAGED, report=False)
        await write(cluster[0], 7, OURS)
        copy = cluster[1].store.lookup(*ATTEMPT)
        assert copy is not None
        assert copy.checksum() != before.checksum()
        assert await read(cluster[1], 7, 3) == b"a" * 5000 + b"b" * 2000
        holding = cluster[1].copies.replication.holdings.get(ATTEMPT)
        assert holding is not None
        assert holding.others == {cluster[0].taskmanager_id}


async def test_other_bytes_do_not_count_as_moved(tmp_path, monkeypatch):
    monkeypatch.setattr(migration, "FIRST_PAUSE_SECONDS", 0.001)
    async with copying(tmp_path, 2) as (cluster, _):
        await cluster.write(0, 7, OURS)
        await cluster.write(1, 7, THEIRS)
        cluster[0].drain()
        await cluster[0].migrate()
        progress = cluster[0].copies.migration.progress
        assert (progress.moved, progress.staying) == (0, 1)
        assert "other bytes" in progress.reason
