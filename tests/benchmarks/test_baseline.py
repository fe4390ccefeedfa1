"""Which settings another baseline of a benchmark has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.baseline import VARIABLE, Baseline, read_spark_defaults
from tests.support.cluster import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path


def test_spark_as_it_is_without_the_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert Baseline.of_environment() == Baseline(None, {})
    assert not Baseline.of_environment().needs_shuffle_service


def test_keys_and_values_as_spark_reads_them(tmp_path: Path):
    file = tmp_path / "other.conf"
    file.write_text("# a comment\n\n spark.a  1 2\nspark.b=x=y\nspark.c\t: z\n", encoding="utf-8")
    assert read_spark_defaults(file) == {"spark.a": "1 2", "spark.b": "x=y", "spark.c": "z"}


@pytest.mark.parametrize("line", ["spark.a", "a.b c"])
def test_a_line_that_is_not_a_setting_is_reported(tmp_path: Path, line: str):
    file = tmp_path / "other.conf"
    file.write_text(f"spark.a 1\n{line}\n", encoding="utf-8")
    with pytest.raises(RuntimeError, match=f"line 2: '{line}' is not a setting"):
        read_spark_defaults(file)


def test_a_missing_file_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "no.conf"))
    with pytest.raises(RuntimeError, match=r"no\.conf is not a file"):
        Baseline.of_environment()


def test_the_example_asks_for_the_shuffle_service(monkeypatch: pytest.MonkeyPatch):
    example = REPOSITORY / "benchmarks" / "conf" / "external-shuffle-service.conf"
    monkeypatch.setenv(VARIABLE, str(example))
    assert Baseline.of_environment().needs_shuffle_service


def test_settings_of_sluice_make_it_sluice():
    assert Baseline(None, {"spark.sluice.replicas": "2"}).is_sluice
    assert not Baseline(None, {"spark.shuffle.service.enabled": "true"}).is_sluice


def test_its_own_jar_is_another_build_of_sluice():
    of_sluice = {"spark.jars": "new.jar", "spark.plugins": "plugin"}
    other = Baseline(None, {"spark.jars": "old.jar", "spark.sluice.enabled": "true"})
    assert other.over(of_sluice) == {"spark.jars": "old.jar", "spark.plugins": "plugin"}
    assert Baseline().over(of_sluice) == of_sluice
