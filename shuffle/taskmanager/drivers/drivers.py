"""The drivers that are connected to a TaskManager, all together."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ...names import ShuffleKey, TaskManagerPlace
from ..store.output_index import Lost
from .driver_handler import DriverHandler

if TYPE_CHECKING:
    from asyncio import Future


class Drivers:
    """Tells drivers what happens to their map outputs.

    Args:
        handlers: Returns the handlers of all accepted connections.
    """

    def __init__(self, handlers: Callable[[], Iterable[object]]) -> None:
        self._handlers = handlers

    def tell_lost(self, lost: Lost) -> None:
        """Tell which map outputs were lost with a directory."""
        for driver in self._drivers():
            driver.tell_lost(lost)

    def tell_held(self, key: ShuffleKey, map_attempt_ids: Sequence[int]) -> None:
        """Tell the drivers of an application that copies are here."""
        for driver in self._drivers():
            driver.tell_held(key, map_attempt_ids)

    def tell_remote(self, key: ShuffleKey, map_attempt_ids: Sequence[int]) -> None:
        """Tell the drivers of an application that copies are in the remote tier."""
        for driver in self._drivers():
            driver.tell_remote(key, map_attempt_ids)

    def tell_moved(
        self, key: ShuffleKey, place: TaskManagerPlace, map_attempt_ids: Sequence[int]
    ) -> "list[Future[None]]":
        """Announce moved map outputs; each future completes when its driver acknowledges."""
        return [
            noted
            for driver in self._drivers()
            for noted in driver.tell_moved(key, place, map_attempt_ids)
        ]

    def _drivers(self) -> Iterator[DriverHandler]:
        for handler in list(self._handlers()):
            if isinstance(handler, DriverHandler):
                yield handler
