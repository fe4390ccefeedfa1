"""The same with Kryo, encryption of stored data, forced spills and speculation all at once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.spark.applications import Application, Both, sluice_settings
from tests.spark.barrier import Barrier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.spark.driver import Driver
    from tests.support.cluster import StandaloneCluster
    from tests.support.daemons import Daemons

MAPS = 4
"""Map tasks of the jobs in ``jobs/failing.py``."""

SETTINGS = {
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.io.encryption.enabled": "true",
    # Several spill files for each map task, which Spark then merges.
    "spark.shuffle.spill.numElementsForceSpillThreshold": "1500",
    "spark.shuffle.sort.bypassMergeThreshold": "1",
    "spark.speculation": "true",
    # No copy of a task before all have ended; the job that is about copies lowers it.
    "spark.speculation.quantile": "1.0",
}


@pytest.fixture(scope="module")
def variant(driver: Driver, cluster: StandaloneCluster, daemons: Daemons) -> Iterator[Application]:
    settings = sluice_settings(daemons) | SETTINGS
    with driver.application("variant", cluster.master_url, settings) as running:
        yield running


@pytest.fixture(scope="module")
def pair(own: Application, variant: Application, daemons: Daemons) -> Both:
    return Both(own, variant, daemons)


@pytest.mark.parametrize(
    "job",
    [
        "jvm_count_by_key",
        "jvm_group_by_key",
        "jvm_sort_by_key",
        "jvm_cogroup",
        "rdd_reduce_by_key",
        "rdd_sort_by_key",
        "frame_group_by",
        "frame_join",
        "frame_order_by",
    ],
)
def test_kryo_encryption_and_spills(pair: Both, words: str, job: str):
    compared = pair.compare(job, words=words)
    assert compared.differences == []
    assert compared.unaccounted() == {}
    assert compared.moved.written_bytes > 0


def test_kryo_is_the_serializer(variant: Application, words: str):
    row = variant.rows("jvm_serializer", words=words).read_text(encoding="utf-8")
    assert json.loads(row) == ["KryoSerializer", True]


def test_a_task_and_its_speculative_copy_end_together(pair: Both, directory: Path):
    expected = pair.own.rows("straggler")
    pair.sluice.new_events()
    with Barrier(directory / "speculation.sock") as barrier:
        running = pair.sluice.start("straggler", barrier=str(barrier.path))
        original = barrier.wait("original", 1)
        copy = barrier.wait("copy", 1)
        assert original[0].executor_pid != copy[0].executor_pid
        barrier.release()  # both now write the same map output
        found = running.result(120.0)
    assert found.read_text() == expected.read_text()
    assert pair.sluice.new_events().speculative_tasks() >= 1


def test_of_a_task_and_its_speculative_copy_only_the_winner_is_stored(
    pair: Both, daemons: Daemons, directory: Path
):
    expected = pair.own.rows("straggler")
    pair.sluice.new_events()
    with Barrier(directory / "winner.sock") as barrier:
        running = pair.sluice.start("straggler", barrier=str(barrier.path))
        barrier.wait("original", 1)
        barrier.wait("copy", 1)
        barrier.release("copy")  # wins; Spark ends the original, which has written nearly all
        barrier.wait("reduce", 1)
        for daemon in daemons:
            daemon.wait_until(
                lambda status: not any(s.open_map_outputs for s in status.partitions), 60.0
            )
        assert sum(daemons.newest_outputs(pair.sluice.application_id)) == MAPS
        barrier.release()
        found = running.result(120.0)
    assert found.read_text() == expected.read_text()
    use = pair.sluice.new_events().successes().shuffle_use()
    assert use.records_read == use.records_written > 0
