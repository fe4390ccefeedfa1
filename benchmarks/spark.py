"""`make bench-spark`: five jobs, wall time with Sluice over wall time with Spark's own shuffle.

``map_outputs_square`` runs only if ``--jobs`` names it, because a pair of it takes minutes.

Two one-core executors. Each job runs once on both sides to compare the results and a second time to
warm up; then pairs of runs are timed, and the sides begin in turn. The figure of a job is the
median of the ratios of its pairs.
"""

from __future__ import annotations

import argparse
import math
import sys
from typing import TYPE_CHECKING

from benchmarks import baseline
from benchmarks.pairs import TimedJob, run

if TYPE_CHECKING:
    from collections.abc import Sequence

AIMS = {
    "repartition": "≤ 0.8",
    "aggregate": "≤ 0.65",
    "sort": "≤ 0.88",
    "small_blocks": "≤ 0.33",
    "map_outputs": "≤ 0.95",
    "map_outputs_square": "≤ 0.95",
}
TCP_AIMS = AIMS | {
    "repartition": "≤ 0.9",
    "aggregate": "≤ 0.75",
    "sort": "≤ 0.85",
    "small_blocks": "≤ 0.5",
}
DEFAULT_JOBS = tuple(job for job in AIMS if job != "map_outputs_square")
TIME_LIMIT_SECONDS = 1800.0


def sizes(scale: float) -> dict[str, dict[str, int]]:
    """Return the parameters of each job; ``scale`` 1 is the benchmark, less is a quick look.

    Rows shrink in proportion, and the tasks of ``map_outputs`` with them. The tasks of
    ``small_blocks`` shrink with the square root, so that its blocks stay as small as they are.
    """
    side = max(round(1000 * math.sqrt(scale)), 2)
    tasks = max(round(5000 * scale), 2)
    return {
        "repartition": {"rows": round(2_000_000 * scale), "maps": 16, "reducers": 64},
        "aggregate": {
            "rows": round(20_000_000 * scale),
            "keys": round(10_000_000 * scale),
            "maps": 16,
            "reducers": 32,
        },
        "sort": {"rows": round(10_000_000 * scale), "maps": 16, "reducers": 32},
        "small_blocks": {"rows": round(4_000_000 * scale), "maps": side, "reducers": side},
        "map_outputs": {"rows": 20 * tasks, "maps": tasks, "reducers": 16},
        "map_outputs_square": {"rows": 100 * tasks, "maps": tasks, "reducers": tasks},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the results file; the exit code is 1 when results differ."""
    options = _parse(arguments)
    jobs = {
        job: TimedJob(job, parameters)
        for job, parameters in sizes(options.scale).items()
        if job in options.jobs
    }
    return run(
        "spark_tcp" if options.tcp else "spark",
        jobs,
        pairs=options.pairs,
        time_limit_seconds=options.time_limit_seconds,
        aims=(TCP_AIMS if options.tcp else AIMS) if options.scale == 1 else None,
        memory_tier=options.memory_tier,
        tcp=options.tcp,
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark",
        description=__doc__,
        epilog=f"{baseline.VARIABLE}=FILE: settings of another baseline (spark-defaults).",
    )
    parser.add_argument("--scale", type=float, default=1.0, help="of the sizes (default 1)")
    parser.add_argument("--pairs", type=int, default=5, help="timed pairs per job (default 5)")
    parser.add_argument(
        "--jobs",
        type=_names,
        default=DEFAULT_JOBS,
        help=f"of {','.join(AIMS)} (default {','.join(DEFAULT_JOBS)})",
    )
    parser.add_argument(
        "--memory-tier", default="512 MiB", help="of each TaskManager (default %(default)s)"
    )
    parser.add_argument("--tcp", action="store_true", help="without Unix sockets, as between pods")
    parser.add_argument("--time-limit-seconds", type=float, default=TIME_LIMIT_SECONDS)
    return parser.parse_args(arguments)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in AIMS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no such job: {', '.join(unknown)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
