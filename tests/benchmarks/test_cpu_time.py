"""CPU time of processes: of ours, and of those that run as an application's executors."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from benchmarks import cpu_time

EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
WORK = "sum(range(3_000_000)); print('done', flush=True); import sys; sys.stdin.read()"


def test_that_of_a_process_is_what_it_says_itself():
    before = time.process_time()
    seen = cpu_time.of_process(os.getpid())
    assert before <= seen <= time.process_time()


def test_a_process_that_is_not_there_is_an_error():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait(30)
    with pytest.raises(OSError, match=r"Invalid|No such process"):
        cpu_time.of_process(process.pid)


def test_only_executors_of_the_application_count():
    application = f"app-of-test-{os.getpid()}"
    with subprocess.Popen(
        [sys.executable, "-c", WORK, EXECUTOR, "--app-id", application],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as executor:
        assert executor.stdout is not None
        executor.stdout.readline()
        assert cpu_time.of_executors(application) > 0
        assert cpu_time.of_executors("app-of-nobody") == 0
        executor.communicate()
    assert cpu_time.of_executors(application) == 0
