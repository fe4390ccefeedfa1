"""A failed run reports the errors of its executors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.cluster import executor_errors, spark_environment

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_errors_and_causes_are_found_in_the_logs_of_executors(tmp_path: Path):
    log = tmp_path / "work-127.0.0.2" / "app-1" / "0" / "stderr"
    log.parent.mkdir(parents=True)
    log.write_text(
        "26/01/01 INFO Executor: no ERRORs here\n"
        "26/01/01 ERROR Executor: Exception in task\n"
        "java.lang.NoClassDefFoundError: org/msgpack/core/MessagePack\n"
        "\tat a.b.C.d(C.java:1)\n"
        "Caused by: java.lang.ClassNotFoundException: x\n"
    )
    found = executor_errors(tmp_path)
    assert [line.split(":")[0] for line in found] == [
        "26/01/01 ERROR Executor",
        "java.lang.NoClassDefFoundError",
        "Caused by",
    ]
    assert executor_errors(tmp_path, limit=1) == found[-1:]


def test_settings_of_another_spark_do_not_reach_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SPARK_CONF_DIR", "/elsewhere")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master yarn")
    environment = spark_environment("127.0.0.2", tmp_path)
    assert "SPARK_CONF_DIR" not in environment
    assert "PYSPARK_SUBMIT_ARGS" not in environment
    assert environment["SPARK_LOCAL_IP"] == "127.0.0.2"
    assert environment["TMPDIR"] == str(tmp_path / "tmp")
