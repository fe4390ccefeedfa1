"""Seeds of the simulation, and that a seed always does the same."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.simulation.plan import Plan

SEEDS = 100
PARTS = 10
"""Test processes share the seeds."""

MAX_REAL_SECONDS = 1500

pytestmark = [pytest.mark.slow, pytest.mark.timeout(MAX_REAL_SECONDS + 60)]


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation.run", *arguments],
        capture_output=True,
        text=True,
        timeout=MAX_REAL_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("part", range(PARTS))
def test_no_seed_breaks_a_rule(part: int) -> None:
    count = SEEDS // PARTS
    ended = simulate("--first", str(part * count), "--seeds", str(count), "--jobs", "1")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{count} seeds in " in ended.stdout


@pytest.mark.parametrize("seed", [3, 6])  # 6 has a message that is cut within a path
def test_a_seed_always_does_the_same(seed: int) -> None:
    first, second = (simulate("--seed", str(seed)).stdout for _ in range(2))
    found = re.compile(rf"^seed {seed}: trace ([0-9a-f]{{16}})", re.MULTILINE)
    digests = [found.findall(text) for text in (first, second)]
    assert len(digests[0]) == 1
    assert digests[0] == digests[1]


def test_a_plan_without_a_fault_keeps_the_others() -> None:
    plan = next(plan for plan in map(Plan.of, range(100)) if len(plan.faults) > 2)
    assert plan.only([0, 2]).faults == (plan.faults[0], plan.faults[2])
