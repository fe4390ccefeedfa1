"""Limits the bytes per second of background reads and copies."""

import asyncio


class RateLimit:
    """Limits the bytes per second of all its users together.

    Args:
        bytes_per_second: The rate.
    """

    def __init__(self, bytes_per_second: int) -> None:
        self._bytes_per_second = bytes_per_second
        self._free_at = 0.0

    async def take(self, length: int) -> None:
        """Wait until the rate allows these bytes.

        Cancellation: safe; the bytes are counted anyway.
        """
        now = asyncio.get_running_loop().time()
        wait_seconds = self._free_at - now
        self._free_at = max(self._free_at, now) + length / self._bytes_per_second
        if wait_seconds > 0:
            await asyncio.sleep(wait_seconds)  # the rate is a time
