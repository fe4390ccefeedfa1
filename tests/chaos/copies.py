"""Copies of map outputs: how many each has, and the wait until all have them."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tests.support.metrics import MetricMissing, scrape_samples

LOST_AFTER_SECONDS = 3.0
"""The TaskManagers' setting, with second copies: less than the longer faults."""
RESTORE_SECONDS = 60.0
LOOK_AGAIN_SECONDS = 0.1
SHORT_OF_COPIES = ("sluice_map_outputs_short_of_copies", "sluice_copies_waiting")


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of each map output, the producer's own included, and when they are made."""

    replicas: int
    mode: str

    @property
    def settings(self) -> dict[str, str]:
        """Return the Spark settings, nothing for a single copy."""
        if self.replicas == 1:
            return {}
        return {
            "spark.sluice.replicas": str(self.replicas),
            "spark.sluice.replicas.mode": self.mode,
        }

    def __str__(self) -> str:
        return f"{self.replicas} {self.mode}" if self.replicas > 1 else "1"


def await_copies(urls: list[str]) -> None:
    """Wait until all map outputs have their copies: only then may anything else be lost.

    Args:
        urls: The metrics pages of all TaskManagers.

    Raises:
        TimeoutError: They are not made in time.
    """
    # Before this time is over, a TaskManager that is away still counts as one that has copies,
    # so nothing is short of them: there is no event and no metric to wait for.
    time.sleep(LOST_AFTER_SECONDS)
    deadline = time.monotonic() + RESTORE_SECONDS
    while short := _short_of_copies(urls):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{short} copies are missing after {RESTORE_SECONDS:g} s")
        time.sleep(LOOK_AGAIN_SECONDS)


def _short_of_copies(urls: list[str]) -> int:
    """How many copies of map outputs are missing or under way, by the metrics of TaskManagers."""
    found = [value for name, _, value in scrape_samples(urls) if name in SHORT_OF_COPIES]
    if len(found) < len(urls) * len(SHORT_OF_COPIES):
        raise MetricMissing(f"not every TaskManager has {SHORT_OF_COPIES}")
    return round(sum(found))
