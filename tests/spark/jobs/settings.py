"""Settings of the session or of the thread, for the duration of a job."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark import SparkContext
    from pyspark.sql import SparkSession


@contextmanager
def sql_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set them, and put back what was there before."""
    before = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, earlier in before.items():
            if earlier is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, earlier)


@contextmanager
def local_properties(context: SparkContext, settings: Mapping[str, str]) -> Iterator[None]:
    """Set local properties of this thread, and remove them afterwards."""
    for key, value in settings.items():
        context.setLocalProperty(key, value)
    try:
        yield
    finally:
        for key in settings:
            context.setLocalProperty(key, None)  # type: ignore[arg-type]
