"""Makes one copy of one map output: connects, sends, and judges what came of it."""

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from ....protocol.errors import ErrorCode, SluiceError
from ....protocol.remote_error import RemoteError
from ....protocol.schema import CopyOf
from ....transport.address import Address
from ....transport.connection_pool import ConnectionPool
from ....transport.errors import TaskManagerMismatch
from ...counters import Counters
from ...errors import failure_of
from ...legs.producer_leg import ProducerLeg
from ...names import TaskManagerPlace
from ..cluster.known_taskmanagers import address_of, is_absence
from ..store.errors import StorageError
from ..store.shuffle_store import ShuffleStore
from ..store.stored_outputs import MapOutput
from .copier import Pace, copy_output

logger = logging.getLogger(__name__)

PASSED_OVER_SECONDS: Final = 5.0
"""Time for which a TaskManager that refused a copy is not asked for another one."""

MAX_PASSED_OVER: Final = 4096
"""Refusals remembered, the latest ones."""

ConnectCopier = Callable[[Address, str], Awaitable[ProducerLeg]]


class Outcome(enum.Enum):
    """The result of an attempt to make a copy."""

    MADE = "made"
    FOUND = "found"
    """It was there already."""
    REFUSED = "refused"
    """The other TaskManager drains, is full, or cannot take it for another reason."""
    ABSENT = "absent"
    """The other TaskManager is not there."""
    FAILED = "failed"
    """The map output cannot be read here, or is damaged."""

    @property
    def is_there(self) -> bool:
        """Whether the other TaskManager has the map output now."""
        return self in (Outcome.MADE, Outcome.FOUND)


class CopyMaker:
    """Makes copies, over one connection to each TaskManager for each application.

    A connection is kept while the application has clients here, and for a while after, for it keeps
    the application alive there.

    Args:
        store: Has the map outputs.
        connect: Connects to an address for an application.
        own_id: The id of this TaskManager.
        counters: Its counters.
    """

    def __init__(
        self, store: ShuffleStore, connect: ConnectCopier, own_id: str, counters: Counters
    ) -> None:
        self._store = store
        self._connect = connect
        self._own_id = own_id
        self._counters = counters
        self._pools: dict[str, ConnectionPool[ProducerLeg]] = {}
        self._passed_over: dict[tuple[str, str], float] = {}
        self.last_refusal: str = ""
        """The reason why a copy was not made last."""

    @property
    def connections(self) -> int:
        """Connections that are open or being made."""
        return sum(map(len, self._pools.values()))

    def may_ask(self, taskmanager_id: str, application_id: str) -> bool:
        """Tell whether a TaskManager has not refused a copy of the application lately."""
        until = self._passed_over.get((taskmanager_id, application_id), 0.0)
        return until <= asyncio.get_running_loop().time()

    def ask_again(self, taskmanager_id: str) -> None:
        """Forget what a TaskManager has refused."""
        for key in [key for key in self._passed_over if key[0] == taskmanager_id]:
            del self._passed_over[key]

    async def make(
        self,
        output: MapOutput,
        place: TaskManagerPlace,
        pace: Pace | None = None,
        *,
        moved: bool = False,
    ) -> Outcome:
        """Copy a map output to a TaskManager, unless it has it already.

        Args:
            output: The map output.
            place: The TaskManager.
            pace: Waits until a number of bytes may be sent; the TaskManager is then asked first
                whether it has them.
            moved: Whether this TaskManager will not keep its own.

        Cancellation: safe; the copy is given up.
        """
        application_id = output.key.application_id
        # The one that sends it vouches for it, also where it stands in for another one.
        copy_of = CopyOf(0, self._own_id, output.replicas, moved)
        try:
            with output.kept():
                leg = await self._leg(place, application_id)
                sent = await copy_output(leg, self._store, output, copy_of, pace)
        except Exception as error:  # noqa: BLE001
            return self._failed(output, place, failure_of(error, "copying a map output"))
        if not sent:
            self._counters.copies_found += 1
            return Outcome.FOUND
        self._counters.copies_made += 1
        self._counters.copy_bytes_out += output.total_bytes
        return Outcome.MADE

    def end_application(self, application_id: str) -> None:
        """Close the connections of an application."""
        pool = self._pools.pop(application_id, None)
        if pool is not None:
            pool.close()

    def applications(self) -> list[str]:
        """Return the applications that have connections."""
        return list(self._pools)

    def close(self) -> None:
        """Close all connections. Idempotent."""
        for application_id in list(self._pools):
            self.end_application(application_id)

    async def _leg(self, place: TaskManagerPlace, application_id: str) -> ProducerLeg:
        """Return the connection to a TaskManager for an application.

        Raises:
            TaskManagerMismatch: Another TaskManager answers there.
            SluiceError: It does not answer, or refuses.
        """
        pool = self._pools.get(application_id)
        if pool is None:

            async def connect(address: Address) -> ProducerLeg:
                return await self._connect(address, application_id)

            pool = self._pools[application_id] = ConnectionPool(connect)
        # Never given back: the pool closes it when the application ends.
        leg = await pool.acquire(address_of(place))
        if leg.taskmanager_id != place.taskmanager_id:
            leg.close()
            raise TaskManagerMismatch(
                "Another TaskManager answers at the place of a copy",
                value=leg.taskmanager_id,
                limit=str(place),
            )
        return leg

    def _failed(self, output: MapOutput, place: TaskManagerPlace, error: SluiceError) -> Outcome:
        self._counters.copies_failed += 1
        self.last_refusal = f"{place}: {error.code.name}: {error.message}"
        logger.info("no copy of %s at %s: %s", output.map_attempt_id, place, error)
        if is_absence(error):
            return Outcome.ABSENT
        is_own = not isinstance(error, RemoteError)
        if is_own and (isinstance(error, StorageError) or error.code is ErrorCode.INTERNAL):
            return Outcome.FAILED
        if error.code is ErrorCode.CHECKSUM_MISMATCH:
            logger.error("map output %d of %s is damaged here", output.map_attempt_id, output.key)
            return Outcome.FAILED
        if error.code is ErrorCode.PARTITION_RELEASED:  # here too, before long
            return Outcome.REFUSED
        if len(self._passed_over) >= MAX_PASSED_OVER:
            del self._passed_over[next(iter(self._passed_over))]
        until = asyncio.get_running_loop().time() + PASSED_OVER_SECONDS
        self._passed_over[place.taskmanager_id, output.key.application_id] = until
        return Outcome.REFUSED
