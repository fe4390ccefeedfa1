"""The other TaskManagers that this one knows, and the order in which a map output goes to them.

Drivers name the TaskManagers that their application uses, and ``[cluster] taskmanagers`` those that
every application may use. Copies of an application go to no others.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from ....protocol.errors import SluiceError
from ....transport.connector import Address
from ...errors import LimitExceeded
from ...names import MapAttemptKey, TaskManagerPlace

MOST_TOLD: Final = 4096
"""TaskManagers that the drivers of an application may name."""


def rendezvous_order(attempt: MapAttemptKey, taskmanager_ids: Iterable[str]) -> list[str]:
    """Return TaskManagers in the order in which a map output goes to them.

    Every TaskManager finds the same order. One that comes or goes changes nothing among the others,
    and the map outputs of one TaskManager are spread evenly over all others.
    """
    (application_id, shuffle_id), map_attempt_id = attempt
    prefix = f"{application_id}\0{shuffle_id}\0{map_attempt_id}\0"

    def weight(taskmanager_id: str) -> tuple[bytes, str]:
        name = (prefix + taskmanager_id).encode(errors="surrogatepass")
        return blake2b(name, digest_size=8).digest(), taskmanager_id

    return sorted(set(taskmanager_ids), key=weight, reverse=True)


class KnownTaskManagers:
    """The places of other TaskManagers, by id, and the applications that use them.

    Args:
        own_id: The id of this TaskManager, which is not one of the others.
    """

    def __init__(self, own_id: str) -> None:
        self._own_id = own_id
        self._places: dict[str, TaskManagerPlace] = {}
        self._configured: set[str] = set()
        self._told: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def configure(self, place: TaskManagerPlace) -> bool:
        """Take note of a TaskManager of the settings; return whether it or its place is new."""
        if place.taskmanager_id == self._own_id:
            return False
        new = place.taskmanager_id not in self._configured
        self._configured.add(place.taskmanager_id)
        return self._put(place) or new

    def tell(self, application_id: str, place: TaskManagerPlace) -> bool:
        """Take note of a TaskManager that a driver names; return whether it or its place is new.

        Raises:
            LimitExceeded: The application has named as many as it may.
        """
        if place.taskmanager_id == self._own_id:
            return False
        told = self._told.setdefault(application_id, set())
        new = place.taskmanager_id not in told
        if new and len(told) >= MOST_TOLD:
            raise LimitExceeded(
                "A driver names too many TaskManagers", value=len(told) + 1, limit=MOST_TOLD
            )
        told.add(place.taskmanager_id)
        return self._put(place) or new

    def forget(self, application_id: str) -> None:
        """Forget what the drivers of an application named."""
        gone = self._told.pop(application_id, set()) - self._configured
        for taskmanager_id in gone.difference(*self._told.values()):
            del self._places[taskmanager_id]

    def place(self, taskmanager_id: str) -> TaskManagerPlace | None:
        """Return the place of a TaskManager, or None if it is not known."""
        return self._places.get(taskmanager_id)

    def ids_for(self, application_id: str) -> set[str]:
        """Return the TaskManagers that an application may use."""
        return self._configured | self._told.get(application_id, set())

    def order(self, attempt: MapAttemptKey) -> list[TaskManagerPlace]:
        """Return the places to which a map output may go, in its order."""
        ids = self.ids_for(attempt.shuffle.application_id)
        return [self._places[each] for each in rendezvous_order(attempt, ids)]

    def _put(self, place: TaskManagerPlace) -> bool:
        if self._places.get(place.taskmanager_id) == place:
            return False
        self._places[place.taskmanager_id] = place
        return True


def address_of(place: TaskManagerPlace) -> Address:
    """Return the address at which a TaskManager is reached."""
    return Address(place.host, place.port)


def is_absence(error: SluiceError) -> bool:
    """Tell whether an error says that a TaskManager is not there at all."""
    return error.code.name in ("CONNECT_FAILED", "CONNECTION_LOST", "TASKMANAGER_MISMATCH")
