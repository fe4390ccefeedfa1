"""Connections over which copies are written, by application and TaskManager."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from ....protocol.errors import ErrorCode, SluiceError
from ....transport.address import Address
from ....transport.connection_pool import ConnectionPool
from ...legs.producer_leg import ProducerLeg
from ...names import TaskManagerPlace


class CopierConnections:
    """One connection to each TaskManager for each application.

    A connection keeps the application alive at the other TaskManager. It is open while the
    application has clients here, and for a short time after.

    Args:
        connect: Connects to an address for an application.
        is_alive: Returns whether an application has clients here, or had them a short time ago.
    """

    def __init__(
        self,
        connect: Callable[[Address, str], Awaitable[ProducerLeg]],
        is_alive: Callable[[str], bool],
    ) -> None:
        self._connect: Final = connect
        self._is_alive: Final = is_alive
        self._pools: dict[str, ConnectionPool[ProducerLeg]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._pools.values()))

    async def acquire(self, place: TaskManagerPlace, application_id: str) -> ProducerLeg:
        """Return the connection to a TaskManager for an application.

        It is not released: it is closed when the application ends.

        Raises:
            TASKMANAGER_MISMATCH: Another TaskManager answers at the place.
            SluiceError: The TaskManager does not answer, or refuses.

        Cancellation: safe.
        """
        pool = self._pools.get(application_id)
        if pool is None:

            async def connect(address: Address) -> ProducerLeg:
                return await self._connect(address, application_id)

            pool = self._pools[application_id] = ConnectionPool(connect)
        leg = await pool.acquire(place.address)
        if leg.taskmanager_id != place.taskmanager_id:
            leg.close()
            raise SluiceError(
                "Another TaskManager answers at the place of a copy",
                code=ErrorCode.TASKMANAGER_MISMATCH,
                value=leg.taskmanager_id,
                limit=str(place),
            )
        return leg

    def end_application(self, application_id: str) -> None:
        """Close the connections of an application."""
        pool = self._pools.pop(application_id, None)
        if pool is not None:
            pool.close()

    def close_idle(self, application_ids: Iterable[str]) -> None:
        """Close the connections of those applications that have no clients here."""
        for application_id in application_ids:
            if not self._is_alive(application_id):
                self.end_application(application_id)

    def close(self) -> None:
        """Close all connections. Idempotent."""
        for application_id in list(self._pools):
            self.end_application(application_id)
