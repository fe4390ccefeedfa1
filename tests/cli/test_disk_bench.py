"""``sluice bench disk``: bounded by size, time and free space, and nothing is left."""

from __future__ import annotations

import itertools
import json
import os
import types

import pytest

from sluice.cli import disk_bench
from sluice.cli.latencies import latency, milliseconds
from tests.cli.rig import run

MIB = 1024 * 1024


def test_a_directory_is_measured_and_left_as_it_was(tmp_path):
    found = disk_bench.measure(tmp_path, 2 * MIB, 64 * 1024, 20)
    assert (found.size_bytes, found.block_bytes) == (2 * MIB, 64 * 1024)
    assert found.write_bytes_per_second > 0
    assert found.read_bytes_per_second > 0
    assert 0 < found.sync.operations <= disk_bench.MAX_SYNCS
    assert list(tmp_path.iterdir()) == []


def test_the_file_has_no_name_while_it_is_used(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(disk_bench, "_sync", lambda fd: seen.append(list(tmp_path.iterdir())))
    disk_bench.measure(tmp_path, MIB, 64 * 1024, 20)
    assert seen[0] == []


def test_each_part_ends_when_its_time_is_up(tmp_path, monkeypatch):
    ticks = itertools.count()
    clock = types.SimpleNamespace(perf_counter=lambda: next(ticks))
    monkeypatch.setattr(disk_bench, "time", clock)
    found = disk_bench.measure(tmp_path, 64 * MIB, 64 * 1024, 10)
    assert 0 < found.size_bytes < 2 * MIB
    assert 0 < found.sync.operations < 20


def test_a_full_disk_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    usage = types.SimpleNamespace(f_bavail=100, f_frsize=MIB)
    monkeypatch.setattr(os, "statvfs", lambda directory: usage)
    result = run("bench", "disk", tmp_path, "--size", 200)
    assert result.exit_code == 1
    assert "are needed: use a smaller --size" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_write_error_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    def fail(*given):
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr(os, "pwrite", fail)
    result = run("bench", "disk", tmp_path, "--size", 1)
    assert result.exit_code == 1
    assert result.stderr == f"Error: {tmp_path} cannot be used: Input/output error\n"
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_a_table_or_json(tmp_path):
    shown = run("bench", "disk", tmp_path, "--size", 1, "--block", 64)
    assert [line.split()[0] for line in shown.stdout.splitlines()] == [
        "directory", "written", "write", "read", "sync",
    ]  # fmt: skip
    document = json.loads(run("bench", "disk", tmp_path, "--size", 1, "--json").stdout)
    assert document["schema"] == "sluice.bench.disk/1"
    assert document["sync"]["p50_seconds"] <= document["sync"]["max_seconds"]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([], (0, 0, 0, 0)),
        ([3], (1, 3, 3, 3)),
        (range(1, 101), (100, 50, 99, 100)),
    ],
)
def test_percentiles(seconds, expected):
    found = latency(list(seconds))
    shown = (found.operations, found.p50_seconds, found.p99_seconds, found.max_seconds)
    assert shown == expected
    assert milliseconds(found).startswith("p50 ")
