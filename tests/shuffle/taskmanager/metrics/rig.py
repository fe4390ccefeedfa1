"""Metrics as tests compare them: name and labels as Prometheus writes them, and the number.

As a program it records the metrics of the sample in ``tests/vectors/metrics.txt``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sluice.shuffle.taskmanager.metrics import application_metrics
from sluice.shuffle.taskmanager.metrics.metrics import registry
from tools.docs.sample_status import STATUS

if TYPE_CHECKING:
    from prometheus_client import Metric

    from sluice.shuffle.taskmanager.status.status import TaskManagerStatus


RECORDED = Path(__file__).parents[3] / "vectors" / "metrics.txt"


def page_of_sample() -> str:
    """Return the metrics of the sample, without those of the process, in sorted lines."""
    registries = registry(lambda: STATUS), application_metrics.registry(lambda: STATUS)
    lines = [line for each in registries for line in generate_latest(each).decode().splitlines()]
    of_process = re.compile(r"(# (HELP|TYPE) )?process_")
    return "".join(f"{line}\n" for line in sorted(lines) if not of_process.match(line))


def families(status: TaskManagerStatus) -> dict[str, Metric]:
    """Return all families by name."""
    return families_of(generate_latest(registry(lambda: status)).decode())


def families_of(page: str) -> dict[str, Metric]:
    """Return the families of a metrics page by name."""
    return {family.name: family for family in text_string_to_metric_families(page)}


def values(status: TaskManagerStatus) -> dict[str, float]:
    """Return every sample of Sluice's own."""
    return samples(families(status))


def samples(found: dict[str, Metric]) -> dict[str, float]:
    """Return every sample of Sluice's own in some families."""
    values = {}
    for family in found.values():
        for sample in family.samples:
            labels = ",".join(f'{k}="{v}"' for k, v in sorted(sample.labels.items()))
            values[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return {name: value for name, value in values.items() if name.startswith("sluice_")}


if __name__ == "__main__":
    RECORDED.write_text(page_of_sample(), encoding="utf-8")
