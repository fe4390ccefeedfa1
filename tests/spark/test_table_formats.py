"""The real Delta Lake and Iceberg (`make test-table-formats`), compared with plain Spark."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.applications import LOCAL_MASTER, Application, Both, fallbacks, sluice_settings
from tests.table_formats.run import JARS_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.daemons import Daemons

JARS = os.environ.get(JARS_VARIABLE, "")
LEFT_TO_SPARK = "Delta Lake's optimized write reads its blocks with Spark's own block client"

pytestmark = pytest.mark.skipif(not JARS, reason="make test-table-formats")


@pytest.fixture(scope="module")
def formats(directory: Path, daemons: Daemons) -> Iterator[Both]:
    """One application with Spark's own shuffle and one with Sluice, of the same settings."""
    sluice = sluice_settings(daemons)
    sluice_jar = sluice.pop("spark.jars")
    jars = JARS.replace(os.pathsep, ",")
    common = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
        # A stream has a session, and so a cache, of its own.
        "spark.sql.catalog.ice.cache-enabled": "false",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.driver.memory": "1g",
    }
    ice = "spark.sql.catalog.ice.warehouse"
    own = common | {"spark.jars": jars, ice: str(directory / "ice-own")}
    ours = common | sluice
    ours |= {"spark.jars": f"{jars},{sluice_jar}", ice: str(directory / "ice-sluice")}
    with (
        Application("formats-own", LOCAL_MASTER, directory, own) as plain,
        Application("formats", LOCAL_MASTER, directory, ours) as with_sluice,
    ):
        yield Both(plain, with_sluice, daemons)


@pytest.mark.parametrize(
    ("job", "parameters"),
    [
        ("delta_changes", {"vectors": "false"}),
        ("delta_changes", {"vectors": "true"}),
        ("delta_stream", {}),
        ("iceberg_changes", {"mode": "copy-on-write"}),
        ("iceberg_changes", {"mode": "merge-on-read"}),
    ],
)
def test_a_table_has_the_same_rows(
    formats: Both, directory: Path, job: str, parameters: dict[str, Any]
):
    name = f"{job}{''.join(parameters.values())}".replace("-", "")
    compared = formats.compare(
        job,
        other={"path": str(directory / f"{name}-own")},
        path=str(directory / name),
        name=name,
        **parameters,
    )
    assert compared.differences == []
    assert compared.moved.written_bytes > 0
    assert [line for line in fallbacks(formats.sluice) if line[2] == "unsupported"] == []


def test_only_the_exchange_of_an_optimized_write_is_left_to_spark(formats: Both, directory: Path):
    """The last test: those before it see that nothing else is."""
    compared = formats.compare(
        "delta_optimized_write",
        other={"path": str(directory / "optimized-own")},
        path=str(directory / "optimized"),
    )
    assert compared.differences == []
    assert compared.moved.written_bytes > 0
    assert {line[1:] for line in fallbacks(formats.sluice)} == {(LEFT_TO_SPARK, "unsupported")}
    assert len(fallbacks(formats.sluice)) == 2
