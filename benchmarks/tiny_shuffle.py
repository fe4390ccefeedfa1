"""`make bench-tiny-shuffle`: a query of 20 tiny shuffles, Sluice over Spark's own shuffle.

Two one-core executors, adaptive execution on as Spark has it. Each shuffle has two map tasks at
most and 1000 rows, so that the time is the cost of a shuffle before its first byte. The query runs
once on both sides to compare the results and several times to warm up; then pairs of runs are
timed, and the sides begin in turn. The figure ``ratio`` is the median of the ratios of the pairs.

``--rows 1000,30000,1000000`` times larger shuffles too, to find the size from which on Sluice is
faster: ``spark.sluice.fallback.belowSize`` is for smaller ones.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from benchmarks import baseline
from benchmarks.pairs import TimedJob, run

if TYPE_CHECKING:
    from collections.abc import Sequence

AIMS = {"ratio": "≤ 1.02"}
ROWS = 1000
SHUFFLES = 20
WARM_UPS = 4
TIME_LIMIT_SECONDS = 900.0


def jobs_of(rows: Sequence[int]) -> dict[str, TimedJob]:
    """The jobs by the names of their figures; the first is the benchmark's own."""
    jobs = {}
    for number, count in enumerate(rows):
        figure = "ratio" if number == 0 else f"ratio_at_{count}_rows"
        parameters = {"rows": count, "shuffles": SHUFFLES, "maps": 2, "reducers": 4}
        jobs[figure] = TimedJob("tiny_shuffles", parameters, WARM_UPS if number == 0 else 1)
    return jobs


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the results file; the exit code is 1 when results differ."""
    options = _parse(arguments)
    return run(
        "tiny_shuffle",
        jobs_of(options.rows),
        pairs=options.pairs,
        time_limit_seconds=options.time_limit_seconds,
        aims=AIMS if options.rows[0] == ROWS else None,
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tiny_shuffle",
        description=__doc__,
        epilog=f"{baseline.VARIABLE}=FILE: settings of another baseline (spark-defaults).",
    )
    parser.add_argument(
        "--rows",
        type=lambda text: tuple(int(part) for part in text.split(",")),
        default=(ROWS,),
        metavar="N,N",
        help="rows of each shuffle (default %(default)s)",
    )
    parser.add_argument("--pairs", type=int, default=15, help="timed pairs (default 15)")
    parser.add_argument("--time-limit-seconds", type=float, default=TIME_LIMIT_SECONDS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
