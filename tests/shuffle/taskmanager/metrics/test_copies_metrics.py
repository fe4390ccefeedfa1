"""Metrics of copies and moves."""

from __future__ import annotations

from sluice.shuffle.taskmanager.metrics.copies_metrics import copies_metrics
from tools.docs.sample_status import EMPTY_STATUS, STATUS


def test_copies_are_counted_and_measured():
    found = {
        sample.name: sample.value for family in copies_metrics(STATUS) for sample in family.samples
    }
    assert found == {
        "sluice_copies_made_total": 1041,
        "sluice_copy_sent_bytes_total": 1042,
        "sluice_copies_found_total": 1043,
        "sluice_copies_failed_total": 1044,
        "sluice_commits_without_copies_total": 1045,
        "sluice_map_outputs_moved_total": 1046,
        "sluice_copies_waiting": 93,
        "sluice_map_outputs_short_of_copies": 94,
        "sluice_migrating": 1,
        "sluice_map_outputs_staying": 97,
    }


def test_a_taskmanager_without_copies_shows_zeros():
    values = {sample.value for family in copies_metrics(EMPTY_STATUS) for sample in family.samples}
    assert values == {0}
