"""The benchmark of records runs and loses no record."""

from benchmarks.micro_records import measure


def test_every_row_is_measured():
    rows = dict(measure(rounds=1))
    assert {name.partition(":")[0] for name in rows} >= {"bytes", "views", "msgpack"}
    assert all(microseconds > 0 for microseconds in rows.values())
