"""Two TaskManagers of one cluster for all attacks; each test checks that they are unharmed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.attack.hostile import HOSTILE
from tests.attack.rates import RATES
from tests.attack.rig import (
    ALICE,
    CLIENTS,
    Application,
    AttackedDaemon,
    Cluster,
    application,
    new_name,
    write_secret,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

HANDSHAKE_TIMEOUT_SECONDS = 5


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("attack"))  # one worker starts the daemons


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the rates of the innocent applications, if they were taken."""
    if RATES:
        terminalreporter.section("an innocent application beside an attack, over a quiet one")
        for name, rates in RATES.items():
            for measure, ratio in rates._asdict().items():
                terminalreporter.line(
                    f"{name:26} {measure:8} {ratio.median:.2f} ({ratio.least:.2f} to"
                    f" {ratio.largest:.2f})" + ("" if ratio.is_kept else "   not kept")
                )


@pytest.fixture(scope="package")
def secret_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_secret(tmp_path_factory.mktemp("secret") / "cluster.secret")


@pytest.fixture(scope="package")
def taskmanagers(tmp_path_factory: pytest.TempPathFactory, secret_file: Path) -> Iterator[Cluster]:
    started: list[AttackedDaemon] = []
    try:
        for _ in range(2):
            started.append(
                AttackedDaemon(
                    tmp_path_factory.mktemp("tm"),
                    cluster_secret_files=secret_file,
                    handshake_timeout_seconds=HANDSHAKE_TIMEOUT_SECONDS,
                    region_areas_bytes="4 MiB",
                    disk_quota_bytes="32 MiB",
                    min_free_bytes=0,
                ).start()
            )
        yield Cluster(*started)
    finally:
        for daemon in started:
            daemon.end()


@pytest.fixture
def victim() -> Application:
    """An application of Alice, under a name of its own."""
    return application(ALICE, new_name())


@pytest.fixture
async def clients() -> AsyncIterator[None]:
    """Drop the connections that a failing test leaves open: a loop cannot end with them."""
    yield
    left = [client for client in CLIENTS if hasattr(client, "ack") and client.lost is None]
    CLIENTS.clear()
    for client in left:
        client.vanish()
        await client.until_lost()
    for hostile in HOSTILE:
        hostile.abort()
    HOSTILE.clear()
    await asyncio.sleep(0)


@pytest.fixture
def cluster(taskmanagers: Cluster, victim: Application, clients: None) -> Iterator[Cluster]:
    """Give the TaskManagers to a test; afterwards they serve, and their logs have no secrets."""
    yield taskmanagers
    for daemon in taskmanagers:
        assert daemon.running
        daemon.check_log(victim)


@pytest.fixture
def start(clients: None) -> Iterator[Callable[..., AttackedDaemon]]:
    """Start a TaskManager of the test's own; it is killed at the end."""
    started: list[AttackedDaemon] = []

    def begin(directory: Path, **keys: object) -> AttackedDaemon:
        started.append(AttackedDaemon(directory, **keys).start())
        return started[-1]

    yield begin
    for daemon in started:
        daemon.end()
        daemon.check_log()
