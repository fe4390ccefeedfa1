"""Runs asyncio tests on a matrix of event loops, and checks that they leave nothing behind.

An asyncio test runs on uvloop, as TaskManagers do. What uses the loop itself, and every test with
``--extended``, runs on plain asyncio in debug mode too (on Python 3.11 it copies what is written
and so hides early reuse of a buffer; uvloop does not), and from Python 3.12 on once with an eager
task factory, as an application may have one. A test for which one loop is enough says
``@pytest.mark.asyncio(loop_factories=["uvloop"])``.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING

import hypothesis
import pytest
import uvloop

from sluice.shuffle.taskmanager.status.status import COMPILED, data_path
from tests.support.extended import runs_on_every_loop
from tests.support.remote import directory_place, s3_place
from tests.support.s3 import CREDENTIALS, SERVER, is_connection, s3_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.remote import Place
    from tests.support.s3 import S3Server

THREAD_END_TIMEOUT_SECONDS = 20.0
"""Time that threads told to stop get after a test; they need microseconds."""

ASYNC_TEST_TIMEOUT_SECONDS = 200.0
"""For an asyncio test without its fixtures; less than the timeout of pytest, which raises in
whatever runs: in a callback of uvloop, which logs the exception and goes on."""

LOOP_TURNS = 5
"""Turns of the loop after a test in which cancelled tasks may end."""

# A shared machine makes no promise about how long one example takes; each test has its timeout.
hypothesis.settings.register_profile("sluice", deadline=None, print_blob=True)
hypothesis.settings.load_profile("sluice")


# Drivers that tests start by spark-submit end before the JVM's second compiler has paid for itself.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--one-loop", action="store_true", help="run asyncio tests on uvloop only (make quick)"
    )
    parser.addoption(
        "--extended",
        action="store_true",
        help="run what is marked extended, and asyncio tests on every event loop (make test-all)",
    )


def pytest_configure(config: pytest.Config) -> None:
    wanted = os.environ.get("EXPECTED_DATA_PATH", data_path())
    if data_path() != wanted:
        pytest.exit(f"the data path is {data_path()} and not {wanted}: {sys.path}", returncode=2)


def pytest_report_header(config: pytest.Config) -> str:
    return f"data path: {data_path()}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is extended, and what replaces a part of a module that is compiled."""
    if not config.getoption("extended"):
        extended = [item for item in items if item.get_closest_marker("extended")]
        config.hook.pytest_deselected(items=extended)
        items[:] = [item for item in items if item not in extended]
    if data_path() == COMPILED:
        skip = pytest.mark.skip(reason="replaces a part of a compiled module")
        for item in items:
            if item.get_closest_marker("interpreted"):
                item.add_marker(skip)


class DebugLoop(asyncio.SelectorEventLoop):
    """A plain asyncio loop that checks threads and notices coroutines never awaited."""

    def set_debug(self, enabled: bool) -> None:
        super().set_debug(True)  # pytest-asyncio turns debug mode off on the loops it is given


def eager_loop() -> asyncio.AbstractEventLoop:
    """Return a plain asyncio loop on which a new task runs at once, up to its first wait."""
    loop = asyncio.new_event_loop()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009 - Python 3.12
    return loop


def pytest_asyncio_loop_factories(config, item):
    everywhere = config.getoption("extended") or runs_on_every_loop(item.path)
    if config.getoption("one_loop") or not everywhere:
        return {"uvloop": uvloop.new_event_loop}
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
        "asyncio-debug": DebugLoop,
        "uvloop": uvloop.new_event_loop,
    }
    if sys.version_info >= (3, 12):
        factories["asyncio-eager"] = eager_loop
    return factories


@pytest.fixture(scope="session", autouse=True)
def _process_wide_resources() -> None:
    """Open what libuv opens once per process, so that no test seems to leak it."""
    uvloop.new_event_loop().close()


