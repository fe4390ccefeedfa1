"""The charts of docs/internals/performance.md: ``make charts``.

Copies the files of ``benchmarks/results`` to ``benchmarks/reference``, the committed set, and draws
each chart from there. So a chart and its numbers never differ, and a benchmark that was not run
again keeps its chart.
"""

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from math import nan
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.buffer_timeout import PATHS, TIMEOUTS_MS
from benchmarks.growth import DOUBLINGS
from benchmarks.line_chart import Line, Panel, draw
from benchmarks.memory import LIMIT_MIB, MEMORY_TIER_BYTES, MIB, POOL_BYTES
from benchmarks.report import REFERENCE_DIRECTORY, RESULTS_DIRECTORY
from benchmarks.tpch import MODES
from tests.support.jobs.tpch import QUERIES

IMAGES: Final = Path(__file__).resolve().parent.parent / "docs" / "images"

OVER_OWN: Final = "time, over that of Spark's own shuffle"
FACTORS: Final = [2**power for power in range(DOUBLINGS + 1)]

Result = Mapping[str, Any]
"""The results file of a benchmark."""


def rounds(result: Result, lines: Mapping[str, str], scale: float) -> list[Line]:
    """Lines over the rounds of a benchmark: name to key of a run."""
    return [Line(name, [run[key] / scale for run in result["runs"]]) for name, key in lines.items()]


def ratios(result: Result, lines: Mapping[str, tuple[str, str]]) -> list[Line]:
    """Lines over the rounds: name to the keys of numerator and denominator."""
    return [
        Line(name, [run[over] / run[under] for run in result["runs"]])
        for name, (over, under) in lines.items()
    ]


def draw_rounds(target: Path, result: Result, panels: Sequence[Panel]) -> None:
    """Draw panels over the rounds of a benchmark."""
    draw(target, [str(number + 1) for number in range(len(result["runs"]))], "round", panels)


def buffer_timeout(target: Path, result: Result) -> None:
    """Rate and latency over the timeout."""
    figures = result["figures"]

    def line(name: str, key: str, scale: float) -> Line:
        return Line(name, [figures[key.format(timeout_ms)] / scale for timeout_ms in TIMEOUTS_MS])

    draw(
        target,
        [f"{timeout_ms} ms" for timeout_ms in TIMEOUTS_MS],
        "buffer timeout",
        [
            Panel(
                "million records/s, saturated",
                [line(path, f"{path}_records_per_second_{{}}ms", 1e6) for path in PATHS],
            ),
            Panel(
                "latency in ms, paced",
                [
                    line(f"{path}, {percentile}", f"{path}_{percentile}_latency_ms_{{}}ms", 1)
                    for path in PATHS
                    for percentile in ("p50", "p99")
                ],
                logarithmic=True,
            ),
        ],
    )


def exchange(target: Path, result: Result) -> None:
    """Rates of all sides, and the effect of credit, round by round."""
    rates = {
        "bare sockets": "bare_bytes_per_second",
        "10 channels": "sluice_bytes_per_second",
        "1000 channels": "many_channels_bytes_per_second",
    }
    modes = {
        "defaults": ("sluice_bytes_per_second", "uncredited_bytes_per_second"),
        "equal memory": ("equal_bytes_per_second", "equal_uncredited_bytes_per_second"),
    }
    draw_rounds(
        target,
        result,
        [
            Panel("GB/s", rounds(result, rates, 1e9)),
            Panel("rate with credit over without", ratios(result, modes)),
        ],
    )


def isolation(target: Path, result: Result) -> None:
    """A reader alone and beside a stuck reader, in both modes, round by round."""
    places = {
        "alone with 34 buffers": "alone",
        "alone": "alone_ten_buffers",
        "beside a stuck one": "beside_stuck",
    }
    lines = {
        f"{name}, {place}": f"{mode}_{key}_bytes_per_second"
        for mode, name in (("credit", "credit"), ("watermark", "no credit"))
        for place, key in places.items()
    }
    draw_rounds(target, result, [Panel("GB/s of the reader", rounds(result, lines, 1e9))])


def barrier(target: Path, result: Result) -> None:
    """Time of a barrier, and the bytes in front of it, in both modes, round by round."""
    modes = (("credit", "credit"), ("watermark", "no credit"))
    draw_rounds(
        target,
        result,
        [
            Panel("ms for a barrier", rounds(result, {n: f"{m}_seconds" for m, n in modes}, 1e-3)),
            Panel(
                "MiB in flight",
                rounds(result, {n: f"{m}_bytes_in_flight" for m, n in modes}, MIB),
            ),
        ],
    )


