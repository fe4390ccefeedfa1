"""Records which TaskManager has which map output; no I/O and no clock.

It contains copies, and map outputs of which copies are made. The TaskManager to which the producer
wrote makes the copies. A TaskManager with a copy knows the *origin* of the copy: the TaskManager
that sent it. When the origin is lost, the TaskManager with the copy makes the missing copies, and
is their origin.

What is known about another TaskManager is kept by application: an application may name a wrong
place for it, and only its own map outputs are then lost.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ...names import MapAttemptKey, ShuffleKey


@dataclass(slots=True, eq=False)
class Holding:
    """One map output that is here.

    Attributes:
        origin: The TaskManager that sent it; empty: its producer wrote it here.
        replicas: Number of TaskManagers that keep it, this one included.
        others: Other TaskManagers that have it, as far as is known.
        doubtful: Members of ``others`` that must be asked again, because they were away.
        settled: Whether it had all of its copies before, or was adopted at start. Its copies are
            then restored at a limited rate.
        to_remote: Whether it should have a copy in the remote tier.
        is_remote: Whether it has one, as far as is known.
    """

    origin: str
    replicas: int
    others: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)
    settled: bool = False
    to_remote: bool = False
    is_remote: bool = False

    @property
    def missing(self) -> int:
        """Copies at other TaskManagers that this one has to make."""
        if self._is_left_to_origin:
            return 0
        return max(self.replicas - 1 - len(self.others), 0)

    @property
    def lacks_remote(self) -> bool:
        """Whether this TaskManager has to make the copy in the remote tier."""
        return self.to_remote and not self.is_remote and not self._is_left_to_origin

    @property
    def is_short(self) -> bool:
        """Whether this TaskManager has to make any copy."""
        return bool(self.missing) or self.lacks_remote

    @property
    def _is_left_to_origin(self) -> bool:
        return bool(self.origin) and self.origin in self.others


class Holdings:
    """The map outputs here of which several TaskManagers keep copies."""

    def __init__(self) -> None:
        self._by_shuffle: dict[ShuffleKey, dict[int, Holding]] = {}
        self._count = 0
        self._by_holder: dict[tuple[str, str], set[MapAttemptKey]] = {}
        """Map outputs by application and other TaskManager."""
        self.short: set[MapAttemptKey] = set()
        """Map outputs that lack copies which this TaskManager has to make."""
        self.short_of_remote: set[MapAttemptKey] = set()
        """Those of them that lack the copy in the remote tier."""

    def __len__(self) -> int:
        return self._count

    def get(self, attempt: MapAttemptKey) -> Holding | None:
        """Return the holding of a map output, or None."""
        return self._by_shuffle.get(attempt.shuffle, {}).get(attempt.map_attempt_id)

    def attempts(self) -> Iterator[MapAttemptKey]:
        """Iterate over all map outputs."""
        for key, attempts in self._by_shuffle.items():
            for map_attempt_id in attempts:
                yield MapAttemptKey(key, map_attempt_id)

    def add(
        self,
        attempt: MapAttemptKey,
        origin: str,
        replicas: int,
        *,
        settled: bool = False,
        to_remote: bool = False,
    ) -> Holding:
        """Record a map output committed here; the origin of a copy has it too."""
        self.discard(attempt.shuffle, [attempt.map_attempt_id])
        holding = Holding(origin, replicas, settled=settled, to_remote=to_remote)
        self._by_shuffle.setdefault(attempt.shuffle, {})[attempt.map_attempt_id] = holding
        self._count += 1
        if origin and (replicas > 1 or to_remote):
            self.has(attempt, origin)
        self._judge(attempt, holding)
        return holding

    def has(self, attempt: MapAttemptKey, taskmanager_id: str) -> None:
        """Record that another TaskManager has a map output."""
        holding = self.get(attempt)
        if holding is not None:
            holding.others.add(taskmanager_id)
            holding.doubtful.discard(taskmanager_id)
            holder = attempt.shuffle.application_id, taskmanager_id
            self._by_holder.setdefault(holder, set()).add(attempt)
            self._judge(attempt, holding)

    def has_not(self, attempt: MapAttemptKey, taskmanager_id: str) -> None:
        """Record that another TaskManager no longer has a map output."""
        holding = self.get(attempt)
        if holding is not None:
            holding.others.discard(taskmanager_id)
            holding.doubtful.discard(taskmanager_id)
            self._uncount(attempt, taskmanager_id)
            self._judge(attempt, holding)

    def is_in_remote(self, attempt: MapAttemptKey) -> None:
        """Record that the remote tier has a map output."""
        holding = self.get(attempt)
        if holding is not None:
            holding.is_remote = True
            self._judge(attempt, holding)

    def lost(self, application_id: str, taskmanager_id: str) -> list[MapAttemptKey]:
        """Record that a TaskManager is lost; return an application's map outputs to copy again."""
        affected = list(self._by_holder.get((application_id, taskmanager_id), ()))
        for attempt in affected:
            self.has_not(attempt, taskmanager_id)
        return [attempt for attempt in affected if attempt in self.short]

    def doubt(self, application_id: str, taskmanager_id: str) -> None:
        """Record that a TaskManager was away and must be asked what it still has."""
        for attempt in self._by_holder.get((application_id, taskmanager_id), ()):
            holding = self.get(attempt)
            if holding is not None:
                holding.doubtful.add(taskmanager_id)

    def doubted(self, application_id: str, taskmanager_id: str) -> list[MapAttemptKey]:
        """Return the map outputs about which a TaskManager must be asked."""
        return [
            attempt
            for attempt in self._by_holder.get((application_id, taskmanager_id), ())
            if (holding := self.get(attempt)) is not None and taskmanager_id in holding.doubtful
        ]

    def release(self, key: ShuffleKey, end: int | None = None) -> None:
        """Forget a shuffle, or its map attempts below ``end``."""
        attempts = self._by_shuffle.get(key, {})
        self.discard(key, [each for each in attempts if end is None or each < end])

    def release_application(self, application_id: str) -> None:
        """Forget the shuffles of an application."""
        for key in [key for key in self._by_shuffle if key.application_id == application_id]:
            self.release(key)

    def discard(self, key: ShuffleKey, map_attempt_ids: Iterable[int]) -> None:
        """Forget map outputs of a shuffle."""
        attempts = self._by_shuffle.get(key, {})
        for map_attempt_id in map_attempt_ids:
            holding = attempts.pop(map_attempt_id, None)
            if holding is not None:
                self._count -= 1
                attempt = MapAttemptKey(key, map_attempt_id)
                self.short.discard(attempt)
                self.short_of_remote.discard(attempt)
                for other in holding.others:
                    self._uncount(attempt, other)
        if not attempts:
            self._by_shuffle.pop(key, None)

    def holders(self) -> set[tuple[str, str]]:
        """Return the applications and the other TaskManagers that have map outputs of each."""
        return set(self._by_holder)

    def has_application(self, application_id: str) -> bool:
        """Return whether an application has map outputs here."""
        return any(key.application_id == application_id for key in self._by_shuffle)

    def _uncount(self, attempt: MapAttemptKey, taskmanager_id: str) -> None:
        holder = attempt.shuffle.application_id, taskmanager_id
        attempts = self._by_holder.get(holder)
        if attempts is not None:
            attempts.discard(attempt)
            if not attempts:
                del self._by_holder[holder]

    def _judge(self, attempt: MapAttemptKey, holding: Holding) -> None:
        if holding.lacks_remote:
            self.short_of_remote.add(attempt)
        else:
            self.short_of_remote.discard(attempt)
        if holding.is_short:
            self.short.add(attempt)
        else:
            self.short.discard(attempt)
            holding.settled = True
