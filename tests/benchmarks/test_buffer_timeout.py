"""The benchmark of buffer timeouts runs, loses no record, and makes its figures and chart."""

from __future__ import annotations

import os
import subprocess
import sys

import uvloop

from benchmarks import buffer_timeout
from benchmarks.buffer_timeout import Turn, both_sides, take_turn
from tests.support.cluster import REPOSITORY
from tests.support.daemons import Daemons


def test_records_come_through_on_both_paths(tmp_path):
    async def turns() -> list[dict[str, float]]:
        async with both_sides(taskmanagers) as (client, consumer):
            return [
                await take_turn(client, consumer, [os.getpid()], number, turn, 0.2)
                for number, turn in enumerate(
                    [Turn("batch", 1, paced=False), Turn("single", 0, paced=True)]
                )
            ]

    with Daemons(tmp_path, authenticated=False, memory_tier_bytes="16 MiB") as taskmanagers:
        saturated, paced = uvloop.run(turns())
    assert saturated["records"] >= buffer_timeout.TURN_RECORDS
    assert saturated["buffers_sent"] > 0
    assert saturated["records_per_cpu_second"] > 0
    assert 0 < paced["records"] <= buffer_timeout.PACED_RECORDS_PER_SECOND * 0.1
    assert 0 < paced["p50_ms"] <= paced["p99_ms"]


def test_a_chart_is_drawn_the_same_way_twice(tmp_path):
    program = (
        "from pathlib import Path\n"
        "from benchmarks.line_chart import Line, Panel, draw\n"
        "for name in ('1/chart.svg', '2/chart.svg'):\n"
        "    panel = Panel('rate', [Line('ours', [1, 2])], logarithmic=True)\n"
        "    draw(Path(name), ['a', 'b'], 'place', [panel, panel])\n"
    )
    # In a process of its own: the library keeps its font files open.
    environment = {"PYTHONPATH": str(REPOSITORY), "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True)
    first = (tmp_path / "1" / "chart.svg").read_bytes()
    assert b"<svg" in first
    assert b"ours" in first
    assert (tmp_path / "2" / "chart.svg").read_bytes() == first
