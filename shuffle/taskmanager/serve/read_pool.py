"""The memory that one connection reads the disk tier with."""

from sluice.shuffle.memory import LocalBufferPool, NetworkBufferPool

READ_POOL_MINIMUM = 1
"""Segments a connection is sure of for reads of the disk tier."""


class ReadPool:
    """The pool of one connection for reads of the disk tier; made when first needed.

    A pool for each connection: a consumer that does not read holds its own share, not all.
    """

    def __init__(self, network_pool: NetworkBufferPool, name: str, maximum: int) -> None:
        self._network_pool = network_pool
        self._name = name
        self._maximum = maximum
        self._pool: LocalBufferPool | None = None

    def __call__(self) -> LocalBufferPool:
        """Return the pool.

        Raises:
            InsufficientNetworkBuffers: Not even one segment is left for it.
        """
        if self._pool is None:
            self._pool = self._network_pool.create_local_pool(
                self._name, READ_POOL_MINIMUM, self._maximum, kind="read"
            )
        return self._pool

    def destroy(self) -> None:
        """Give the pool up; segments that are out follow. Idempotent."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.destroy()
