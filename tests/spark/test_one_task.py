"""A task that reads thousands of shuffles releases each after its last record."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.extended import first_of

if TYPE_CHECKING:
    from tests.spark.applications import Application

READERS = 3000
"""Held until the task's end, 320 KiB for each of them exceed the executor's heap."""
RECORDS_PER_READER = 5


@pytest.mark.parametrize("shape", first_of(["frame", "pairs", "cartesian"], 2))
def test_readers_of_one_task_release_their_memory(sluice: Application, shape: str):
    rows = sluice.rows("one_task_count", shape=shape, readers=READERS)
    assert rows.read_text(encoding="utf-8") == f"[{READERS * RECORDS_PER_READER}]\n"
