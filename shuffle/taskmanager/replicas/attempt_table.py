"""A table with a value for some map attempts, until their shuffle is released."""

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from ...names import MapAttemptKey, ShuffleKey

T = TypeVar("T")


class AttemptTable(Generic[T]):
    """Values of map attempts, by shuffle: a release costs as much as it removes."""

    def __init__(self) -> None:
        self._by_shuffle: dict[ShuffleKey, dict[int, T]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_shuffle.values()))

    def get(self, attempt: MapAttemptKey) -> T | None:
        """Return the value of a map attempt, or None."""
        return self._by_shuffle.get(attempt.shuffle, {}).get(attempt.map_attempt_id)

    def put(self, attempt: MapAttemptKey, value: T) -> None:
        """Set the value of a map attempt."""
        self._by_shuffle.setdefault(attempt.shuffle, {})[attempt.map_attempt_id] = value

    def values(self) -> Iterator[T]:
        """Iterate over all values."""
        for values in self._by_shuffle.values():
            yield from values.values()

    def discard(self, key: ShuffleKey, map_attempt_ids: Iterable[int]) -> None:
        """Forget map attempts of a shuffle."""
        values = self._by_shuffle.get(key, {})
        for map_attempt_id in map_attempt_ids:
            values.pop(map_attempt_id, None)
        if not values:
            self._by_shuffle.pop(key, None)

    def release(self, key: ShuffleKey, end: int | None = None) -> None:
        """Forget a shuffle, or its map attempts below ``end``."""
        values = self._by_shuffle.get(key, {})
        self.discard(key, [each for each in values if end is None or each < end])

    def release_application(self, application_id: str) -> None:
        """Forget the shuffles of an application."""
        for key in [key for key in self._by_shuffle if key.application_id == application_id]:
            del self._by_shuffle[key]

    def clear(self) -> None:
        """Forget everything."""
        self._by_shuffle.clear()
