"""Runs suites of Spark's tests jars, with Spark's own shuffle and with Sluice.

    python -m tools.spark_suites.run
    python -m tools.spark_suites.run SortingSuite JoinSuite --minutes 10

Each run of a suite has its own JVM. The results replace those of the same suites in
``results.json``, and the page of the documentation is regenerated. The exit code is 1 if a
difference has no reason, a suite did not end, or a suite that shuffles sent no data through the
TaskManager.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluice.spark_integration import conf
from tests.support.daemons import Daemons
from tests.support.processes import ManagedProcess, ProcessFailed, stop_on_termination
from tools.spark_suites import class_path
from tools.spark_suites.results import (
    Outcome,
    Side,
    Suite,
    read_report,
    read_results,
    read_suites,
    unexplained,
    write_results,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
DIRECTORY: Final = ROOT / "build" / "spark-suites"
HOST: Final = "127.0.0.1"
SCALA: Final = "2.13"
POM: Final = "{http://maven.apache.org/POM/4.0.0}"
EXECUTOR_JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Executors of local clusters run for seconds, and compilation is half of their start."""
_OPENED: Final = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio"),
    *("java.util", "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref"),
    *("sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar"),
)
"""Packages that Spark opens to itself (its `JavaModuleOptions`)."""


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs suites in JVMs.

    Attributes:
        home: The directory used as Spark's home.
        jars: The class path of Spark and its tests.
        classes: The directory of our own suites.
        seconds: Time limit of a suite's run.
        endpoints: Where the TaskManager listens.
    """

    home: Path
    jars: tuple[Path, ...]
    classes: Path
    seconds: float
    endpoints: str

    def run(self, suite: Suite, side: str, tests: Sequence[str] = ()) -> Side:
        """Run a suite on one side, or only some of its tests."""
        work = DIRECTORY / "work" / f"{suite.name}-{side}{'-again' if tests else ''}"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        chosen = ["-s", suite.name]
        for test in tests:
            chosen += ["-t", test]
        if not tests:
            for case in suite.cases:
                chosen += ["-z", case]
        with tempfile.TemporaryDirectory(prefix="spark-suites-") as scratch:
            process = ManagedProcess(
                f"{suite.name} ({side})",
                [*self._java(side, scratch), "-oW", "-u", str(work), *chosen],
                log_path=work / "output.log",
                environment=self._environment(),
                directory=Path(scratch),
            )
            with process:
                try:
                    process.wait(self.seconds)
                except ProcessFailed:
                    return Side(aborted=f"not done after {self.seconds / 60:.0f} minutes")
        report = work / f"TEST-{suite.name}.xml"
        return read_report(report) if report.is_file() else Side(aborted="it left no report")

    def _java(self, side: str, scratch: str) -> list[str]:
        properties = {
            "spark.testing": "true",
            "spark.test.home": str(self.home),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.unsafe.exceptionOnMemoryLeak": "true",
            "java.io.tmpdir": scratch,
            "derby.system.durability": "test",
            "jdk.reflect.useDirectMethodHandle": "false",
            "spark.executor.extraJavaOptions": EXECUTOR_JAVA_OPTIONS,
            "io.netty.tryReflectionSetAccessible": "true",
        }
        # As files, because Spark cannot read data in a jar.
        added = [str(self.classes), *map(str, class_path.resources(self.home))]
        if side == "sluice":
            properties |= {
                conf.PLUGINS: conf.PLUGIN,
                "spark.shuffle.manager": conf.SHUFFLE_MANAGER,
                "spark.shuffle.sort.io.plugin.class": conf.DATA_IO,
                conf.ENDPOINTS: self.endpoints,
            }
            added.append(str(conf.jar_path()))
        # Executors of tests on a local cluster have the class path of Spark's directory.
        properties["spark.executor.extraClassPath"] = ":".join(added)
        return [
            *("java", "-Xmx3g", "-Xss64m"),
            *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
            *(f"-D{key}={value}" for key, value in properties.items()),
            *("-cp", ":".join([*added, *map(str, self.jars)]), "org.scalatest.tools.Runner"),
        ]

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LC_ALL": "C.UTF-8",
            "SPARK_TESTING": "1",
            "SPARK_HOME": str(self.home),
            "SPARK_SCALA_VERSION": SCALA,
            "SPARK_LOCAL_IP": HOST,
        }


def compare(suite: Suite, runner: Runner, taskmanagers: Daemons) -> Outcome:
    """Run a suite on both sides, and tests that differ again.

    Raises:
        RuntimeError: The suite shuffles, but sent no data through the TaskManager.
    """
    own = runner.run(suite, "own")
    before = taskmanagers.moved()
    sluice = runner.run(suite, "sluice")
    if suite.shuffles and (taskmanagers.moved() - before).read_bytes == 0:
        raise RuntimeError(f"no byte of {suite.name} went through the TaskManager")
    outcome = Outcome(own, sluice)
    again = [test for test in outcome.differences() if test in sluice.failed]
    if again:
        second = runner.run(suite, "sluice", again)
        for test in again:
            if not second.aborted and test not in second.failed:
                del sluice.failed[test]
                sluice.unsteady.append(test)
    return outcome


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suites, print a line for each, write the results."""
    suites, _ = read_suites()
    parser = argparse.ArgumentParser(prog="make spark-suites", description=__doc__)
    parser.add_argument("suites", nargs="*", help="names of suites, without packages (all)")
    parser.add_argument("--minutes", type=float, default=20.0, help="of one run of a suite")
    options = parser.parse_args(arguments)
    short = {suite.name.rpartition(".")[2]: suite for suite in suites}
    unknown = [name for name in options.suites if name not in short]
    if unknown:
        parser.error(f"unknown suites: {', '.join(unknown)}; there are {', '.join(short)}")
    stop_on_termination()
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    jars = class_path.fetch(DIRECTORY)
    home = class_path.prepare(DIRECTORY, jars)
    classes = class_path.compile_suites(DIRECTORY, jars)
    spark = spark_version()
    before, outcomes = read_results()
    if before != spark:
        outcomes = {}
    run: dict[str, Outcome] = {}
    with (
        tempfile.TemporaryDirectory(prefix="sluice-") as scratch,
        Daemons(
            Path(scratch), hosts=(HOST,), authenticated=False, memory_tier_bytes="512 MiB"
        ) as taskmanagers,
    ):
        endpoint = taskmanagers.endpoints.replace("{host}", HOST)
        runner = Runner(home, tuple(jars), classes, options.minutes * 60, endpoint)
        for name in options.suites or short:
            outcome = compare(short[name], runner, taskmanagers)
            run[short[name].name] = outcome
            print(
                f"{name}: {outcome.own.tests} tests, {len(outcome.own.failed)} failed with Spark's"
                f" own shuffle, {len(outcome.sluice.failed)} with Sluice,"
                f" {len(outcome.differences())} with Sluice only",
                flush=True,
            )
            write_results(spark, outcomes | run)
    problems = [f"not explained: {each}" for each in unexplained(run)]
    # A suite that did not end with Spark's own shuffle cannot be compared.
    problems += [f"{name}: {each.own.aborted}" for name, each in run.items() if each.own.aborted]
    for problem in problems:
        print(problem, flush=True)
    return 1 if problems else 0


def spark_version() -> str:
    """Return the version of Spark whose tests run."""
    root = ET.parse(class_path.POM).getroot()  # noqa: S314 - our own file
    version = root.findtext(f"{POM}properties/{POM}spark.version")
    if version is None:
        raise RuntimeError(f"{class_path.POM} names no spark.version")
    return version


if __name__ == "__main__":
    sys.exit(main())
