"""Finds Spark and Java the way Spark's scripts do."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .errors import SparkIntegrationError

if TYPE_CHECKING:
    from collections.abc import Mapping

OLDEST_JAVA: Final = 17
JAVA_TIMEOUT_SECONDS: Final = 20.0

_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def pyspark_home() -> Path | None:
    """Return the directory of the installed PySpark, or None."""
    spec = importlib.util.find_spec("pyspark")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def installed_pyspark() -> Path:
    """Return the directory of the installed PySpark.

    Raises:
        SparkIntegrationError: PySpark is not installed.
    """
    home = pyspark_home()
    if home is None:
        raise SparkIntegrationError(
            "PySpark is not installed in this environment",
            value=sys.prefix,
            remedy="Install it with: pip install 'sluice-shuffle[spark]'",
        )
    return home


def conf_directory(environment: Mapping[str, str], home: Path | None = None) -> Path | None:
    """Return the directory of Spark's configuration files.

    Args:
        environment: Its ``SPARK_CONF_DIR`` names the directory.
        home: Spark's directory. None: ``SPARK_HOME``, else the installed PySpark.
    """
    named = environment.get("SPARK_CONF_DIR")
    if named:
        return Path(named)
    if home is None:
        named = environment.get("SPARK_HOME")
        home = Path(named) if named else pyspark_home()
    return None if home is None else home / "conf"


def require_java(environment: Mapping[str, str], configuration: Path | None) -> None:
    """Check that Spark's scripts find a Java that the plugin runs on.

    Raises:
        SparkIntegrationError: They do not find Java, or find one that is too old.
    """
    if configuration is not None and (configuration / "spark-env.sh").is_file():
        return  # The script may set another JAVA_HOME.
    home = environment.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else _on_path(environment)
    if java is None:
        raise SparkIntegrationError(
            "Java is not found",
            remedy=f"Install Java {OLDEST_JAVA} or later, or set JAVA_HOME to its directory",
        )
    if not os.access(java, os.X_OK):
        raise SparkIntegrationError(
            "JAVA_HOME is not the directory of a Java installation: it has no bin/java",
            value=home,
            remedy=f"Set it to the directory of Java {OLDEST_JAVA} or later, or unset it",
        )
    found = _version(java)
    if found is not None and found < OLDEST_JAVA:
        raise SparkIntegrationError(
            "Java is too old",
            value=f"{java} is Java {found}",
            limit=f"Java {OLDEST_JAVA} or later",
            remedy="Install a later one and set JAVA_HOME to its directory",
        )


def _on_path(environment: Mapping[str, str]) -> str | None:
    return shutil.which("java", path=environment.get("PATH", ""))


def _version(java: str) -> int | None:
    """Return the major version, or None if Java does not print it."""
    try:
        done = subprocess.run(
            [java, "-version"],
            capture_output=True,
            text=True,
            timeout=JAVA_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _JAVA_VERSION.search(done.stderr + done.stdout)
    return None if match is None else int(match[1])
