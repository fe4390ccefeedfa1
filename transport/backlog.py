"""Limits the answers that the other side of a connection leaves unread.

Messages without a payload are not delayed: they are answers and notices of a few bytes. The loop
keeps them for a peer that does not read. They are counted while the write side is not writable, and
a peer is dropped if it leaves too much unread:

- more bytes than its side of the connection may leave unread,
- more Pongs than a working peer waits for,
- bytes for which the budget of all connections together has no room.
"""

from collections.abc import Callable
from typing import Final

from ..protocol.control_memory import ControlAccount, ControlMemory, ControlMemoryExhausted
from ..protocol.errors import SluiceError
from ..protocol.identity import tenant_of
from .errors import ConnectionLost
from .write_side import WriteSide

MAX_UNSENT_REQUESTS_BYTES: Final = 64 * 1024 * 1024
"""Most bytes of requests that the accepting side may leave unread. A burst of requests by 64 tasks
for 100,000 map attempts takes half of it."""

MAX_UNREAD_ANSWERS_BYTES: Final = 16 * 1024 * 1024
"""Most bytes of answers that the connecting side may leave unread. A gate with MAX_GATE_CHANNELS
that fail all at once takes a third of it."""

MAX_UNREAD_PONGS: Final = 1024
"""Most Pongs that a peer may leave unread. A client that waits for each Pong has one; with a Ping
every ten seconds it takes three hours."""

_STEP_BYTES: Final = 4096
"""Unread bytes are reserved in steps of this size, so that few messages access the budget."""


class Backlog:
    """Counts the unread bytes of one connection.

    Args:
        accepted: Whether the other side connected, so that it gets answers.
    """

    __slots__ = ("_account", "_most_bytes", "_pongs", "_reserved_bytes", "pings")

    def __init__(self, *, accepted: bool) -> None:
        self._account: ControlAccount | None = None
        self._most_bytes = MAX_UNREAD_ANSWERS_BYTES if accepted else MAX_UNSENT_REQUESTS_BYTES
        self._reserved_bytes = 0
        self._pongs = 0
        self.pings = 0
        """Pings that were answered."""

    def count_in(
        self, memory: ControlMemory, owner: str, on_evicted: Callable[[SluiceError], None]
    ) -> ControlAccount:
        """Open the connection's account in a budget of several connections.

        Args:
            memory: The budget.
            owner: As for :meth:`ControlMemory.open`.
            on_evicted: As for :meth:`ControlMemory.open`.
        """
        self._account = account = memory.open(owner, on_evicted)
        return account

    def serve(self, application_id: str) -> None:
        """Count for an application's tenant, if the connection serves a single application."""
        if self._account is not None and application_id:
            self._account.owner = tenant_of(application_id)

    def close(self) -> None:
        """Release everything and remove the connection from the budget. Idempotent."""
        if self._account is not None:
            self._account.close()
        self._reserved_bytes = 0

    def pong(self, out: WriteSide) -> None:
        """Count a Pong that is about to be written."""
        self.pings += 1
        if not out.writable:
            self._pongs += 1

    def refusal(self, out: WriteSide) -> SluiceError | None:
        """Return the error if too much is unread; call this after each write.

        Args:
            out: The write side, which is not writable.
        """
        unread = out.backlog_bytes
        if unread > self._most_bytes:
            return _deaf("bytes of answers", unread, self._most_bytes)
        if self._pongs > MAX_UNREAD_PONGS:
            return _deaf("Pongs", self._pongs, MAX_UNREAD_PONGS)
        if unread > self._reserved_bytes and self._account is not None:
            step = max(_STEP_BYTES, unread - self._reserved_bytes)
            try:
                self._account.reserve(step)
            except ControlMemoryExhausted as error:
                return error.with_traceback(None)
            self._reserved_bytes += step
        return None

    def cleared(self) -> None:
        """Reset the counts: the other side has read, and the write side is writable."""
        self._pongs = 0
        if self._reserved_bytes and self._account is not None:
            self._account.release(self._reserved_bytes)
        self._reserved_bytes = 0


def _deaf(what: str, value: int, limit: int) -> ConnectionLost:
    return ConnectionLost(
        f"The connection is dropped: the other side does not read, too many {what} wait",
        value=value,
        limit=limit,
        remedy="Read the answers while sending requests",
    )
