"""What a TaskManager has left when an application is over, in good order or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.spark.applications import LOCAL_MASTER, Application, sluice_settings
from tests.spark.barrier import Barrier
from tests.spark.daemons import Daemons, leftovers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from pathlib import Path

EXPIRY_SECONDS = 2.0
END_SECONDS = 30.0
SLOTS = 2
LARGE = {"record_bytes": 4_000}
"""Each reducer gets 13 MB, more than all buffers on its way hold."""

IN_USE = {"partitions", "applications", "gates", "connections", "channels", "bytes stored"}


@pytest.fixture(scope="module")
def lonely(directory: Path) -> Iterator[Daemons]:
    """One TaskManager that nobody else uses."""
    with Daemons(
        directory / "lone", hosts=("127.0.0.1",), expiry_seconds=EXPIRY_SECONDS
    ) as running:
        yield running


def test_nothing_is_left_when_the_application_has_ended(directory: Path, lonely: Daemons):
    with _application("ended", directory, lonely) as application:
        with Barrier(directory / "ended-barrier.sock") as barrier:
            running = _until_it_reads(application, barrier)
            assert leftovers(lonely[0].status()).keys() >= IN_USE
            barrier.release()
            running.result(END_SECONDS)
        application.finish()
        status = lonely[0].wait_until(lambda status: not leftovers(status), END_SECONDS)
    assert status.counters.applications_expired == 0


def test_nothing_is_left_when_the_driver_was_killed(directory: Path, lonely: Daemons):
    with (
        _application("killed", directory, lonely) as application,
        Barrier(directory / "killed-barrier.sock") as barrier,
    ):
        running = _until_it_reads(application, barrier)
        assert leftovers(lonely[0].status()).keys() >= IN_USE
        application.kill()
        status = lonely[0].wait_until(
            lambda status: not leftovers(status), EXPIRY_SECONDS + END_SECONDS
        )
        assert status.counters.applications_expired == 1
        assert running.exception(END_SECONDS) is not None


def _application(name: str, directory: Path, daemons: Daemons) -> Application:
    return Application(name, LOCAL_MASTER, directory, sluice_settings(daemons))


def _until_it_reads(application: Application, barrier: Barrier) -> Future[Path]:
    """Start a job whose reduce tasks stop in the middle of reading, and wait for that."""
    running = application.start("reduce_waits_inside", barrier=str(barrier.path), **LARGE)
    barrier.wait("reduce", SLOTS)
    return running
