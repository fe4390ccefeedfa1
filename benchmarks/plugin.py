"""The Spark settings that put Sluice in the place of Spark's own shuffle."""

from __future__ import annotations


def sluice_conf(endpoints: str) -> dict[str, str]:
    """Settings for an application whose executors find their TaskManager at ``endpoints``.

    Raises:
        RuntimeError: The plugin's jar has not been built.
    """
    from spark_integration import spark_conf

    return dict(spark_conf(endpoints=endpoints))
