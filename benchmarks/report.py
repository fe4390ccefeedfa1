"""The contract of all benchmarks: one JSON file each, and a table for people.

``benchmarks/results/NAME.json`` holds ``name``, ``machine``, ``versions``, ``figures`` (key →
number), ``runs`` (raw figures of each run) and ``spread`` (key → [min, max] over the runs).
"""

from __future__ import annotations

import json
import os
import platform
import statistics
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from sluice.shuffle.taskmanager.status.status import data_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RESULTS_DIRECTORY = Path(__file__).resolve().parent / "results"
REFERENCE_DIRECTORY = RESULTS_DIRECTORY.parent / "reference"
"""Committed results: those behind the charts of the docs."""
PLAIN_WIDTH = 120
_PACKAGES = ("sluice", "pyspark", "uvloop", "msgpack", "crc32c")


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of a benchmark.

    Attributes:
        name: The NAME of `make bench-NAME`.
        figures: The numbers the benchmark stands for.
        runs: The raw figures of each run, in the order in which they were taken.
        spread: Smallest and largest value of each figure over its runs.
        versions: Versions beside those of Python, the kernel and the packages.
    """

    name: str
    figures: Mapping[str, float]
    runs: Sequence[Mapping[str, Any]]
    spread: Mapping[str, tuple[float, float]]
    versions: Mapping[str, str] = field(default_factory=dict)

    def write(self, directory: Path = RESULTS_DIRECTORY) -> Path:
        """Write ``NAME.json`` and return its path; an older one is replaced in one step."""
        directory.mkdir(parents=True, exist_ok=True)
        target = directory / f"{self.name}.json"
        content = {
            "name": self.name,
            "machine": machine(),
            "versions": versions() | {"data_path": data_path()} | dict(self.versions),
            "figures": dict(self.figures),
            "runs": [dict(run) for run in self.runs],
            "spread": {key: list(bounds) for key, bounds in self.spread.items()},
        }
        partial = target.with_suffix(".json.partial")
        partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        partial.replace(target)
        return target

    def show(self, console: Console, aims: Mapping[str, str] | None = None) -> None:
        """Print the figures as a table, with the aim of each if it is given."""
        table = Table(title=f"bench-{self.name}")
        table.add_column("figure")
        for column in ("value", "min", "max", "aim"):
            table.add_column(column, justify="right")
        for key, value in self.figures.items():
            low, high = self.spread.get(key, (value, value))
            aim = (aims or {}).get(key, "")
            table.add_row(key, f"{value:.3f}", f"{low:.3f}", f"{high:.3f}", aim)
        console.print(table)


def open_console() -> Console:
    """Return a console as wide as the terminal, or wide enough for a table in a file."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)


def median_and_spread(values: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Return the median, and the smallest and largest value.

    Raises:
        statistics.StatisticsError: There are no values.
    """
    return statistics.median(values), (min(values), max(values))


def machine() -> dict[str, Any]:
    """Return the machine on which the numbers depend: processor, cores, memory, kernel."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the relevant packages that are installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
