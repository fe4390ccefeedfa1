"""Sluice's own writer: codecs, sizes of rows, many partitions."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.applications import LOCAL_MASTER, Application, Both, sluice_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.spark.daemons import Daemons

SMALL_BUFFER = {"spark.sluice.writer.bufferSize": "256k", "spark.sluice.writer.regionSize": "64k"}
"""Many passes for each map task."""

CODECS = {
    "lz4": {"spark.io.compression.lz4.blockSize": "128k", "spark.sluice.writer.blockSize": "8k"},
    "zstd": {"spark.io.compression.codec": "zstd", "spark.io.compression.zstd.level": "5"},
    # Through Spark's own streams, and not joined when they are read.
    "encrypted": {"spark.io.compression.codec": "snappy", "spark.io.encryption.enabled": "true"},
}


@contextmanager
def local(
    name: str, directory: Path, daemons: Daemons, settings: dict[str, str]
) -> Iterator[Application]:
    """An application in one process."""
    with Application(name, LOCAL_MASTER, directory, sluice_settings(daemons) | settings) as running:
        yield running


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


@pytest.mark.parametrize("codec", CODECS)
def test_codecs(own: Application, directory: Path, daemons: Daemons, codec: str):
    with local(f"codec-{codec}", directory, daemons, SMALL_BUFFER | CODECS[codec]) as application:
        both = Both(own, application, daemons)
        for job in ("frame_group_by", "frame_repartition", "rdd_sort_by_key", "frame_no_rows"):
            check(both, job)


def test_huge_rows(both: Both):
    check(both, "writer_huge_rows")


def test_rows_without_columns(both: Both):
    check(both, "writer_no_columns")


def test_ten_thousand_partitions(both: Both):
    check(both, "frame_many_partitions", partitions=10_000, adaptive=True)
