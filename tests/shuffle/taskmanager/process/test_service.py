"""SIGHUP reloads files in a thread, once for each change."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

from sluice.shuffle.taskmanager.config.taskmanager_config import TaskManagerConfig
from sluice.shuffle.taskmanager.process.service import _Reloads
from sluice.transport.access import Access


class Loaded:
    """A TaskManager that only has quotas, and files that take as long to read as a test wants."""

    def __init__(self, state: str = "ready") -> None:
        self.quotas: list[object] = []
        self.threads: list[threading.Thread] = []
        self.reading = asyncio.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self._loop = asyncio.get_running_loop()
        environment = SimpleNamespace(
            listener=SimpleNamespace(tls=None, close_revoked=lambda: None),
            access=Access(),
        )
        taskmanager: Any = SimpleNamespace(
            state=state, environment=environment, apply=self.quotas.append
        )
        self.reloads = _Reloads(taskmanager, self._load)

    def _load(self) -> TaskManagerConfig:
        self.threads.append(threading.current_thread())
        self._loop.call_soon_threadsafe(self.reading.release)
        self.may_end.acquire()
        return TaskManagerConfig()

    async def end(self) -> None:
        assert self.reloads._task is not None
        await self.reloads._task


async def test_files_are_read_in_a_thread_while_the_loop_goes_on() -> None:
    loaded = Loaded()
    loaded.reloads.request()
    await loaded.reading.acquire()
    assert loaded.threads[0] is not threading.current_thread()
    loaded.may_end.release()
    await loaded.end()
    assert len(loaded.quotas) == 1


async def test_signals_while_files_are_read_have_them_read_once_more() -> None:
    loaded = Loaded()
    loaded.reloads.request()
    await loaded.reading.acquire()
    loaded.reloads.request()
    loaded.reloads.request()
    loaded.may_end.release(2)
    await loaded.end()
    assert len(loaded.threads) == len(loaded.quotas) == 2


async def test_a_reload_before_the_first_read_is_ignored() -> None:
    loaded = Loaded("starting")
    loaded.reloads.request()
    assert loaded.reloads._task is None
