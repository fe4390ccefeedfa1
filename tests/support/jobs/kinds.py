"""The type of a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from pyspark.sql import SparkSession

Job: TypeAlias = Callable[[SparkSession, dict[str, Any]], Sequence[Sequence[Any]]]
"""Takes the session and its parameters, runs to the end, returns the rows of its result."""
