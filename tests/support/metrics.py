"""Reads the bytes that TaskManagers moved from their ``/metrics`` pages."""

from __future__ import annotations

import urllib.request
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SCRAPE_TIMEOUT_SECONDS = 10.0


class MetricMissing(RuntimeError):
    """A metrics page lacks a metric that is read from it."""


@dataclass(frozen=True, slots=True)
class Moved:
    """Payload bytes and buffers moved by one or several TaskManagers since they started."""

    written_bytes: int = 0
    """Received from map tasks."""
    read_bytes_local: int = 0
    """Sent to reduce tasks out of the own store."""
    read_bytes_remote: int = 0
    """Sent to reduce tasks after another TaskManager had sent it."""
    read_buffers_local: int = 0
    read_buffers_remote: int = 0
    peer_bytes: int = 0
    """Sent to other TaskManagers."""
    region_area_bytes: int = 0
    """Those of the written bytes that came through region areas."""
    messages: int = 0
    """Messages with clients and between TaskManagers, in both directions."""

    @property
    def read_bytes(self) -> int:
        """Bytes sent to reduce tasks."""
        return self.read_bytes_local + self.read_bytes_remote

    def __add__(self, other: Moved) -> Moved:
        """Add field by field."""
        return Moved(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: Moved) -> Moved:
        """Subtract field by field: the difference of two samples."""
        return Moved(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))


# Sample name and label that each field is read from.
_SAMPLES: dict[str, tuple[str, dict[str, str]]] = {
    "written_bytes": ("sluice_received_bytes_total", {"leg": "producer"}),
    "read_bytes_local": ("sluice_sent_bytes_total", {"leg": "consumer", "source": "local"}),
    "read_bytes_remote": ("sluice_sent_bytes_total", {"leg": "consumer", "source": "remote"}),
    "read_buffers_local": ("sluice_sent_buffers_total", {"leg": "consumer", "source": "local"}),
    "read_buffers_remote": ("sluice_sent_buffers_total", {"leg": "consumer", "source": "remote"}),
    "peer_bytes": ("sluice_sent_bytes_total", {"leg": "peer"}),
    "messages": ("sluice_connection_messages_total", {}),
    "region_area_bytes": ("sluice_region_area_received_bytes_total", {}),
}


def parse(page: str) -> Moved:
    """Read one metrics page.

    Raises:
        MetricMissing: A missing metric is never taken for zero.
    """
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            for field, (name, labels) in _SAMPLES.items():
                if sample.name == name and labels.items() <= sample.labels.items():
                    sums[field] = sums.get(field, 0.0) + sample.value
    missing = [_SAMPLES[field][0] for field in _SAMPLES if field not in sums]
    if missing:
        raise MetricMissing(f"the metrics page has no sample of {', '.join(sorted(set(missing)))}")
    return Moved(**{field: int(value) for field, value in sums.items()})


def scrape_samples(urls: Iterable[str]) -> Iterator[tuple[str, dict[str, str], float]]:
    """Return name, labels and value of every sample of several metrics pages.

    Raises:
        OSError: A page could not be fetched.
    """
    for url in urls:
        for family in text_string_to_metric_families(_fetch(url)):
            for sample in family.samples:
                yield sample.name, sample.labels, sample.value


def scrape(urls: Iterable[str]) -> Moved:
    """Read and add up the metrics pages of several TaskManagers.

    Raises:
        OSError: A page could not be fetched.
        MetricMissing: A page lacks a metric.
    """
    moved = Moved()
    for url in urls:
        moved += parse(_fetch(url))
    return moved


def _fetch(url: str) -> str:
    # Asked directly: the TaskManagers are on loopback, a proxy would lead outside.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=SCRAPE_TIMEOUT_SECONDS) as answer:
        page: bytes = answer.read()
    return page.decode()
