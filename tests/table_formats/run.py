"""The tests with the real Delta Lake and Iceberg: `make test-table-formats`.

Maven fetches the jars, of the versions in ``pom.xml`` and with the SHA-256 in ``.mvn``. The tests
run on the line of Spark that the jars are for, in the environment that `make test-matrix` uses.

    .venv/bin/python -m tests.table_formats.run
    .venv/bin/python -m tests.table_formats.run record    # after a change of pom.xml
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.spark_lines.run import DIRECTORY, environment, run_tests
from tools.spark_suites.class_path import GOAL, fetch
from tools.supply import maven

JARS_VARIABLE = "SLUICE_TABLE_FORMATS"
"""Names the jars for the tests."""

SPARK = "4.1.4"
"""The newest line of Spark that has both formats."""

HERE = Path(__file__).resolve().parent
SUMS = HERE / ".mvn" / "checksums" / "checksums.sha256"


def main() -> int:
    """Run the tests, or write down the SHA-256 of all that Maven fetches for them."""
    if sys.argv[1:] == ["record"]:
        return maven.record(SUMS, HERE / "pom.xml", (GOAL,))
    with tempfile.TemporaryDirectory() as scratch:
        jars = fetch(Path(scratch), HERE / "pom.xml", SUMS)
    os.environ[JARS_VARIABLE] = os.pathsep.join(map(str, jars))
    tests = sys.argv[1:] or ["tests/spark/test_table_formats.py"]
    outcome = run_tests(SPARK, environment(SPARK, DIRECTORY), tests)
    sys.stdout.write(f"Spark {SPARK}: {outcome.summary}\n")
    return 0 if outcome.passed else 1


if __name__ == "__main__":
    sys.exit(main())
