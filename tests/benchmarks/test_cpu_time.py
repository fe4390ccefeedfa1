"""CPU time of a process, and of the executors of an application."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.support import cpu_time

EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
WORK = "sum(range(3_000_000)); print('done', flush=True); import sys; sys.stdin.read()"


def test_the_cpu_time_of_a_process_is_its_own_count():
    before = time.process_time()
    seen = cpu_time.of_process(os.getpid())
    assert before <= seen <= time.process_time()


def test_a_process_that_is_not_there_is_an_error():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait(30)
    with pytest.raises(OSError, match=r"Invalid|No such process"):
        cpu_time.of_process(process.pid)


def test_only_executors_of_the_application_and_cluster_count(tmp_path):
    application, cluster = "app-1", tmp_path / "cluster"
    place = cluster / "work" / application / "0"
    place.mkdir(parents=True)
    arguments = ["-cp", EXECUTOR, "--executor-id", "0", "--hostname", "h", "--app-id", application]
    with subprocess.Popen(
        [sys.executable, "-c", WORK, *arguments],
        cwd=place,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as executor:
        assert executor.stdout is not None
        executor.stdout.readline()
        assert cpu_time.of_executors(cluster, application) > 0
        assert cpu_time.of_executors(cluster, "app-2") == 0
        assert cpu_time.of_executors(tmp_path / "other", application) == 0
        executor.communicate()
    assert cpu_time.of_executors(cluster, application) == 0
