"""The Python API inside the Python workers of Spark."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from sluice.spark_integration.local_taskmanager import LocalTaskManager
from tests.spark.jobs.python_api import WORDS

if TYPE_CHECKING:
    from tests.spark.applications import Application


def test_a_shuffle_inside_map_partitions(own: Application):
    with LocalTaskManager() as taskmanager:
        rows = own.rows("python_api_word_count", endpoint=taskmanager.endpoint)
    counts = dict(json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines())
    assert counts == Counter(WORDS)
