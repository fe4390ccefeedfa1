"""The memory that control parts and unread answers take, over all connections of a process.

A connection reserves what its own *account* is about to hold and releases it later. While there is
room, each gets what it asks for. When there is none, room is taken from whoever holds most, so that
small users are served whatever large ones do:

1. The owner with the largest sum gives way; an owner is an application, or one connection that
   serves no single application. The sum of the one that asks includes what it asks for.
2. Of that owner's accounts the largest gives way.
3. If that is the account that asks, it is refused. Otherwise the account is emptied, its connection
   is told, and the search begins anew.
"""

from collections.abc import Callable
from typing import Final

from .errors import ErrorCode, SluiceError


class ControlMemoryExhausted(SluiceError):
    """The memory for control parts and unread answers of all connections is used up."""

    code = ErrorCode.LIMIT_EXCEEDED
    retryable = True


class ControlMemory:
    """Counts the memory of all accounts.

    Args:
        capacity_bytes: Most bytes that all accounts may hold together.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes: Final = capacity_bytes
        self.used_bytes = 0
        """Bytes that all accounts hold."""
        self.refused_total = 0
        """Accounts that were refused memory, or lost theirs to others."""
        self._holders: dict[ControlAccount, None] = {}
        """Accounts that hold any bytes."""

    def open(self, owner: str, on_evicted: Callable[[SluiceError], None]) -> "ControlAccount":
        """Open an account.

        Args:
            owner: The application that uses it, or a name of its own.
            on_evicted: Called with the error when the account has lost its memory to another.
        """
        return ControlAccount(self, owner, on_evicted)

    def reserve(self, account: "ControlAccount", count: int) -> None:
        """Count bytes for an account, and take room for them from the largest if there is none.

        Raises:
            ControlMemoryExhausted: The account itself is the one that would give way.
        """
        while self.used_bytes + count > self.capacity_bytes:
            largest = self._largest(account, count)
            self.refused_total += 1
            error = self._refusal(largest, count if largest is account else 0)
            if largest is account:
                raise error
            on_evicted = largest.on_evicted
            largest.close()
            on_evicted(error)
        self.used_bytes += count
        account.held_bytes += count
        self._holders[account] = None

    def release(self, account: "ControlAccount", count: int) -> None:
        """Give back bytes of an account."""
        self.used_bytes -= count
        account.held_bytes -= count
        if not account.held_bytes:
            self._holders.pop(account, None)

    def _largest(self, asking: "ControlAccount", count: int) -> "ControlAccount":
        """Find the account that gives way; among equals, not the one that asks."""
        sums: dict[str, int] = {asking.owner: count}
        for account in self._holders:
            sums[account.owner] = sums.get(account.owner, 0) + account.held_bytes
        owner = max(sums, key=lambda name: (sums[name], name != asking.owner))
        largest = asking
        most = asking.held_bytes + count if owner == asking.owner else -1
        for account in self._holders:
            if account.owner == owner and account is not asking and account.held_bytes >= most:
                largest = account
                most = account.held_bytes
        return largest

    def _refusal(self, account: "ControlAccount", count: int) -> ControlMemoryExhausted:
        return ControlMemoryExhausted(
            "The connection needs more memory for messages than the TaskManager has for all",
            value=account.held_bytes + count,
            limit=self.capacity_bytes,
            remedy="Send smaller messages, read the answers, or raise "
            "transport.max_control_memory_bytes",
        )


class ControlAccount:
    """The bytes that one connection holds. :meth:`ControlMemory.open` makes it.

    Args:
        memory: Counts them.
        owner: The application that uses it, or a name of its own.
        on_evicted: Called with the error when the account has lost its memory to another.
    """

    __slots__ = ("_memory", "held_bytes", "on_evicted", "owner")

    def __init__(
        self, memory: ControlMemory, owner: str, on_evicted: Callable[[SluiceError], None]
    ) -> None:
        self.owner = owner
        self.held_bytes = 0
        self.on_evicted = on_evicted
        self._memory: Final = memory

    def reserve(self, count: int) -> None:
        """Count bytes that are about to be held.

        Raises:
            ControlMemoryExhausted: They must not be.
        """
        self._memory.reserve(self, count)

    def release(self, count: int) -> None:
        """Give bytes back; never more than are held, since an evicted account holds none."""
        self._memory.release(self, min(count, self.held_bytes))

    def close(self) -> None:
        """Release everything and unsubscribe. Idempotent."""
        self._memory.release(self, self.held_bytes)
        self.on_evicted = _nobody


def _nobody(error: SluiceError) -> None:
    """Tell nobody: the connection is gone."""
