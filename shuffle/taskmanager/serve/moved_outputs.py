"""Map outputs that are read at other TaskManagers, and the views that have to go there."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from ....protocol.errors import ErrorCode, SluiceError
from ...names import ShuffleKey, TaskManagerPlace
from .stored_partition_view import StoredPartitionView


class MovedOutputs:
    """The new places of map outputs, until their shuffle is released.

    Args:
        wake: Lets the requests that wait for a shuffle look again.
    """

    def __init__(self, wake: Callable[[ShuffleKey], None]) -> None:
        self._wake = wake
        self._places: dict[ShuffleKey, dict[int, TaskManagerPlace]] = {}
        self._at: Counter[TaskManagerPlace] = Counter()
        """Map outputs at each place."""
        self._views: dict[ShuffleKey, dict[StoredPartitionView, Sequence[int]]] = {}

    def __len__(self) -> int:
        return self._at.total()

    def place(self, key: ShuffleKey, map_attempt_id: int) -> TaskManagerPlace | None:
        """Return the place to which a map output has moved, or None."""
        return self._places.get(key, {}).get(map_attempt_id)

    def of(self, application_id: str) -> dict[ShuffleKey, dict[int, TaskManagerPlace]]:
        """Return the new places of an application's map outputs."""
        return {
            key: dict(places)
            for key, places in self._places.items()
            if key.application_id == application_id
        }

    def move(self, key: ShuffleKey, places: Mapping[int, TaskManagerPlace]) -> None:
        """Send readers of map outputs to other places: those who wait, and those who read."""
        self.take_back(key, places)
        self._places.setdefault(key, {}).update(places)
        self._at.update(places.values())
        self._wake(key)
        for view, map_attempt_ids in list(self._views.get(key, {}).items()):
            moved = next((each for each in map_attempt_ids if each in places), None)
            if moved is not None:
                self.released(view)  # it has its error: do not look at it with every later move
                view.fail(_moved(key, moved, places[moved]))

    def require_here(self, key: ShuffleKey, map_attempt_ids: Iterable[int]) -> None:
        """Check that map outputs are read here.

        Raises:
            PARTITION_MOVED: One of them is at another TaskManager.
        """
        places = self._places.get(key)
        if places is not None:
            for map_attempt_id in map_attempt_ids:
                place = places.get(map_attempt_id)
                if place is not None:
                    raise _moved(key, map_attempt_id, place)

    def watch(
        self, view: StoredPartitionView, key: ShuffleKey, map_attempt_ids: Sequence[int]
    ) -> None:
        """Keep a view until :meth:`released`: its map outputs may move."""
        views = self._views.setdefault(key, {})
        views[view] = map_attempt_ids

    def places(self) -> list[TaskManagerPlace]:
        """Return the places at which map outputs are read."""
        return list(self._at)

    def take_back(self, key: ShuffleKey, map_attempt_ids: Iterable[int]) -> None:
        """Let some map outputs of a shuffle be read here again, or forget them."""
        places = self._places.get(key, {})
        for place in [places.pop(each) for each in list(map_attempt_ids) if each in places]:
            self._at[place] -= 1
            if not self._at[place]:
                del self._at[place]
        if not places:
            self._places.pop(key, None)

    def take_back_all(self, lost: TaskManagerPlace | None = None) -> dict[ShuffleKey, list[int]]:
        """Let map outputs be read here again; return which.

        Args:
            lost: Their place; None: any place.
        """
        if lost is not None and lost not in self._at:
            return {}
        back = {
            key: [each for each, place in places.items() if lost is None or place == lost]
            for key, places in self._places.items()
        }
        for key, map_attempt_ids in back.items():
            self.take_back(key, map_attempt_ids)
        return {key: map_attempt_ids for key, map_attempt_ids in back.items() if map_attempt_ids}

    def forget(self, keys: Callable[[ShuffleKey], bool]) -> None:
        """Forget the places of shuffles that are released."""
        for key in [key for key in self._places if keys(key)]:
            self.take_back(key, self._places[key])

    def forget_below(self, key: ShuffleKey, end: int) -> None:
        """Forget the places of a shuffle's released map attempts, those below ``end``."""
        self.take_back(key, [each for each in self._places.get(key, {}) if each < end])

    def released(self, view: StoredPartitionView) -> None:
        """Forget a view."""
        views = self._views.get(view.shuffle)
        if views is not None:
            views.pop(view, None)
            if not views:
                del self._views[view.shuffle]


def _moved(key: ShuffleKey, map_attempt_id: int, place: TaskManagerPlace) -> SluiceError:
    return SluiceError(
        f"Map attempt {map_attempt_id} of shuffle {key.shuffle_id} is at another TaskManager now",
        code=ErrorCode.PARTITION_MOVED,
        value=place.wire_text(),
        remedy="Read it there",
        map_attempt_id=map_attempt_id,
    )
