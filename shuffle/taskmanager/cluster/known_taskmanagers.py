"""The other TaskManagers that this one knows.

Drivers name the TaskManagers for their application; every application may use the members of the
cluster. An application's copies only go to these.
"""

from typing import Final

from ...errors import LimitExceeded
from ...names import TaskManagerPlace
from ..bounds.accounts import Accounts, Resource

TOLD_BYTES: Final = 1024
"""Bytes charged to an application for each TaskManager that its drivers name."""

MAX_TOLD: Final = 4096
"""Maximum number of TaskManagers that the drivers of an application may name."""


class KnownTaskManagers:
    """The places of other TaskManagers, by id, and the applications that use them.

    A driver names places for its own application only: a wrong place, or another name for the same
    host, does not affect other applications. The places that members report for themselves apply to
    all.

    Args:
        own_id: The id of this TaskManager, which is ignored among the others.
        accounts: Accounts to charge for the places that drivers name.
    """

    def __init__(self, own_id: str, accounts: Accounts) -> None:
        self.own_id: Final = own_id
        self._accounts = accounts
        self._members: dict[str, TaskManagerPlace] = {}
        self._told: dict[str, dict[str, TaskManagerPlace]] = {}

    def joined(self, place: TaskManagerPlace) -> None:
        """Record a member, replacing another one at its address."""
        if place.taskmanager_id == self.own_id:
            return
        for other_id, other in list(self._members.items()):
            if other.address == place.address:
                del self._members[other_id]
        self._members[place.taskmanager_id] = place

    def left(self, place: TaskManagerPlace) -> None:
        """Forget a member, unless it is at another place now."""
        if self._members.get(place.taskmanager_id) == place:
            del self._members[place.taskmanager_id]

    def replaced(self, taskmanager_id: str) -> None:
        """Forget a lost member, whose address another one has. Idempotent."""
        self._members.pop(taskmanager_id, None)

    def tell(self, application_id: str, place: TaskManagerPlace) -> bool:
        """Record a TaskManager named by a driver; return whether it or its place is new.

        Raises:
            LimitExceeded: The application has named too many.
            QuotaExceeded: It may not keep more.
        """
        if place.taskmanager_id == self.own_id:
            return False
        told = self._told.get(application_id, {})
        before = told.get(place.taskmanager_id)
        if before is None:
            if len(told) >= MAX_TOLD:
                raise LimitExceeded(
                    "A driver names too many TaskManagers", value=len(told) + 1, limit=MAX_TOLD
                )
            self._accounts.of(application_id).take(Resource.METADATA_BYTES, TOLD_BYTES)
            self._told[application_id] = told
        told[place.taskmanager_id] = place
        return before != place

    def forget(self, application_id: str) -> None:
        """Forget what the drivers of an application named."""
        told = self._told.pop(application_id, {})
        account = self._accounts.of(application_id)
        account.give_back(Resource.METADATA_BYTES, TOLD_BYTES * len(told))

    def place_for(self, application_id: str, taskmanager_id: str) -> TaskManagerPlace | None:
        """Return the place of a TaskManager that an application may use, or None."""
        told = self._told.get(application_id, {})
        return self._members.get(taskmanager_id) or told.get(taskmanager_id)

    def places_of(self, application_id: str) -> dict[str, TaskManagerPlace]:
        """Return the places that an application may use, by TaskManager."""
        return self._told.get(application_id, {}) | self._members
