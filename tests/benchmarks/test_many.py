"""bench-many: its figures."""

from __future__ import annotations

from typing import Any

from benchmarks.many import report_of


def test_figures_are_medians_of_ratios_and_ratios_of_percentiles():
    runs: list[dict[str, Any]] = []
    for number, (seconds, slowest) in enumerate([(2.0, 1.0), (4.0, 9.0), (30.0, 2.0)]):
        for side, factor in (("own", 1.0), ("sluice", 0.5)):
            for applications in (1, 8):
                runs.append(
                    {
                        "round": number,
                        "side": side,
                        "applications": applications,
                        "seconds": 10.0 if side == "own" else seconds,
                        "small_seconds": [0.1 * applications, slowest * factor],
                    }
                )
    report = report_of(runs)
    assert report.figures == {
        "total": 0.4,
        "small_p99": 0.5,
        "total_1": 0.4,
        "total_8": 0.4,
        "small_p99_1": 0.5,
        "small_p99_8": 0.5,
    }
    assert report.spread == {"total_1": (0.2, 3.0), "total_8": (0.2, 3.0)}
