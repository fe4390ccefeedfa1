"""Adaptive execution changes the plan as with Spark's own shuffle, and nothing is written twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.jobs.rows import canonical_lines

if TYPE_CHECKING:
    from tests.spark.applications import Both

ROWS = 20_000
KEYS = 100
"""Of the jobs in ``jobs/adaptive.py``."""

COALESCED = "AQEShuffleRead coalesced"
SPLIT = "AQEShuffleRead coalesced and skewed"


@pytest.mark.parametrize(
    ("job", "seen", "rows_written"),
    [
        ("coalesced", [COALESCED], None),
        ("skew_join", ["SortMergeJoin(skew=true)", SPLIT], ROWS + KEYS),
        ("local_read", ["AQEShuffleRead local", "BroadcastHashJoin"], ROWS + ROWS // 1000),
        ("rebalance_split", [SPLIT], ROWS),
        ("rebalance_coalesced", [COALESCED], ROWS),
    ],
)
def test_the_plan_changes_and_the_rows_do_not(
    both: Both, job: str, seen: list[str], rows_written: int | None
):
    compared = both.compare(f"adaptive_{job}")
    assert compared.differences == []
    assert canonical_lines([("seen", seen)])[0] in compared.rows.read_text(encoding="utf-8")
    assert compared.unaccounted() == {}
    use = compared.events.shuffle_use()
    if rows_written is not None:
        # Parts of a partition are read where the map tasks put them: no row is shuffled again.
        assert use.records_written == rows_written
    if job == "skew_join":
        # The light side is read once for each part of the heavy one.
        assert use.records_read > use.records_written
    else:
        assert use.records_read == use.records_written