@pytest.fixture(autouse=True)
def _no_resource_leaks(
    request: pytest.FixtureRequest, _process_wide_resources: None
) -> Iterator[None]:
    """Fail a test that leaves file descriptors open or threads running.

    Spark tests are exempt: PySpark's gateway keeps connections and threads for the session.
    """
    if request.node.get_closest_marker("spark"):
        yield
        return
    files, threads = _open_files(), set(threading.enumerate())
    yield
    started = [thread for thread in threading.enumerate() if thread not in threads]
    for thread in started:
        thread.join(THREAD_END_TIMEOUT_SECONDS)
    running = [thread.name for thread in started if thread.is_alive()]
    if running:
        pytest.fail(f"threads left running: {running}")
    left = _open_files().keys() - files.keys()
    if left:
        gc.collect()  # what only a reference cycle keeps open is about to be closed
        left = _open_files().keys() - files.keys()
    deadline = time.monotonic() + THREAD_END_TIMEOUT_SECONDS
    while left and "obstore" in sys.modules and time.monotonic() < deadline:
        left = {fd for fd in left if not is_connection(fd)}
        time.sleep(0.005)  # its threads close files in their own time
        left &= _open_files().keys() - files.keys()
    left = {fd for fd in left if not is_connection(fd)}
    if left:
        now = _open_files()
        pytest.fail(f"file descriptors left open: { {fd: now.get(fd) for fd in sorted(left)} }")


@pytest.fixture(autouse=True)
def _no_task_leaks(request: pytest.FixtureRequest, _no_resource_leaks: None) -> Iterator[None]:
    """Fail an asyncio test that leaves tasks running when all its fixtures are torn down."""
    runner_name = "_function_scoped_runner"  # pytest-asyncio's; its end would cancel the tasks
    if runner_name not in request.fixturenames:
        yield
        return
    runner: asyncio.Runner = request.getfixturevalue(runner_name)
    loop = runner.get_loop()
    timeout = loop.call_later(ASYNC_TEST_TIMEOUT_SECONDS, _cancel_test, request.node, loop)
    yield
    timeout.cancel()
    if asyncio.all_tasks(loop):
        runner.run(_turn_loop())
    left = [task.get_coro() for task in asyncio.all_tasks(loop)]
    if left:
        pytest.fail(f"tasks left running: {left}")


def _cancel_test(item: pytest.Function, loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the task of a test, so that its failure shows where it waits."""
    for task in asyncio.all_tasks(loop):
        if getattr(task.get_coro(), "__name__", None) == item.function.__name__:
            task.cancel(f"the test took longer than {ASYNC_TEST_TIMEOUT_SECONDS:g} s")


async def _turn_loop() -> None:
    for _ in range(LOOP_TURNS):
        await asyncio.sleep(0)


def _open_files() -> dict[int, str]:
    """Return the open file descriptors and what each one is."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the descriptor of this very listing
            continue
    return found


@pytest.fixture(scope="session")
def object_store() -> None:
    """Start the threads of ``obstore``, once per process, so that no test seems to leak them."""
    obstore = pytest.importorskip("obstore")
    with tempfile.TemporaryDirectory() as directory:
        obstore.put(obstore.store.LocalStore(prefix=directory), "first", b"")


@pytest.fixture(scope="session")
def s3(object_store: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Run a real S3 server; its credentials are in the environment meanwhile."""
    if not SERVER.exists():
        pytest.skip("there is no S3 server: make s3-server")
    before = {name: os.environ.get(name) for name in CREDENTIALS}
    os.environ.update(CREDENTIALS)
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


@pytest.fixture
def place(request: pytest.FixtureRequest, object_store: None, tmp_path: Path) -> Place:
    """Return a place for a remote tier: ``both_places`` of tests/support/remote.py."""
    if request.param == "directory":
        return directory_place(tmp_path)
    return s3_place(request.getfixturevalue("s3"))
