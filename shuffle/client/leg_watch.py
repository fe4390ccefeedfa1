"""Ends a connection of a client whose TaskManager is silent.

The kernel ends a TCP connection to a host that is gone, but a TaskManager that hangs or is stopped
keeps its connections, and a Unix socket has no timeout at all. So a TaskManager that a task waits
for is pinged after half of the longest silence, and has the other half to answer.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from ...protocol.schema import Ping
from ...transport.connection import Connection
from ...transport.errors import ConnectionLost

SLICES: Final = 8
"""A silence is as many timers in a row without a byte: a loop that was late by itself is one."""


class TaskManagerSilent(ConnectionLost):
    """The TaskManager did not answer a ping.

    Args:
        remote: The other end of the connection.
        taskmanager_id: The TaskManager.
        silence_seconds: The longest silence.
    """

    def __init__(self, remote: str, taskmanager_id: str, silence_seconds: float) -> None:
        super().__init__(
            "The TaskManager was silent and did not answer a ping",
            value=remote,
            limit=f"{silence_seconds:g} s",
            remedy="Check whether it hangs, or raise silence_timeout_seconds",
        )
        self.taskmanager_id = taskmanager_id


class LegWatch:
    """Watches one connection until it is closed.

    Args:
        connection: The open connection.
        taskmanager_id: The TaskManager at its other end.
        silence_seconds: The longest silence while something is waited for.
        is_waiting: Returns whether anything is.
        on_silent: Called before the connection is dropped.
    """

    def __init__(
        self,
        connection: Connection,
        taskmanager_id: str,
        silence_seconds: float,
        is_waiting: Callable[[], bool],
        on_silent: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._taskmanager_id = taskmanager_id
        self._silence_seconds = silence_seconds
        self._is_waiting = is_waiting
        self._on_silent = on_silent
        self._seen_bytes = connection.bytes_in
        self._silent = 0
        self._nonce = 0
        self._loop = asyncio.get_running_loop()
        self._timer = self._next()

    def close(self) -> None:
        """Stop watching. Idempotent."""
        self._timer.cancel()

    def _next(self) -> asyncio.TimerHandle:
        return self._loop.call_later(self._silence_seconds / SLICES, self._look)

    def _look(self) -> None:
        connection = self._connection
        if connection.closing:
            return
        self._timer = self._next()
        received = connection.bytes_in
        if received != self._seen_bytes or connection.reading_paused or not self._is_waiting():
            self._seen_bytes = received
            self._silent = 0
            return
        self._silent += 1
        if self._silent == SLICES // 2:
            self._nonce += 1
            connection.send(Ping(self._nonce))
        elif self._silent == SLICES:
            self.close()
            self._on_silent()
            remote = connection.remote
            connection.abort(TaskManagerSilent(remote, self._taskmanager_id, self._silence_seconds))
