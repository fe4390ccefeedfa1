"""The cluster, TaskManagers and applications that the Spark tests share: starts are expensive."""

from __future__ import annotations

import fcntl
import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sluice.spark_integration import SparkIntegrationError, jar_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.spark.applications import Application, Both
    from tests.spark.barrier import Barrier
    from tests.spark.driver import Driver
    from tests.support.cluster import StandaloneCluster
    from tests.support.daemon import Daemon
    from tests.support.daemons import Daemons

FOLDER = Path(__file__).resolve().parent
TEST_TIMEOUT_SECONDS = 300
"""For each test with the fixtures it is the first to need."""

GROUPS = ("spark-cluster", "spark-sessions", "spark-commands")
"""Names of what pytest-xdist gives to one worker."""

COMMANDS = ("test_works_with.py", "test_front_door.py")
"""Tests of commands that need neither the cluster nor its applications."""


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = _why_not()
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.xdist_group(_group(item)))
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_SECONDS))
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


def _group(item: pytest.Item) -> str:
    """Put tests that share a cluster and its applications into one group; spread the rest."""
    if "cluster" in item.fixturenames:  # type: ignore[attr-defined]
        return GROUPS[0]
    return GROUPS[2] if item.path.name in COMMANDS else GROUPS[1]


@pytest.fixture(scope="session", autouse=True)
def one_worker(request: pytest.FixtureRequest) -> None:
    """Fail when every worker would start a cluster: on cores that are not there."""
    if request.config.getoption("loadgroup", False) and not all(
        item.nodeid.endswith(GROUPS)
        for item in request.session.items
        if FOLDER in item.path.parents
    ):
        pytest.fail(
            "pytest-xdist does not see the group of the Spark tests: this pytest is too new for "
            "it, install the one of requirements/"
        )


def _why_not() -> str:
    if shutil.which("java") is None:
        return "Spark needs Java"
    if importlib.util.find_spec("pyspark") is None:
        return "PySpark is not installed"
    try:
        jar_path()
    except SparkIntegrationError as error:
        return str(error)
    return ""


@pytest.fixture(scope="session")
def directory(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Directory of all applications, with the archive of Spark's classes that they use."""
    from tests.spark import class_archive
    from tests.spark.applications import record_classes

    # Not pytest's own: the path of a Unix socket must stay short.
    with tempfile.TemporaryDirectory(prefix="sluice-", ignore_cleanup_errors=True) as path:
        directory = Path(path)
        kept = class_archive.kept_archive(request.config.cache.mkdir("spark-classes"))
        # Both groups need it, and another worker may be making it.
        with kept.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                record_classes(kept, directory)
        (directory / class_archive.NAME).symlink_to(kept)
        yield directory


@pytest.fixture(scope="session")
def cluster(directory: Path) -> Iterator[StandaloneCluster]:
    from tests.support.cluster import StandaloneCluster

    # Cores are what applications ask for, not what the machine has: several share it.
    with StandaloneCluster(directory, cores=6, memory="6g") as running:
        yield running


@pytest.fixture(scope="session")
def daemons(directory: Path) -> Iterator[Daemons]:
    from tests.support.daemons import Daemons

    # Data of an application whose driver failed is dropped soon, so that it disturbs no other test.
    with Daemons(directory / "tm", application_expiry_seconds=15) as running:
        yield running


@pytest.fixture(scope="session")
def own(directory: Path) -> Iterator[Application]:
    """Spark's own shuffle; where it runs does not matter to its results."""
    from tests.spark.applications import LOCAL_MASTER, Application

    with Application("own", LOCAL_MASTER, directory, {}) as running:
        yield running


@pytest.fixture(scope="session")
def driver(directory: Path) -> Iterator[Driver]:
    """A driver in which applications take turns; one ends when the next one begins."""
    from tests.spark.driver import Driver

    with Driver(directory) as running:
        yield running


@pytest.fixture(scope="session")
def sluice(directory: Path, cluster: StandaloneCluster, daemons: Daemons) -> Iterator[Application]:
    """Sluice on two hosts, with a UI; settings otherwise as Spark has them."""
    from tests.spark.applications import Application, sluice_settings

    prometheus = "spark.metrics.conf.driver.sink.prometheusServlet"
    settings = sluice_settings(daemons) | {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        f"{prometheus}.class": "org.apache.spark.metrics.sink.PrometheusServlet",
        f"{prometheus}.path": "/metrics/prometheus",
    }
    with Application("sluice", cluster.master_url, directory, settings) as running:
        yield running


@pytest.fixture(scope="session")
def both(own: Application, sluice: Application, daemons: Daemons) -> Both:
    from tests.spark.applications import Both

    return Both(own, sluice, daemons)


@pytest.fixture(scope="session")
def words(directory: Path) -> str:
    """A file of 3000 words, most of them several times."""
    path = directory / "words.txt"
    lines = (f"word{number * number % 701}" for number in range(3000))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def barrier(directory: Path, request: pytest.FixtureRequest) -> Iterator[Barrier]:
    from tests.spark.barrier import Barrier

    with Barrier(directory / f"{abs(hash(request.node.name)) % 10**8}.sock") as running:
        yield running


@pytest.fixture
def revived(daemons: Daemons) -> Iterator[Daemon]:
    """The second host's TaskManager, for a test that ends it; runs and takes work afterwards."""
    yield daemons[1]
    if not daemons[1].running:
        daemons[1].start()
    elif daemons[1].status().state == "draining":
        daemons[1].undrain()
