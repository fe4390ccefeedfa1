"""Map outputs of two TaskManagers are read in map order, of each one or, if asked for, of both.

``test_writer.py`` has the same jobs with one TaskManager, where nothing has to be asked for.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.extended import first_of

if TYPE_CHECKING:
    from tests.spark.applications import Application, Both

REDUCERS = 5
"""Of the jobs in ``jobs/order.py``."""


@pytest.mark.parametrize("job", first_of(["rdd_values", "rdd_sorted", "frame_rows"]))
def test_two_taskmanagers_give_the_order_of_sparks_local_mode(both: Both, job: str):
    compared = both.compare(f"order_{job}", map_order=True)
    assert compared.differences == []
    # Otherwise one TaskManager had everything.
    assert compared.moved.peer_bytes > 0


def test_the_outputs_of_each_taskmanager_are_read_in_map_order(sluice: Application):
    rows = sluice.rows("order_by_executor").read_text(encoding="utf-8").splitlines()
    numbers = {(partition, executor): read for partition, executor, read in map(json.loads, rows)}
    assert len({executor for _, executor in numbers}) == 2
    assert len(numbers) == 2 * REDUCERS
    for read in numbers.values():
        assert read == sorted(read)
