"""The spans of one migration, in which a drain moves map outputs."""

from collections.abc import Mapping
from typing import Final

from ...names import MapAttemptKey, TaskManagerPlace
from .traced_span import TracedSpan, Value


class MigrationSpans:
    """The span of a migration, and the spans of its moves.

    Args:
        span: The span of the migration, which has begun.
    """

    def __init__(self, span: TracedSpan) -> None:
        self._span: Final = span
        self._moved = 0
        self._moves: Final[dict[MapAttemptKey, TracedSpan]] = {}

    def begin(self, attempt: MapAttemptKey, attributes: Mapping[str, Value]) -> None:
        """Begin the span of a move."""
        self._moves[attempt] = self._span.child("move", attributes)

    def copy(self, attempt: MapAttemptKey, target: str) -> TracedSpan | None:
        """Begin the span of an attempt to copy the map output; None if it does not move."""
        move = self._moves.get(attempt)
        return None if move is None else move.child("copy", {"sluice.target": target}, sends=True)

    def end_move(self, attempt: MapAttemptKey, place: TaskManagerPlace | None, reason: str) -> None:
        """End the span of a move, if it has begun.

        Args:
            attempt: The map output.
            place: The TaskManager that readers are sent to; None: it stays, or is gone.
            reason: Why it stays.
        """
        move = self._moves.pop(attempt, None)
        if move is None:
            return
        if place is None:
            move.end(error=reason or "it did not move")
        else:
            self._moved += 1
            move.end({"sluice.target": str(place)})

    def end(self, staying: int, reason: str) -> None:
        """End the span of the migration, and the spans of canceled moves."""
        for attempt in list(self._moves):
            self.end_move(attempt, None, "")
        attributes: dict[str, Value] = {
            "sluice.map_outputs_moved": self._moved,
            "sluice.map_outputs_staying": staying,
        }
        self._span.end(attributes, reason)
