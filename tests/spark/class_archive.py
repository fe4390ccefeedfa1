"""Spark's classes in the form that the JVM keeps in memory, for JVMs that start often.

A driver loads thousands of classes and checks each of them before a short job has begun. A class
data sharing archive has them loaded and checked. It is made once for an installation of Spark, by
an application that uses a little of everything, and kept between runs of the tests, in pytest's
cache; a JVM for which it does not fit goes on without it.
"""

from __future__ import annotations

import hashlib
import subprocess
from typing import TYPE_CHECKING

from tests.support.cluster import installed_spark

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.cluster import SparkInstallation

NAME = "classes.jsa"
"""The archive's name in the directory of the applications that use it."""

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Small machines compile slowly, and no JVM of the tests runs long."""

JAVA_TIMEOUT_SECONDS = 60.0


def kept_archive(folder: Path) -> Path:
    """Return the path in ``folder`` of the archive for the installed Spark, made or not."""
    return folder / f"spark-{_fingerprint(installed_spark())}.jsa"


def java_options(directory: Path) -> str:
    """Options of a JVM that lives for seconds and uses the archive in ``directory``, if any."""
    return options_for(directory / NAME)


def options_for(archive: Path) -> str:
    """Return what `java_options` returns, for an archive elsewhere.

    The messages of the JVM about an archive that does not fit are kept out of the tests' logs.
    """
    if not archive.exists():
        return SHORT_LIVED
    return f"{SHORT_LIVED} -XX:SharedArchiveFile={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"


def recording_options(archive: Path) -> str:
    """Options of a JVM that writes ``archive`` when it ends."""
    return f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"


def _fingerprint(spark: SparkInstallation) -> str:
    """Changes with all that an archive depends on: the JVM, and the jars of the class path."""
    java = subprocess.run(
        ["java", "-version"],
        capture_output=True,
        check=True,
        text=True,
        timeout=JAVA_TIMEOUT_SECONDS,
    )
    jars = sorted((spark.home / "jars").glob("*.jar"))
    states = [(str(jar), jar.stat().st_size, jar.stat().st_mtime_ns) for jar in jars]
    return hashlib.sha256(f"{java.stderr} {states}".encode()).hexdigest()[:16]
