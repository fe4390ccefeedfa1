"""The command line of spark-submit, and the settings of property files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sluice.spark_integration.submit_command import SubmitCommand, read_properties

if TYPE_CHECKING:
    from pathlib import Path


def test_options_end_where_the_job_begins() -> None:
    command = SubmitCommand.parse(
        ["--verbose", "--master=local[2]", "-c", "a=b=c", "job.py", "--jars", "no.jar"]
    )
    assert command.options == (("--verbose", None), ("--master", "local[2]"), ("-c", "a=b=c"))
    assert command.job == ("job.py", "--jars", "no.jar")
    assert command.conf() == {"a": "b=c", "spark.master": "local[2]"}


def test_an_option_without_a_value_is_left_to_spark_submit() -> None:
    command = SubmitCommand.parse(["--jars"])
    assert command.conf() == {}
    assert command.without(()) == ["--jars"]


def test_a_dedicated_option_overrides_conf_and_the_last_one_earlier_ones() -> None:
    words = ["--jars", "a", "--jars", "b", "--conf", "spark.jars=c", "--driver-class-path", "/x"]
    conf = SubmitCommand.parse(words).conf()
    assert conf == {"spark.jars": "b", "spark.driver.extraClassPath": "/x"}


def test_options_that_set_given_keys_are_left_out() -> None:
    words = ["--jars", "a", "--conf", "spark.jars=c", "--verbose", "--conf", "spark.x=1"]
    command = SubmitCommand.parse(words)
    assert command.without({"spark.jars"}) == ["--verbose", "--conf", "spark.x=1"]


@pytest.mark.parametrize(
    ("words", "jars"),
    [
        ([], "defaults"),
        (["--properties-file", "FILE"], None),
        (["--properties-file", "FILE", "--load-spark-defaults"], "defaults"),
        (["--conf", "spark.jars=typed"], "typed"),
    ],
)
def test_spark_defaults_are_read_where_spark_reads_them(
    tmp_path: Path, words: list[str], jars: str | None
) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.jars defaults\nspark.x defaults\n")
    (tmp_path / "own.conf").write_text("spark.x own\n")
    words = [str(tmp_path / "own.conf") if word == "FILE" else word for word in words]
    settings = SubmitCommand.parse(words).settings(tmp_path)
    assert settings.get("spark.jars") == jars
    assert settings["spark.x"] == ("own" if "--properties-file" in words else "defaults")


def test_property_files_are_read_as_java_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "spark-defaults.conf"
    path.write_text(
        "# comment\n! comment\n\n"
        "spark.a    one two  \n"
        "spark.b=x:y=z\n"
        "spark.c : 1\n"
        "spark.d one,\\\n    two,\\\n  three\r\n"
        "spark\\ e=tab\\there\n"
        "spark.f=C\\:\\\\dir\\u00e9\n"
        "spark.g\n"
        "spark.h=last\\",
        encoding="utf-8",
    )
    assert read_properties(path) == {
        "spark.a": "one two",
        "spark.b": "x:y=z",
        "spark.c": "1",
        "spark.d": "one,two,three",
        "spark e": "tab\there",
        "spark.f": "C:\\diré",
        "spark.g": "",
        "spark.h": "last",
    }


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_has_no_settings(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "spark-defaults.conf"
    if content is not None:
        path.write_bytes(content)
    assert read_properties(path) == {}
