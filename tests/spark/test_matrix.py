"""Combinations of settings that are tested alone elsewhere, and other jobs with them.

One application has lzf, encryption, off-heap memory, unsafe Kryo and four cores per executor. It
also runs stages of several cores per task, and loses executors that keep data.
"""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING

import pytest

from tests.spark.applications import LOCAL_MASTER, Application, Both, sluice_settings
from tests.spark.jobs.matrix import ROW_BYTES
from tests.support.executors import executors_below
from tests.support.extended import first_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.spark.barrier import Barrier
    from tests.spark.driver import Driver
    from tests.support.cluster import StandaloneCluster
    from tests.support.daemons import Daemons

MAPS = 4
"""Map tasks of the jobs in ``jobs/failing.py``."""
LEAVE_SECONDS = 60.0
CORES = 4
EXECUTORS = 2
ONCE = dict.fromkeys(range(MAPS), 1)
"""Every map task ran once."""

PARTITION_MIB = int(os.environ.get("SLUICE_PARTITION_MIB", "32"))
"""Size of the large partition: `make large-partition` has more than 2 GiB."""

SETTINGS = {
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.kryo.unsafe": "true",
    "spark.io.compression.codec": "lzf",
    "spark.io.encryption.enabled": "true",
    "spark.memory.offHeap.enabled": "true",
    "spark.memory.offHeap.size": "64m",
    "spark.executor.cores": str(CORES),
    "spark.cores.max": str(EXECUTORS * CORES),
    "spark.unsafe.exceptionOnMemoryLeak": "true",
}

DYNAMIC = {
    "spark.scheduler.minRegisteredResourcesRatio": "0.0",  # the job asks for executors
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "1",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    "spark.executor.cores": str(CORES),
    "spark.cores.max": str(CORES),
}


@pytest.fixture(scope="module")
def combined(driver: Driver, cluster: StandaloneCluster, daemons: Daemons) -> Iterator[Application]:
    settings = sluice_settings(daemons) | SETTINGS
    with driver.application("combined", cluster.master_url, settings) as running:
        yield running


@pytest.fixture(scope="module")
def pair(own: Application, combined: Application, daemons: Daemons) -> Both:
    return Both(own, combined, daemons)


@pytest.mark.parametrize(
    "job",
    first_of(
        [
            "rdd_sort_by_key",
            "frame_join",
            "jvm_count_by_key",
            "jvm_sort_by_key",
            "jvm_cogroup",
            "frame_group_by",
            "frame_order_by",
        ],
        2,
    ),
)
def test_lzf_encryption_off_heap_unsafe_kryo_and_four_cores(pair: Both, words: str, job: str):
    compared = pair.compare(job, words=words)
    assert compared.differences == []
    assert compared.unaccounted() == {}
    assert compared.moved.written_bytes > 0
    assert compared.events.task_ends().keys() == {"Success"}


@pytest.mark.parametrize("cpus", [[2, 4], [4, 2]], ids=["2-4", "4-2"])
def test_stages_of_several_cores_per_task(pair: Both, cpus: list[int]):
    compared = pair.compare("matrix_profiles", cpus=cpus, other={"cpus": None})
    assert compared.differences == []
    assert compared.unaccounted() == {}
    assert compared.moved.written_bytes > 0


@pytest.mark.parametrize("kind", first_of(["cached", "local", "reliable"]))
def test_cached_and_checkpointed_data_survives_a_lost_executor(
    pair: Both, barrier: Barrier, directory: Path, tmp_path: Path, kind: str
):
    """Lost partitions are read from the shuffle again; no map task runs again for them."""
    parameters = {"kind": kind, "directory": str(tmp_path)}
    jobs = ("matrix_keep", "matrix_read_kept")
    expected = [pair.own.rows(job, **parameters).read_text() for job in jobs]
    application = pair.sluice
    application.fill_slots(barrier, EXECUTORS * CORES)
    application.new_events()
    found = [application.rows("matrix_keep", **parameters).read_text()]
    victim = executors_below(directory, application.application_id)[0]
    os.kill(victim.pid, signal.SIGKILL)
    found.append(application.rows("matrix_read_kept", **parameters).read_text())
    assert found == expected
    application.fill_slots(barrier, EXECUTORS * CORES)  # by a new executor: the loss is known
    events = application.new_events()
    assert events.map_runs() == ONCE
    assert events.executors_removed() == 1


@pytest.mark.extended
def test_a_stage_reads_what_executors_of_another_profile_wrote(
    own: Application, driver: Driver, cluster: StandaloneCluster, daemons: Daemons
):
    """The second profile's executor gets cores when the first one's has left."""
    with driver.application("profiles", cluster.master_url, sluice_settings(daemons) | DYNAMIC) as (
        application
    ):
        compared = Both(own, application, daemons).compare(
            "matrix_profiles", cpus=[2, 4], executors=True, other={"cpus": None}
        )
        assert compared.differences == []
        assert compared.events.map_runs() == ONCE
        # There are cores for one executor, so the first one left before the second one came.
        first, *others = compared.events.executors_added()
        assert others
        application.wait_for_output(re.compile(rf"Executor {first} is removed\."), LEAVE_SECONDS)


def test_a_large_partition_of_one_map_task(own: Application, driver: Driver, daemons: Daemons):
    """Sizes and positions in a partition exceed 31 bits, with ``SLUICE_PARTITION_MIB=2300``."""
    settings = sluice_settings(daemons) | {"spark.shuffle.compress": "false"}
    with driver.application("large", LOCAL_MASTER, settings) as application:
        both = Both(own, application, daemons)
        # About two rows of a hundred are small.
        rows = PARTITION_MIB * 102 // 100 + 1
        compared = both.compare("matrix_large_partition", rows=rows)
        assert compared.differences == []
        assert compared.unaccounted() == {}
        assert compared.moved.written_bytes > PARTITION_MIB * ROW_BYTES
