"""The settings that turn Sluice on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import sluice.spark_integration
from sluice.protocol.errors import SluiceError
from sluice.spark_integration import SparkIntegrationError, configure, spark_conf

if TYPE_CHECKING:
    from pathlib import Path


class Builder:
    def __init__(self) -> None:
        self.settings: dict[str, str] = {}

    def config(self, key: str, value: str) -> Builder:
        self.settings[key] = value
        return self


@pytest.mark.parametrize("version", ["4.0.1", "4.1.0", "4.2.1", "4.3.0", "4.3.0.dev1"])
def test_spark_4_needs_two_settings(version: str) -> None:
    assert spark_conf(spark_version=version, jar="/opt/s.jar") == {
        "spark.plugins": "io.sluice.spark.SluicePlugin",
        "spark.jars": "/opt/s.jar",
    }


def test_spark_3_5_needs_all_settings() -> None:
    assert spark_conf(spark_version="3.5.9", jar="/opt/s.jar") == {
        "spark.plugins": "io.sluice.spark.SluicePlugin",
        "spark.driver.extraClassPath": "/opt/s.jar",
        "spark.executor.extraClassPath": "/opt/s.jar",
        "spark.shuffle.manager": "io.sluice.spark.SluiceShuffleManager",
        "spark.shuffle.sort.io.plugin.class": "io.sluice.spark.SluiceShuffleDataIO",
        "spark.dynamicAllocation.shuffleTracking.enabled": "false",
    }


@pytest.mark.parametrize(
    "endpoints", ["tm1:7337, unix:/run/s.sock,", ["tm1:7337", " unix:/run/s.sock"]]
)
def test_endpoints(endpoints: str | list[str]) -> None:
    conf = spark_conf(endpoints, "4.3.0", "/opt/s.jar")
    assert conf["spark.sluice.endpoints"] == "tm1:7337,unix:/run/s.sock"


@pytest.mark.parametrize("endpoints", ["", " , ", []])
def test_no_endpoint_is_an_error(endpoints: str | list[str]) -> None:
    with pytest.raises(SparkIntegrationError, match="Write HOST:PORT"):
        spark_conf(endpoints, "4.3.0", "/opt/s.jar")


@pytest.mark.parametrize("version", ["3.4.1", "4.4.0", "5.0", "four"])
def test_unsupported_versions_are_named(version: str) -> None:
    with pytest.raises(SparkIntegrationError) as caught:
        spark_conf(spark_version=version, jar="/opt/s.jar")
    assert caught.value.value == version
    assert "4.3" in str(caught.value)
    assert isinstance(caught.value, SluiceError)


def test_configure_sets_each_and_returns_the_builder() -> None:
    builder = Builder()
    assert configure(builder, "tm:1", "4.3.0", "/opt/s.jar") is builder
    assert builder.settings == spark_conf("tm:1", "4.3.0", "/opt/s.jar")


def test_a_missing_jar_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sluice.spark_integration.conf, "__file__", str(tmp_path / "conf.py"))
    with pytest.raises(SparkIntegrationError, match="make jar"):
        sluice.spark_integration.jar_path()
    (tmp_path / "jars").mkdir()
    jar = tmp_path / "jars" / "sluice-spark.jar"
    jar.touch()
    assert sluice.spark_integration.jar_path() == jar
