"""A pytest plugin: what asks for the installed Spark gets the version of the line under test."""

from __future__ import annotations

from sluice.spark_integration import conf
from tests.support.cluster import installed_spark

conf._installed_spark = lambda: installed_spark().version
