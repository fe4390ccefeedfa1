"""The tests on a real YARN cluster: `make yarn-test`.

Maven fetches the cluster's jars, of the versions in ``pom.xml`` and with the SHA-256 in ``.mvn``,
into ``build/yarn``. The Hadoop jars of the installed PySpark complete them.

    .venv/bin/python -m tests.yarn.run
    .venv/bin/python -m tests.yarn.run record    # after a change of pom.xml
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.cluster import REPOSITORY
from tests.yarn.cluster import JARS_VARIABLE
from tools.spark_suites.class_path import GOAL, fetch
from tools.supply import maven

HERE = Path(__file__).resolve().parent
SUMS = HERE / ".mvn" / "checksums" / "checksums.sha256"
CACHE = REPOSITORY / "build" / "yarn" / "repository"
TESTS_TIMEOUT_SECONDS = 1800.0


def main() -> int:
    """Run the tests, or record the SHA-256 of all files that Maven fetches for them."""
    if sys.argv[1:] == ["record"]:
        return maven.record(SUMS, HERE / "pom.xml", (GOAL,))
    options = os.environ.get("MAVEN_OPTS", "")
    os.environ["MAVEN_OPTS"] = f"{options} -Dmaven.repo.local={CACHE}".strip()
    with tempfile.TemporaryDirectory() as scratch:
        jars = fetch(Path(scratch), HERE / "pom.xml", SUMS)
    tests = sys.argv[1:] or ["tests/spark/test_yarn.py"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *tests],
        cwd=REPOSITORY,
        env=os.environ | {JARS_VARIABLE: os.pathsep.join(map(str, jars))},
        check=False,
        timeout=TESTS_TIMEOUT_SECONDS,
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
