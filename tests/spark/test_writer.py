"""Sluice's own writer: codecs, sizes of rows, memory, local disk, and that it sends in time."""

from __future__ import annotations

import json
import time
import urllib.request
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.applications import LOCAL_MASTER, Both, sluice_settings
from tests.spark.barrier import Barrier
from tests.support.extended import first_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.spark.applications import Application
    from tests.spark.driver import Driver, GuestApplication
    from tests.support.daemons import Daemons

SMALL_BUFFER = {"spark.sluice.writer.bufferSize": "256k", "spark.sluice.writer.regionSize": "64k"}
"""Many passes for each map task."""

SENT_SECONDS = 60.0
UI_TIMEOUT_SECONDS = 30.0
LOOK_SECONDS = 0.2
"""Pause between two looks at the stacks of a driver, which cannot be waited for."""

CACHED = {
    # Cached blocks are not evicted for execution.
    "spark.memory.storageFraction": "0.999",
    "spark.storage.unrollMemoryThreshold": "4096",
    "spark.unsafe.exceptionOnMemoryLeak": "true",
}
OFF_HEAP = {"spark.memory.offHeap.enabled": "true", "spark.memory.offHeap.size": "1m"}
NO_MEMORY_BYTES = 20_000 * 20
"""The rows of that job, each preceded by its length."""

CODECS = {
    "lz4": {"spark.io.compression.lz4.blockSize": "128k", "spark.sluice.writer.blockSize": "8k"},
    "zstd": {"spark.io.compression.codec": "zstd", "spark.io.compression.zstd.level": "5"},
    # Through Spark's own streams, and not joined when they are read.
    "encrypted": {"spark.io.compression.codec": "snappy", "spark.io.encryption.enabled": "true"},
}
TIGHT = {
    # 14 MB for execution, for two tasks.
    "spark.memory.fraction": "0.03",
    "spark.memory.storageFraction": "0",
    "spark.buffer.pageSize": "256k",
    "spark.shuffle.compress": "false",
    # Shows the plugin's counters.
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
}


def local(
    driver: Driver, name: str, daemons: Daemons, settings: dict[str, str]
) -> GuestApplication:
    """Return an application in one process."""
    return driver.application(name, LOCAL_MASTER, sluice_settings(daemons) | settings)


def check(both: Both, job: str, **parameters: Any) -> None:
    """Compare rows and what was counted."""
    both.own.new_events()
    compared = both.compare(job, **parameters)
    assert compared.differences == []
    assert compared.unaccounted() == {}
    use = compared.events.shuffle_use()
    assert use.write_seconds > 0
    if job.startswith("rdd_"):
        # Adaptive execution may choose other plans for a frame: the sizes are not the same.
        assert use.records_written == both.own.new_events().shuffle_use().records_written


@pytest.mark.parametrize("codec", first_of(CODECS))
def test_codecs(own: Application, driver: Driver, daemons: Daemons, codec: str):
    with local(driver, f"codec-{codec}", daemons, SMALL_BUFFER | CODECS[codec]) as application:
        both = Both(own, application, daemons)
        for job in ("frame_repartition", "rdd_sort_by_key"):
            check(both, job)
        if codec == "lz4":
            # One TaskManager: records come in the order of Spark's own shuffle.
            # They do not read everything, so what TaskManagers have sent is not compared.
            for job in ("order_rdd_values", "order_rdd_sorted", "order_frame_rows"):
                assert both.compare(job).differences == []


def test_huge_rows(both: Both):
    check(both, "writer_huge_rows")


def test_rows_without_columns(both: Both):
    check(both, "writer_no_columns")


def test_ten_thousand_partitions(both: Both):
    check(both, "frame_many_partitions", partitions=10_000, adaptive=True)


def test_row_checksums_are_those_of_sparks_writers(both: Both):
    own = both.own.rows("writer_checksums").read_text(encoding="utf-8")
    assert own == both.sluice.rows("writer_checksums").read_text(encoding="utf-8")
    if both.own.spark_version >= "4.2":  # from there on they are made by default
        values = [json.loads(line)[1] for line in own.splitlines()]
        assert 0 not in values


@pytest.mark.extended
def test_others_that_need_memory(own: Application, driver: Driver, daemons: Daemons):
    with local(driver, "pressure", daemons, TIGHT) as application:
        both = Both(own, application, daemons)
        before = _spills(application)  # the driver counts those of its earlier applications, too
        check(both, "writer_pressure")
        assert _spills(application) > before, "its memory was never asked for"
        check(both, "writer_pressure", python=True)


