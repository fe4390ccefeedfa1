"""One data process as its supervisor sees it, with programs that stand in for it."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from sluice.protocol.errors import SluiceError
from sluice.shuffle.taskmanager.process.control import Request
from sluice.shuffle.taskmanager.processes import data_process
from sluice.shuffle.taskmanager.processes.data_process import DataProcess, DataProcessEnded
from tests.support.cluster import REPOSITORY

DEADLINE_SECONDS = 60

PROGRAM = """
import socket, sys
from sluice.shuffle.taskmanager.process.control import Answer, encode, receive_first
from sluice.shuffle.taskmanager.status.status import TaskManagerStatus
sock = socket.socket(fileno=int(sys.argv[-1].partition(":")[2]))
assert receive_first(sock).config == "{}"
answers, error = int(sys.argv[1]), ""
while True:
    request = receive_first(sock)
    if answers == 0:
        continue
    answers -= 1
    status = TaskManagerStatus(taskmanager_id="tm")
    sock.sendall(encode(Answer.of(request, status, error=error)))
    error = sys.argv[2]
"""


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(data_process, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))


class Started:
    """A data process, and the numbers of its starts as it becomes ready."""

    def __init__(self, *command: str) -> None:
        self.ready: asyncio.Queue[int] = asyncio.Queue()
        self.process = DataProcess(
            1, 2, command, lambda: "{}", lambda process: self.ready.put_nowait(process.starts)
        )

    async def __aenter__(self):
        self.process.start()
        return self

    async def __aexit__(self, *_):
        self.process.kill()
        await self.process.ended()


def answering(answers: int, error: str = "") -> Started:
    return Started(sys.executable, "-c", PROGRAM, str(answers), error)


async def test_a_program_that_cannot_be_started_fails_the_start():
    async with Started("/nowhere/sluice") as started:
        with pytest.raises(DataProcessEnded, match="Data process 1 could not start: FileNotFound"):
            await asyncio.wait_for(started.process.first_start, DEADLINE_SECONDS)


async def test_a_program_that_ends_before_it_serves_fails_the_start():
    async with Started(sys.executable, "-c", "import sys; sys.exit(3)") as started:
        with pytest.raises(DataProcessEnded, match="its exit code was 3"):
            await asyncio.wait_for(started.process.first_start, DEADLINE_SECONDS)


async def test_a_start_that_hangs_is_killed(monkeypatch):
    monkeypatch.setattr(data_process, "START_SECONDS", 0.01)
    async with answering(0) as started:
        with pytest.raises(DataProcessEnded, match="its exit code was -9"):
            await asyncio.wait_for(started.process.first_start, DEADLINE_SECONDS)


async def test_a_process_that_answers_nothing_for_long_is_replaced(monkeypatch):
    monkeypatch.setattr(data_process, "SILENT_SECONDS", 0.0)
    async with answering(1) as started:
        assert await asyncio.wait_for(started.ready.get(), DEADLINE_SECONDS) == 1
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await started.process.ask(Request(), 0.01)
            assert started.process.is_silent
        assert await asyncio.wait_for(started.ready.get(), DEADLINE_SECONDS) == 2
        assert not started.process.is_silent
        assert started.process.last_exit == "its exit code was -9"


async def test_a_process_that_hangs_is_replaced_without_a_request_for_its_status(monkeypatch):
    monkeypatch.setattr(data_process, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(data_process, "SILENT_SECONDS", 0.0)
    async with answering(1) as started:
        assert await asyncio.wait_for(started.ready.get(), DEADLINE_SECONDS) == 1
        assert await asyncio.wait_for(started.ready.get(), DEADLINE_SECONDS) == 2
        assert started.process.last_exit == "its exit code was -9"


async def test_a_request_that_fails_says_why():
    async with answering(2, "no room") as started:
        await asyncio.wait_for(started.ready.get(), DEADLINE_SECONDS)
        with pytest.raises(SluiceError, match="Data process 1: no room"):
            await started.process.ask(Request(), DEADLINE_SECONDS)


async def test_a_process_that_is_ending_gets_no_signal(tmp_path):
    """A service manager has sent it the first one: the next would end it at once."""
    goes_on = tmp_path / "goes_on"
    os.mkfifo(goes_on)
    leaves = PROGRAM.replace("continue", "break") + "sock.close()\nopen(sys.argv[2]).readline()"
    async with Started(sys.executable, "-c", leaves, "1", str(goes_on)) as started:
        await asyncio.wait_for(started.ready.get(), DEADLINE_SECONDS)
        with pytest.raises(DataProcessEnded):
            await started.process.ask(Request(), DEADLINE_SECONDS)
        started.process.stop()
        with goes_on.open("r+b", buffering=0) as pipe:  # which waits for no reader
            pipe.write(b"\n")
            await asyncio.wait_for(started.process.ended(), DEADLINE_SECONDS)
        assert started.process.last_exit == "its exit code was 0"
