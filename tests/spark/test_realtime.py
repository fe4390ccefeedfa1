"""Pipelined shuffles of real-time queries (Spark 4.3) through two TaskManagers."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from sluice.shuffle.partition.partition_type import ResultPartitionType, pool_bounds
from sluice.shuffle.taskmanager.config.network_memory_config import NetworkMemoryConfig
from sluice.spark_integration import spark_conf
from tests.spark.applications import Application, sluice_settings
from tests.support.cluster import installed_spark
from tests.support.executors import executors_below
from tests.support.jobs import realtime
from tests.support.processes import ProcessFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sluice.shuffle.partition_status import PipelinedPartitionStatus
    from sluice.shuffle.taskmanager.status.status import TaskManagerStatus
    from tests.spark.barrier import Barrier
    from tests.spark.driver import Driver
    from tests.support.cluster import StandaloneCluster
    from tests.support.daemons import Daemons

MAPS = REDUCERS = 2
KEYS = 5
STATUS_SECONDS = 60.0
READERS_GONE = "All readers of the pipelined partition have gone"
"""A writer fails when its readers have, and may be the one of which the driver hears first."""
QUERY: dict[str, Any] = {
    "mode": "state",
    "keys": KEYS,
    "maps": MAPS,
    "per_tick": 20,
    "tick_millis": 100,
    "batch_seconds": 2,
    "record_bytes": 10,
    "row_millis": 0,
    "warm_up": 0,
}


def line_has_it() -> bool:
    return tuple(map(int, installed_spark().version.split(".")[:2])) >= (4, 3)


@pytest.fixture(scope="module")
def application(
    driver: Driver, cluster: StandaloneCluster, daemons: Daemons
) -> Iterator[Application]:
    if not line_has_it():
        pytest.skip("Spark has pipelined shuffles from 4.3 on")
    settings = sluice_settings(daemons) | realtime.SETTINGS
    settings |= {
        "spark.sluice.pipelined.enabled": "true",
        "spark.sql.streaming.realTimeMode.minBatchDuration": "1s",
        # All tasks of the query run at once, half of them on each host.
        "spark.executor.cores": "2",
        "spark.cores.max": str(MAPS + REDUCERS),
    }
    with driver.application("realtime", cluster.master_url, settings) as running:
        yield running


def expected(records: int) -> list[str]:
    """Count the rows as the query does, without Spark."""
    numbers = [range(key, records, KEYS) for key in range(KEYS)]
    return [f'["key {key}", {len(of_key)}, {sum(of_key)}]' for key, of_key in enumerate(numbers)]


def test_a_stateful_query_over_several_batches(application: Application, daemons: Daemons):
    records = 1000  # five seconds of them: at least two batches
    before = daemons.moved()
    assert application.rows("realtime", **QUERY, records=records).read_text().splitlines() == (
        expected(records)
    )
    moved = daemons.moved() - before
    # A row with three columns, its length and that of the record.
    assert moved.written_bytes > records * 40
    assert moved.read_bytes == moved.written_bytes
    assert moved.read_bytes_remote > 0


def until_none(daemons: Daemons) -> None:
    """Wait until no TaskManager has a pipelined partition."""
    daemons.wait_until(
        lambda statuses: not any(status.pipelined_partitions for status in statuses),
        STATUS_SECONDS,
    )


def until_any(
    daemons: Daemons, what: Callable[[PipelinedPartitionStatus], bool]
) -> list[PipelinedPartitionStatus]:
    """All pipelined partitions of a TaskManager that has such a one; waits for it."""

    def with_such_a_one(statuses: list[TaskManagerStatus]) -> list[TaskManagerStatus]:
        return [status for status in statuses if any(map(what, status.pipelined_partitions))]

    found = with_such_a_one(daemons.wait_until(with_such_a_one, STATUS_SECONDS))
    return list(found[0].pipelined_partitions)


def test_a_slow_reader_holds_its_source_up_in_bounded_memory(
    application: Application, daemons: Daemons
):
    records = 400
    slow = QUERY | {"per_tick": records, "record_bytes": 30_000, "row_millis": 20}
    running = application.start("realtime", **slow, records=records)
    partitions = until_any(daemons, lambda partition: partition.back_pressured)
    _, most = pool_bounds(
        ResultPartitionType.PIPELINED_BOUNDED,
        REDUCERS,
        NetworkMemoryConfig.model_fields["exclusive_buffers_per_channel"].default,
        NetworkMemoryConfig.model_fields["floating_buffers_per_gate"].default,
    )
    assert most is not None
    for partition in partitions:
        assert partition.partition_type == "PIPELINED_BOUNDED"
        assert partition.used_segments <= partition.limit_segments <= most
    assert running.result().read_text().splitlines() == expected(records)


def test_a_lost_taskmanager_fails_the_query_and_the_next_one_runs(
    application: Application, daemons: Daemons
):
    running = application.start("realtime", **QUERY | {"per_tick": 1}, records=600)
    until_any(daemons, lambda partition: partition.bytes_out > 0)
    daemons[1].kill()
    try:
        with pytest.raises(
            ProcessFailed, match=rf"CONNECTION_LOST|connection to the TaskManager|{READERS_GONE}"
        ):
            running.result()
    finally:
        daemons[1].start()
    assert application.rows("realtime", **QUERY, records=40).read_text().splitlines() == expected(
        40
    )


def test_an_executor_killed_while_it_sends_fails_the_query_and_the_next_one_runs(
    application: Application, daemons: Daemons, barrier: Barrier, directory: Path
):
    """As with Spark's own streaming shuffle; what it had begun is not left behind."""
    running = application.start("realtime", **QUERY | {"per_tick": 1}, records=600)
    until_any(daemons, lambda partition: partition.bytes_out > 0)
    victim = executors_below(directory, application.application_id)[0]
    os.kill(victim.pid, signal.SIGKILL)
    with pytest.raises(ProcessFailed, match=r"ExecutorLostFailure|PRODUCER_FAILED|exited"):
        running.result()
    until_none(daemons)
    application.fill_slots(barrier, MAPS + REDUCERS)  # another executor has taken its place
    assert application.rows("realtime", **QUERY, records=40).read_text().splitlines() == expected(
        40
    )


def test_older_lines_refuse_the_setting(driver: Driver):
    if line_has_it():
        pytest.skip("this line has pipelined shuffles")
    settings = spark_conf("127.0.0.1:7337", installed_spark().version) | {
        "spark.sluice.pipelined.enabled": "true"
    }
    output = driver.refused("older", settings)
    assert "spark.sluice.pipelined.enabled is true: Spark" in output
    assert "has no pipelined shuffles, 4.3 is the first line that has" in output
