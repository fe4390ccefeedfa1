"""The class path of Spark's tests jars, fetched by Maven, and the directory that they run in.

Spark's tests look for files of Spark's source tree and start executors like an installed Spark. So
the directory has both: ``jars`` with the class path, and the resources of the tests at their paths
in the source tree. It is not committed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

from tools.supply import maven

HERE: Final = Path(__file__).resolve().parent
POM: Final = HERE / "pom.xml"
SUMS: Final = HERE / ".mvn" / "checksums" / "checksums.sha256"
GOAL: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"
FETCH_TIMEOUT_SECONDS: Final = 1200.0
MODULES: Final = {"sql": "sql/core", "core": "core"}
"""Modules of Spark whose tests look for files, and their place in the source tree."""


class ClassPathError(RuntimeError):
    """The class path cannot be made."""


def fetch(directory: Path, pom: Path = POM, sums_file: Path = SUMS) -> list[Path]:
    """Return the jars in the order of the class path; Maven fetches missing ones.

    Args:
        directory: Where to write a listing.
        pom: Names them.
        sums_file: Has the SHA-256 of each.

    Raises:
        ClassPathError: Maven failed, or a file's SHA-256 differs from the list.
    """
    listing = directory / "class-path.txt"
    command = ["mvn", "-q", "-B", "-ntp", "-Dstyle.color=never", "-f", str(pom)]
    done = subprocess.run(
        [*command, GOAL, f"-Dmdep.outputFile={listing}"],
        check=False,
        timeout=FETCH_TIMEOUT_SECONDS,
    )
    if done.returncode:
        raise ClassPathError(f"Maven could not fetch the jars of {pom}, see its message")
    repository = maven.local_repository()
    sums = maven.read_sums(sums_file)
    jars = [Path(name) for name in listing.read_text(encoding="utf-8").strip().split(os.pathsep)]
    unlisted = [jar for jar in jars if jar.relative_to(repository).as_posix() not in sums]
    differing = maven.verify(repository, sums)
    if differing or unlisted:
        raise ClassPathError(
            f"not as {sums_file.name} says: {', '.join([*differing, *map(str, unlisted)])}"
        )
    return jars


def prepare(directory: Path, jars: list[Path]) -> Path:
    """Make the home directory of the tests; return it."""
    home = directory / "home"
    shutil.rmtree(home, ignore_errors=True)
    links = home / "jars"
    links.mkdir(parents=True)
    for number, jar in enumerate(jars):
        # Numbered, because two groups may have jars with the same name.
        (links / f"{number:03}-{jar.name}").symlink_to(jar)
    for module, place in zip(MODULES, resources(home), strict=True):
        for jar in jars:
            if jar.name.startswith(f"spark-{module}_") and jar.name.endswith("-tests.jar"):
                with zipfile.ZipFile(jar) as archive:
                    archive.extractall(
                        place, [n for n in archive.namelist() if not n.endswith(".class")]
                    )
    return home


def resources(home: Path) -> list[Path]:
    """Return the directories of the tests' resources, in the order of the class path."""
    return [home / folder / "src" / "test" / "resources" for folder in MODULES.values()]


def compile_suites(directory: Path, jars: list[Path]) -> Path:
    """Compile the suites of the ``java`` folder; return the directory of their classes.

    Raises:
        subprocess.CalledProcessError: The compiler failed.
    """
    classes = directory / "classes"
    shutil.rmtree(classes, ignore_errors=True)
    classes.mkdir()
    path = os.pathsep.join(map(str, jars))
    sources = [str(source) for source in (HERE / "java").rglob("*.java")]
    subprocess.run(
        ["javac", "-nowarn", "-proc:none", "-cp", path, "-d", str(classes), *sources], check=True
    )
    return classes


def main() -> int:
    """Record the SHA-256 of all files that Maven fetches for the class path."""
    if sys.argv[1:] != ["record"]:
        sys.stderr.write("usage: python -m tools.spark_suites.class_path record\n")
        return 2
    return maven.record(SUMS, POM, (GOAL,))


if __name__ == "__main__":
    sys.exit(main())
