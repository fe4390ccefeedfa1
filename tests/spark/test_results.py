"""Every kind of shuffle: the same rows as with Spark's own, every byte through the TaskManagers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.spark.applications import Application, Both

RDD_JOBS = [
    "group_by_key",
    "reduce_by_key",
    "sort_by_key",
    "join",
    "cogroup",
    "repartition",
    "distinct",
    "no_rows",
    "one_partition",
    "large_record",
]
FRAME_JOBS = [
    "group_by",
    "join",
    "order_by",
    "repartition",
    "window",
    "distinct",
    "python_udf",
    "pandas_udfs",
    "no_rows",
]
JVM_JOBS = ["count_by_key", "distinct", "group_by_key", "sort_by_key", "cogroup"]


def check(both: Both, job: str, **parameters: Any) -> None:
    """Compare rows, then the bytes that Spark and the TaskManagers counted."""
    compared = both.compare(job, **parameters)
    assert compared.differences == []
    assert compared.unaccounted() == {}
    # Nothing was written or read past the TaskManagers, and something was.
    if not job.endswith("no_rows"):
        assert compared.moved.written_bytes > 0
        assert compared.moved.read_bytes > 0


@pytest.mark.parametrize("job", RDD_JOBS)
def test_rdd(both: Both, job: str):
    check(both, f"rdd_{job}")


@pytest.mark.parametrize("job", FRAME_JOBS)
def test_frame(both: Both, job: str):
    check(both, f"frame_{job}")


@pytest.mark.parametrize("job", JVM_JOBS)
def test_jvm_rdd_with_java_serializer(both: Both, words: str, job: str):
    check(both, f"jvm_{job}", words=words)


def test_the_java_serializer_is_not_relocatable(sluice: Application, words: str):
    row = sluice.rows("jvm_serializer", words=words).read_text(encoding="utf-8")
    assert json.loads(row) == ["JavaSerializer", False]


@pytest.mark.parametrize(("partitions", "adaptive"), [(2000, False), (2001, True)])
def test_many_partitions(both: Both, partitions: int, adaptive: bool):
    # The same rows from few reduce tasks: two thousand more would show nothing about Sluice.
    few = {"adaptive": True}
    check(both, "frame_many_partitions", other=few, partitions=partitions, adaptive=adaptive)


def test_a_map_task_that_fails_once(both: Both):
    expected = both.compare("map_fails_once")
    assert expected.differences == []
    failed = both.sluice.rows("map_fails_once", fails=True)
    events = both.sluice.new_events()
    assert failed.read_text() == both.own.rows("map_fails_once").read_text()
    assert events.task_ends()["ExceptionFailure"] == 2
    assert sorted(events.map_runs().values()) == [1, 1, 2, 2]
