"""A pytest plugin: what asks for the installed Spark gets the version of the line under test."""

from __future__ import annotations

from benchmarks.cluster import installed_spark
from sluice.spark_integration import conf

conf._installed_spark = lambda: installed_spark().version
