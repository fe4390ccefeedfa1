"""The pages about metrics cannot go stale."""

from __future__ import annotations

import re

from prometheus_client import CollectorRegistry, ProcessCollector

from sluice.protocol.errors import ErrorCode
from sluice.shuffle.taskmanager.metrics.application_metrics import ApplicationCollector
from sluice.shuffle.taskmanager.metrics.metrics import TaskManagerCollector
from tools.docs.metrics_page import PAGE, page
from tools.docs.sample_status import STATUS

COMMITTED = PAGE.read_text(encoding="utf-8")
GUIDE = (PAGE.parents[1] / "operate" / "metrics.md").read_text(encoding="utf-8")
QUERY = re.compile(r"(sluice_[a-z_]+|process_[a-z_]+)(?:\{([^}]*)\})?")


def known() -> dict[str, list[dict[str, str]]]:
    """Return the labels of every series by its name."""
    registry = CollectorRegistry()
    families = [*TaskManagerCollector(lambda: STATUS).collect()]
    families += ApplicationCollector(lambda: STATUS).collect()
    families += ProcessCollector(registry=registry).collect()
    found: dict[str, list[dict[str, str]]] = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, []).append(dict(sample.labels))
    return found


def test_the_committed_page_is_the_generated_one():
    assert page(COMMITTED) == COMMITTED, "run: make docs"


def test_every_metric_has_a_row():
    rows = re.findall(r"^\| `(sluice_\w+)` \|", COMMITTED, re.MULTILINE)
    parts = re.compile(r"(_seconds)_(bucket|count|sum)$")  # of a histogram, which has one row
    names = {parts.sub(r"\1", name) for name in known() if name.startswith("sluice_")}
    assert sorted(rows) == sorted(names)


def test_the_text_speaks_of_metrics_and_labels_that_there_are():
    series = known()
    unknown = []
    for name, labels in QUERY.findall(COMMITTED + GUIDE):
        wanted = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if "code" in wanted:  # a sample has but one of them
            assert wanted.pop("code") in ErrorCode.__members__
        given = [each for key, all_ in series.items() if key.startswith(name) for each in all_]
        if name.rstrip("_") == name and not any(wanted.items() <= each.items() for each in given):
            unknown.append((name, labels))
    assert not unknown
