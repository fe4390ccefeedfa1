"""The figures of the benchmark of second copies."""

from __future__ import annotations

from benchmarks.replicas import SIDES, Findings, Loss


def test_figures_of_rounds_and_losses():
    findings = Findings()
    findings.ratios = {"async": [1.0, 1.2, 1.1], "sync": [1.3]}
    findings.losses = [
        Loss("sync", "a", 100, 5.0, 6.0, 0),
        Loss("sync", "b", 100, 5.0, 9.0, 2),
        Loss("sync", "c", 100, 5.0, 7.0, 0),
        Loss("off", "d", 100, 5.0, 15.0, 12),
    ]
    report = findings.report({"spark": "4.1.0"})
    assert report.figures == {
        "async": 1.1,
        "sync": 1.3,
        "maps_again": 2,
        "seconds_lost": 2.0,
        "maps_again_off": 12,
        "seconds_lost_off": 10.0,
    }
    assert report.spread["async"] == (1.0, 1.2)
    assert report.spread["maps_again"] == (0, 2)
    assert report.spread["seconds_lost"] == (1.0, 4.0)
    assert len(report.runs) == 4


def test_sides_differ_in_their_copies_only():
    assert not SIDES["off"]
    assert {settings.get("spark.sluice.replicas") for settings in SIDES.values()} == {None, "2"}
