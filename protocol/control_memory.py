"""Bounds the memory for control parts and unread answers of all connections of a process.

A connection reserves memory in its *account* before it uses it, and releases it later. When the
capacity is used up, the largest user is evicted, so that a large user cannot starve small ones:

1. Pick the owner with the largest sum; an owner is a tenant, or one connection that serves no
   single application. The sum of the requesting owner includes the request.
2. Pick the largest of that owner's accounts.
3. If it is the requesting account, refuse the request. Otherwise empty the account, notify its
   connection, and start again.
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
        capacity_bytes: Limit of the bytes of all accounts together.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes: Final = capacity_bytes
        self.used_bytes = 0
        """Bytes that all accounts hold."""
        self.refused_total = 0
        """Refused requests and evicted accounts."""
        self._holders: dict[ControlAccount, None] = {}
        """Accounts that hold any bytes."""

    def open(self, owner: str, on_evicted: Callable[[SluiceError], None]) -> "ControlAccount":
        """Open an account.

        Args:
            owner: The tenant that uses it, or a unique name.
            on_evicted: Called with the error when the account is evicted.
        """
        return ControlAccount(self, owner, on_evicted)

    def reserve(self, account: "ControlAccount", count: int) -> None:
        """Reserve bytes for an account; evict the largest accounts if there is no room.

        Raises:
            ControlMemoryExhausted: The account itself is the largest.
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
        """Release bytes of an account."""
        self.used_bytes -= count
        account.held_bytes -= count
        if not account.held_bytes:
            self._holders.pop(account, None)

    def _largest(self, asking: "ControlAccount", count: int) -> "ControlAccount":
        """Find the account to evict; among equals, not the requesting one."""
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
        memory: The budget that counts them.
        owner: The tenant that uses it, or a unique name.
        on_evicted: Called with the error when the account is evicted.
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
        """Reserve bytes before they are used.

        Raises:
            ControlMemoryExhausted: There is no room for them.
        """
        self._memory.reserve(self, count)

    def release(self, count: int) -> None:
        """Release bytes, at most those held: an evicted account holds none."""
        self._memory.release(self, min(count, self.held_bytes))

    def close(self) -> None:
        """Release everything and unsubscribe. Idempotent."""
        self._memory.release(self, self.held_bytes)
        self.on_evicted = _nobody


def _nobody(error: SluiceError) -> None:
    """Ignore: the connection is closed."""