@pytest.mark.parametrize("off_heap", [False, True], ids=["on-heap", "off-heap"])
def test_records_are_gathered_if_cached_blocks_have_the_memory(
    own: Application, driver: Driver, daemons: Daemons, off_heap: bool
):
    settings = TIGHT | CACHED | (OFF_HEAP if off_heap else {})
    with local(driver, f"cached-{off_heap}", daemons, settings) as application:
        both = Both(own, application, daemons)
        size = 1024 * 1024 if off_heap else None
        compared = both.compare(
            "writer_no_memory", full=True, off_heap_bytes=size, other={"full": False}
        )
        assert compared.differences == []
        # Without a block header for each record.
        assert compared.events.shuffle_use().bytes_written < 1.2 * NO_MEMORY_BYTES


def test_a_task_killed_while_it_sends_for_another_operator_has_not_failed(
    own: Application, driver: Driver, directory: Path, daemons: Daemons
):
    expected = own.rows("writer_killed_spill").read_text()
    with (
        local(driver, "killedspill", daemons, TIGHT) as application,
        Barrier(directory / "killedspill.sock") as barrier,
        ExitStack() as paused,
    ):
        running = application.start("writer_killed_spill", barrier=str(barrier.path))
        barrier.wait("half", 1)
        for daemon in daemons:
            daemon.pause()
            paused.callback(daemon.resume)
        barrier.release("half")
        _wait_for_stack(application, "ExecutionMemory$Spark.spill")
        barrier.wait("kill", 1)
        barrier.release("kill")
        barrier.wait("half", 2)  # the first attempt has ended
        paused.close()
        assert running.result(SENT_SECONDS).read_text() == expected
        ends = application.new_events().task_ends()
        assert ends.pop("TaskKilled") == 1
        assert ends.keys() == {"Success"}


def test_nothing_is_written_to_local_disk(
    own: Application, driver: Driver, daemons: Daemons, words: str
):
    with local(driver, "diskless", daemons, SMALL_BUFFER) as application:
        found = application.rows("writer_local_files", words=words)
        lines = found.read_text(encoding="utf-8").splitlines()
        # Spark's writers are seen to make some.
        others = json.dumps(["others", True])
        assert others in lines
        lines.remove(others)
        names = ("frame_repartition", "frame_join", "rdd_group_by_key", "rdd_repartition")
        expected = [own.rows(name).read_text(encoding="utf-8").splitlines() for name in names]
        assert sorted(lines) == sorted(line for part in expected for line in part)


def test_records_are_sent_while_the_map_task_runs(
    own: Application, driver: Driver, directory: Path, daemons: Daemons
):
    with local(driver, "early", daemons, SMALL_BUFFER) as application:
        before = daemons.moved()
        with Barrier(directory / "early-barrier.sock") as barrier:
            running = application.start("writer_map_waits", barrier=str(barrier.path))
            barrier.wait("half", 1)
            # What Python has made so far is on its way to the JVM.
            daemons[0].wait_until(
                lambda _: (daemons.moved() - before).written_bytes > 0, SENT_SECONDS
            )
            sent = (daemons.moved() - before).written_bytes
            barrier.release()
            found = running.result(120.0)
        daemons[0].wait_until(
            lambda _: (daemons.moved() - before).written_bytes > sent, SENT_SECONDS
        )
        assert found.read_text() == own.rows("writer_map_waits").read_text()


def test_regions_come_through_the_region_area(own: Application, driver: Driver, daemons: Daemons):
    with local(driver, "area", daemons, SMALL_BUFFER) as application:
        both = Both(own, application, daemons)
        check(both, "frame_repartition")  # its first region asks for the area
        before = daemons.moved()
        application.rows("frame_repartition")
        moved = daemons.moved() - before
        assert moved.region_area_bytes == moved.written_bytes > 0


def _wait_for_stack(application: GuestApplication, method: str) -> None:
    deadline = time.monotonic() + SENT_SECONDS
    while method not in application.host.thread_dump():
        assert time.monotonic() < deadline, f"no thread has come to {method}"
        time.sleep(LOOK_SECONDS)


def _spills(application: Application) -> int:
    """How often a writer was asked for its memory and sent what it had."""
    url = json.loads(application.rows("ui_url").read_text(encoding="utf-8"))[0]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/metrics/json/", timeout=UI_TIMEOUT_SECONDS) as answer:
        gauges = json.load(answer)["gauges"]
    name = "plugin.io.sluice.spark.SluicePlugin.writerSpills"
    return max(int(value["value"]) for key, value in gauges.items() if key.endswith(name))
