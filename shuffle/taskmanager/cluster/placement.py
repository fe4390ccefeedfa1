"""Ranks the other TaskManagers as targets for a copy of a map output.

Replication and migration both choose by this rank. A new criterion becomes a field of
:class:`Candidate`.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from hashlib import blake2b
from typing import Final, NamedTuple

from ...names import MapAttemptKey, TaskManagerPlace
from .known_taskmanagers import KnownTaskManagers
from .member_reports import MemberReports

REFUSAL_SECONDS: Final = 5.0
"""Time for which a TaskManager that refused a copy is not asked for another one."""

MAX_REFUSALS: Final = 4096
"""Maximum number of refusals remembered; the oldest are forgotten first."""


class Candidate(NamedTuple):
    """A TaskManager that may get a copy. The smallest candidate is the best one.

    Attributes:
        lacks_copy: Whether it has no copy, as far as is known.
        has_refused: Whether it drains, or refused a copy for the application a short time ago.
        shares_node: Whether it runs on the node of this TaskManager.
        joins_copy: Whether a TaskManager on its node has a copy.
        shares_zone: Whether it is in the zone of this TaskManager or of one that has a copy.
        position: Its position in the rendezvous order of the map output.
        place: Its place.
    """

    lacks_copy: bool
    has_refused: bool
    shares_node: bool
    joins_copy: bool
    shares_zone: bool
    position: int
    place: TaskManagerPlace

    @property
    def adds_safety(self) -> bool:
        """Whether a copy here is a new one, on another node, and likely to be accepted."""
        return self.lacks_copy and not self.has_refused and not self.shares_node


class Placement:
    """Ranks TaskManagers for copies.

    Args:
        known: The other TaskManagers.
        reports: What they report about themselves.
        own_location: Returns the node and the zone of this TaskManager.
    """

    def __init__(
        self,
        known: KnownTaskManagers,
        reports: MemberReports,
        own_location: Callable[[], tuple[str, str]],
    ) -> None:
        self._known: Final = known
        self._reports: Final = reports
        self._own_location: Final = own_location
        self._refused_until: dict[tuple[str, str], float] = {}
        self.last_refusal = "no other TaskManager is known"
        """Why the last attempt to make a copy failed."""

    def candidates(
        self,
        attempt: MapAttemptKey,
        holders: Collection[str],
        is_absent: Callable[[TaskManagerPlace], bool],
    ) -> list[Candidate]:
        """Return the TaskManagers that may have or get a copy of a map output, best first.

        Args:
            attempt: The map output.
            holders: The TaskManagers that have it.
            is_absent: Returns whether a TaskManager is not a candidate.
        """
        application_id = attempt.shuffle.application_id
        places = self._known.places_of(application_id)
        own_node, own_zone = self._own_location()
        held = [self._reports.location_of(places[each]) for each in holders if each in places]
        nodes = {node for node, _ in held}
        zones = {own_zone, *(zone for _, zone in held)} - {""}
        now = asyncio.get_running_loop().time()
        # Ranking costs more than the look at a state, and a driver may name thousands.
        there = [each for each, place in places.items() if not is_absent(place)]
        candidates = []
        for position, taskmanager_id in enumerate(rendezvous_order(attempt, there)):
            place = places[taskmanager_id]
            node, zone = self._reports.location_of(place)
            refused_until = self._refused_until.get((taskmanager_id, application_id), now)
            candidates.append(
                Candidate(
                    taskmanager_id not in holders,
                    refused_until > now or self._reports.is_draining(taskmanager_id),
                    node == own_node,
                    node in nodes,
                    zone in zones,
                    position,
                    place,
                )
            )
        return sorted(candidates)

    def refuse(self, taskmanager_id: str, application_id: str) -> None:
        """Record that a TaskManager refused a copy for an application."""
        self._refused_until.pop((taskmanager_id, application_id), None)  # it becomes the newest
        if len(self._refused_until) >= MAX_REFUSALS:
            del self._refused_until[next(iter(self._refused_until))]
        until = asyncio.get_running_loop().time() + REFUSAL_SECONDS
        self._refused_until[taskmanager_id, application_id] = until

    def forget_refusal(self, taskmanager_id: str, application_id: str) -> None:
        """Forget that a TaskManager refused a copy for an application."""
        self._refused_until.pop((taskmanager_id, application_id), None)


def rendezvous_order(attempt: MapAttemptKey, taskmanager_ids: Iterable[str]) -> list[str]:
    """Return TaskManagers in their order as targets for a map output.

    Every TaskManager computes the same order. Adding or removing one does not change the order of
    the others, and the map outputs of one TaskManager are spread evenly over all others.
    """
    (application_id, shuffle_id), map_attempt_id = attempt
    prefix = f"{application_id}\0{shuffle_id}\0{map_attempt_id}\0"

    def weight(taskmanager_id: str) -> tuple[bytes, str]:
        name = (prefix + taskmanager_id).encode(errors="surrogatepass")
        return blake2b(name, digest_size=8).digest(), taskmanager_id

    return sorted(set(taskmanager_ids), key=weight, reverse=True)
