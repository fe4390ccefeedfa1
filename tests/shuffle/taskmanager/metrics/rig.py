"""Metrics as tests compare them: name and labels as Prometheus writes them, and the number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sluice.shuffle.taskmanager.metrics.metrics import registry

if TYPE_CHECKING:
    from prometheus_client import Metric

    from sluice.shuffle.taskmanager.status.status import TaskManagerStatus


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