def memory(target: Path, result: Result) -> None:
    """Resident memory of both TaskManagers while the shuffle goes through them."""
    runs = result["runs"]
    seconds = [f"{at:.0f}" for at in runs[0]["sampled_at_seconds"]]
    held = (POOL_BYTES + MEMORY_TIER_BYTES) / MIB
    draw(
        target,
        seconds,
        "seconds",
        [
            Panel(
                "resident MiB",
                [
                    *(
                        Line(
                            f"TaskManager {number + 1}",
                            [found / MIB for found in run["resident_bytes"]],
                        )
                        for number, run in enumerate(runs)
                    ),
                    Line("pool and memory tier", [held] * len(seconds)),
                    Line("the limit", [held + LIMIT_MIB] * len(seconds)),
                ],
            )
        ],
    )


def tpch(target: Path, result: Result) -> None:
    """Each query with and without adaptive execution: Sluice over Spark's own shuffle."""
    figures = result["figures"]
    lines = [
        Line(
            f"adaptive execution {mode}",
            [figures.get(f"q{query:02}{suffix}", nan) for query in QUERIES],
        )
        for mode, suffix in MODES.items()
    ]
    places = [str(query) for query in QUERIES]
    same = Line("as fast", [1.0] * len(places))
    draw(target, places, "query", [Panel(OVER_OWN, [*lines, same])])


def spark(target: Path, result: Result) -> None:
    """Each job pair by pair: wall time and CPU time, Sluice over Spark's own shuffle."""
    jobs: dict[str, list[Mapping[str, float]]] = {}
    for run in result["runs"]:
        jobs.setdefault(run["job"], []).append(run)
    pairs = max(map(len, jobs.values()))
    same = Line("as much", [1.0] * pairs)
    wall = [Line(job, [run["ratio"] for run in runs]) for job, runs in jobs.items()]
    cpu = [
        Line(job, [run["sluice_cpu_seconds"] / run["own_cpu_seconds"] for run in runs])
        for job, runs in jobs.items()
    ]
    draw(
        target,
        [str(number + 1) for number in range(pairs)],
        "pair",
        [
            Panel(OVER_OWN, [*wall, same]),
            Panel("CPU time, over that of Spark's own shuffle", [*cpu, same]),
        ],
    )


def growth(target: Path, result: Result) -> None:
    """CPU time as maps, reducers and bytes double, and messages by tasks."""
    runs = result["runs"]
    keys = {"map tasks": "maps", "reduce tasks": "reducers", "bytes": "rows_per_block"}
    shapes = [tuple(run[key] for key in keys.values()) for run in runs]
    base = min(shapes)
    doubled = []
    for place, name in enumerate(keys):
        costs = [
            [
                run["cpu_seconds"]
                for run, shape in zip(runs, shapes, strict=True)
                if shape == (*base[:place], base[place] * factor, *base[place + 1 :])
            ]
            for factor in FACTORS
        ]
        doubled.append(Line(name, [median(cost) / median(costs[0]) for cost in costs]))
    places = [f"{factor} times" for factor in FACTORS]
    draw(target, places, "as many", [Panel("CPU time, over that of the first", doubled)])


CHARTS: Final[Mapping[str, Callable[[Path, Result], None]]] = {
    "buffer_timeout": buffer_timeout,
    "exchange": exchange,
    "isolation": isolation,
    "barrier": barrier,
    "memory": memory,
    "spark": spark,
    "tpch": tpch,
    "growth": growth,
}
"""By the benchmark whose result they show."""


def renew(results: Path, reference: Path, images: Path) -> list[str]:
    """Take results over and draw all charts.

    Args:
        results: Directory that benchmarks write.
        reference: The committed set.
        images: Directory of the charts, ``NAME.svg`` with dashes.

    Returns:
        The benchmarks without a result in either directory.
    """
    missing: list[str] = []
    for name, chart in CHARTS.items():
        found, kept = results / f"{name}.json", reference / f"{name}.json"
        if found.exists():
            reference.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(found, kept)
        if kept.exists():
            chart(images / f"{name.replace('_', '-')}.svg", json.loads(kept.read_text("utf-8")))
        else:
            missing.append(name)
    return missing


def main() -> None:
    """Renew all charts; print the missing results."""
    missing = renew(RESULTS_DIRECTORY, REFERENCE_DIRECTORY, IMAGES)
    if missing:
        commands = " ".join(f"bench-{name.replace('_', '-')}" for name in missing)
        sys.exit(f"No results of {', '.join(missing)}: make {commands}")


if __name__ == "__main__":
    main()
