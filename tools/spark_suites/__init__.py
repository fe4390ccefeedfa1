"""Spark's own test suites with Sluice as the shuffle manager: `make spark-suites`."""
