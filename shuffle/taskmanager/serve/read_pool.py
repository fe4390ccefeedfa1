"""The segments with which one connection reads the disk tier."""

from typing import Final

from ...memory import LocalBufferPool, NetworkBufferPool, SegmentOwner

READ_POOL_MINIMUM: Final = 1
"""Segments a connection is sure of for reads of the disk tier."""


class ReadPool:
    """The pool of one connection for reads of the disk tier; made when first needed.

    The first read outside the memory tier makes it, or the first request for a hybrid partition.

    It bounds memory: each connection has its own pool, so that a consumer that pauses holds its own
    share and no more.
    """

    def __init__(
        self,
        network_pool: NetworkBufferPool,
        name: str,
        maximum: int,
        owner: SegmentOwner | None = None,
    ) -> None:
        self._owner = owner
        self._network_pool = network_pool
        self._name = name
        self._maximum = maximum
        self._pool: LocalBufferPool | None = None

    def __call__(self) -> LocalBufferPool:
        """Return the pool.

        Raises:
            InsufficientNetworkBuffers: Not even one segment is left for it.
            SluiceError: Its owner may have no more segments.
        """
        if self._pool is None:
            self._pool = self._network_pool.create_local_pool(
                self._name, READ_POOL_MINIMUM, self._maximum, kind="read", owner=self._owner
            )
        return self._pool

    def destroy(self) -> None:
        """Destroy the pool; it takes back the segments in use later. Idempotent."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.destroy()
