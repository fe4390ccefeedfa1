"""Record and verify the SHA-256 of all files that Maven fetches to build the plugin's jar.

Maven 3.9 and later compares each file with the list before using it (``.mvn/maven.config``). Older
versions ignore the list, so ``make jar`` calls ``verify`` after the build and does not install a
jar that was built with another file. The list also pins the POMs, and so everything that they name:
if all files match, Maven used no other files.

It needs only Python, because it runs before anything is installed, in the image too.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
JVM = ROOT / "spark_integration" / "jvm"
SUMS = JVM / ".mvn" / "checksums" / "checksums.sha256"
GOALS = ("package", "spotless:check", "org.cyclonedx:cyclonedx-maven-plugin:makeBom")
"""The goals of `make jar`, `make check` and `make sbom`."""

_KINDS = (".jar", ".pom")
_SETTINGS = "{http://maven.apache.org/SETTINGS/1.0.0}localRepository"


def read_sums(path: Path = SUMS) -> dict[str, str]:
    """Return the SHA-256 of each path below a Maven repository."""
    lines = (line.split("  ", 1) for line in path.read_text().splitlines())
    return {name: digest for digest, name in lines}


def verify(repository: Path, sums: dict[str, str]) -> list[str]:
    """Return the listed files of a Maven repository whose SHA-256 differs.

    A missing file was not used. A repository without any listed file is the wrong one.

    Raises:
        FileNotFoundError: The repository holds none of the files.
    """
    there = [name for name in sums if (repository / name).is_file()]
    if not there:
        raise FileNotFoundError(
            f"{repository} has none of the files that the build needs: if Maven keeps them"
            " elsewhere, say where with MAVEN_OPTS=-Dmaven.repo.local=DIRECTORY"
        )
    return [name for name in there if _sha256(repository / name) != sums[name]]


def record(sums: Path = SUMS, pom: Path = JVM / "pom.xml", goals: tuple[str, ...] = GOALS) -> int:
    """Build with an empty repository and record its files; return Maven's exit code.

    Maven 3.8 fetches a jar that Maven 3.9 does not, and the list must work for both: files that
    this Maven does not fetch stay listed if it fetches others of the same version.
    """
    old = read_sums(sums) if sums.is_file() else {}
    with tempfile.TemporaryDirectory() as scratch:
        repository = Path(scratch, "repository")
        command = [
            *("mvn", "-q", "-B", "-ntp", "-Dstyle.color=never", "-f", pom),
            f"-Dmaven.repo.local={repository}",
            f"-Dsluice.jar={scratch}/sluice-spark.jar",
            # Nothing is listed yet.
            "-Daether.artifactResolver.postProcessor.trustedChecksums=false",
            *goals,
        ]
        done = subprocess.run([str(word) for word in command], check=False)
        if done.returncode:
            return done.returncode
        new = {
            path.relative_to(repository).as_posix(): _sha256(path)
            for path in repository.rglob("*")
            if path.suffix in _KINDS
        }
    folders = {Path(name).parent for name in new}
    kept = {name: digest for name, digest in old.items() if Path(name).parent in folders}
    new = kept | new
    sums.parent.mkdir(parents=True, exist_ok=True)
    sums.write_text("".join(f"{new[name]}  {name}\n" for name in sorted(new)))
    return 0


def local_repository() -> Path:
    """Return Maven's local repository, as its options or settings specify."""
    options = " ".join(os.environ.get(name, "") for name in ("MAVEN_OPTS", "MAVEN_ARGS"))
    if told := re.findall(r"-Dmaven\.repo\.local=(\S+)", options):
        return Path(told[-1])
    home = Path.home() / ".m2"
    settings = home / "settings.xml"
    if settings.is_file():
        place = ET.parse(settings).getroot().findtext(_SETTINGS)  # noqa: S314 - the user's own file
        if place:
            return Path(place.strip().replace("${user.home}", str(Path.home())))
    return home / "repository"


def main() -> int:
    """Run ``record`` or ``verify``; report differences."""
    if sys.argv[1:] == ["record"]:
        return record()
    if sys.argv[1:] != ["verify"]:
        sys.stderr.write("usage: python -m tools.supply.maven record|verify\n")
        return 2
    repository = local_repository()
    try:
        differing = verify(repository, read_sums())
    except FileNotFoundError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    for name in differing:
        sys.stderr.write(
            f"{repository / name} has another SHA-256 than {SUMS.relative_to(ROOT)} says: remove"
            " it and build again; if it differs again, what the repository serves has changed\n"
        )
    return 1 if differing else 0


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main())
