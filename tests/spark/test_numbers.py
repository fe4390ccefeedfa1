"""Spark's metrics of a shuffle agree with its own shuffle's and with the TaskManagers'."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.spark.applications import Both


@pytest.mark.parametrize("job", ["rdd_sort_by_key", "rdd_reduce_by_key", "frame_group_by"])
def test_the_event_log_says_what_happened(both: Both, job: str, words: str):
    both.own.new_events()
    compared = both.compare(job, words=words)
    own = both.own.new_events().shuffle_use()
    use = compared.events.shuffle_use()
    assert compared.differences == []
    assert use.map_tasks == own.map_tasks > 0
    assert use.records_written == own.records_written > 0
    assert use.records_read == own.records_read > 0
    assert use.bytes_written == compared.moved.written_bytes > 0
    assert use.local_bytes_read == compared.moved.read_bytes_local > 0
    assert use.remote_bytes_read == compared.moved.read_bytes_remote > 0
    assert use.local_blocks_fetched > 0
    assert use.remote_blocks_fetched > 0
    if job.startswith("rdd_"):  # where adaptive execution joins none
        blocks = use.local_blocks_fetched + use.remote_blocks_fetched
        assert blocks == own.local_blocks_fetched + own.remote_blocks_fetched
    assert 0 < use.write_seconds < use.run_seconds
    assert 0 <= use.fetch_wait_seconds <= use.run_seconds


@pytest.mark.parametrize("aqe", ["true", "false"])
def test_exchanges_of_a_plan_show_their_metrics(both: Both, aqe: str):
    own = exchanges(both.own.rows("exchange_metrics", aqe=aqe))
    both.sluice.new_events()
    found = exchanges(both.sluice.rows("exchange_metrics", aqe=aqe))
    use = both.sluice.new_events().shuffle_use()
    assert len(found) == len(own) == 3
    for number, metrics in found.items():
        for name in ("dataSize", "recordsRead", "shuffleRecordsWritten"):
            assert metrics[name] == own[number][name] > 0, (number, name)
        read = metrics["localBytesRead"] + metrics["remoteBytesRead"]
        assert read == metrics["shuffleBytesWritten"] > 0
        assert metrics["localBlocksFetched"] + metrics["remoteBlocksFetched"] > 0
        assert metrics["shuffleWriteTime"] > 0
    totals = {name: sum(one[name] for one in found.values()) for name in found[0]}
    assert totals["shuffleBytesWritten"] == use.bytes_written
    assert totals["localBytesRead"] == use.local_bytes_read
    assert totals["remoteBytesRead"] == use.remote_bytes_read
    assert totals["recordsRead"] == use.records_read


def exchanges(rows: Path) -> dict[int, dict[str, int]]:
    """The metrics of each exchange by its place in the plan."""
    found: dict[int, dict[str, int]] = defaultdict(dict)
    for line in rows.read_text(encoding="utf-8").splitlines():
        place, name, value = json.loads(line)
        found[place][name] = value
    return found
