"""Refuses to build a wheel or an sdist without the plugin's jar."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

JAR = Path("sluice/spark_integration/jars/sluice-spark.jar")


class JarHook(BuildHookInterface[Any]):
    """Checks, before files are collected, that the jar was built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Check that the jar is there; an editable install finds it when it is built later.

        Raises:
            RuntimeError: The jar is missing.
        """
        if version != "editable" and not (Path(self.root) / JAR).is_file():
            raise RuntimeError(
                f"{JAR} is missing, and a package without the Spark plugin is of no use."
                " Build it first, with a JDK 17 and Maven: make jar"
            )
