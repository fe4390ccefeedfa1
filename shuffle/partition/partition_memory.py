"""The memory of one result partition: taking it, waiting for it, and how long that took."""

from time import monotonic
from typing import Final

from shuffle.memory import LocalBufferPool, NetworkBuffer, NetworkBufferTimeout

PLACE_IN_QUEUE_SECONDS: Final = 3600.0
"""After this a waiting writer queues again, so that no wait is without a deadline."""


class PartitionMemory:
    """A partition's pool, as its writer uses it.

    Args:
        pool: The partition owns it.

    Attributes:
        soft_back_pressured_seconds: Time spent in :meth:`wait_available`, between records.
        hard_back_pressured_seconds: Time spent in :meth:`wait`, within a record.
    """

    __slots__ = ("hard_back_pressured_seconds", "pool", "soft_back_pressured_seconds")

    def __init__(self, pool: LocalBufferPool) -> None:
        self.pool: Final = pool
        self.soft_back_pressured_seconds = 0.0
        self.hard_back_pressured_seconds = 0.0

    async def wait(self, channel: int) -> NetworkBuffer:
        """Take a buffer, waiting as long as it takes.

        Args:
            channel: Subpartition to charge; negative: nobody.

        Raises:
            PoolDestroyed: The pool is gone, or went while waiting.

        Cancellation: safe, nothing is taken.
        """
        began = monotonic()
        try:
            while True:
                try:
                    segment = await self.pool.request_segment(PLACE_IN_QUEUE_SECONDS, channel)
                except NetworkBufferTimeout:
                    continue  # back pressure may last
                return self.pool.buffer_of(segment, 0)
        finally:
            self.hard_back_pressured_seconds += monotonic() - began

    async def wait_available(self) -> None:
        """Wait until the pool is available, as long as it takes.

        Raises:
            PoolDestroyed: The pool is gone, or went while waiting.

        Cancellation: safe.
        """
        began = monotonic()
        try:
            await self.pool.wait_available()
        finally:
            self.soft_back_pressured_seconds += monotonic() - began
