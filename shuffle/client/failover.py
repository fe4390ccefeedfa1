"""Continue at another TaskManager if a stored partition is lost, damaged or has moved.

All copies of a stored partition have the same bytes. So a channel that fails is reopened at another
TaskManager, and skips the blocks that its reader already has.
"""

import logging
from collections import deque
from collections.abc import Sequence
from typing import Final

from ...protocol.errors import ErrorCode, SluiceError
from ...transport.errors import code_field
from ..gate.channel_opener import ChannelSource
from ..gate.input_gate import InputGate
from ..names import TaskManagerPlace
from .leg_watch import TaskManagerSilent

logger = logging.getLogger(__name__)

ELSEWHERE: Final = frozenset(
    {
        ErrorCode.PARTITION_MOVED,
        ErrorCode.PARTITION_NOT_FOUND,
        ErrorCode.STORAGE_UNAVAILABLE,
        ErrorCode.STORAGE_CORRUPT,
        ErrorCode.CHECKSUM_MISMATCH,
        ErrorCode.END_OF_PARTITION_MISMATCH,
        ErrorCode.SEQUENCE_GAP,
        ErrorCode.CONNECT_FAILED,
        ErrorCode.CONNECT_REFUSED,
        ErrorCode.CONNECTION_LOST,
        ErrorCode.TASKMANAGER_MISMATCH,
        ErrorCode.DEADLINE_EXCEEDED,
        ErrorCode.SHUTTING_DOWN,
        ErrorCode.INTERNAL,
    }
)
"""Errors that blame the TaskManager, not the request."""

MAX_MOVES: Final = 8
"""Times that a channel follows ``PARTITION_MOVED``: TaskManagers could name each other."""


class Failover:
    """The other TaskManagers of the channels of one gate.

    Args:
        gate: The gate, of stored partitions.
    """

    def __init__(self, gate: InputGate) -> None:
        self._gate = gate
        self._places: dict[int, deque[TaskManagerPlace]] = {}
        self._moves: dict[int, int] = {}

    def add(self, index: int, places: Sequence[TaskManagerPlace]) -> None:
        """Set the other TaskManagers of a channel, in the order to try them."""
        if places:
            self._places[index] = deque(places)

    def report_damage(self, index: int) -> None:
        """Report that data of a channel arrived damaged, to the TaskManager that has it."""
        self._gate.report_damage(index)

    def failed(self) -> tuple[int, SluiceError] | None:
        """Return the number of a channel that has failed, and its error; None without one."""
        for index, channel in enumerate(self._gate.channels):
            if channel.failure is not None:
                return index, channel.failure
        return None

    def switch_to_next_replica(self, index: int, error: SluiceError) -> bool:
        """Reopen a channel at its next TaskManager.

        Args:
            index: Number of the channel.
            error: Why its current TaskManager is no longer read.

        Returns:
            False if the error blames the request, or no other TaskManager is known.
        """
        if error.code not in ELSEWHERE:
            return False
        place = self._next(index, error)
        if place is None:
            return False
        before = self._gate.sources[index]
        extra = {"peer": str(place), **code_field(error)}
        logger.info("channel %d continues at %s: %s", index, place, error, extra=extra)
        address = place.address
        source = ChannelSource(place.taskmanager_id, address, before.map_attempt_ids)
        self._gate.replace_channel(index, source)
        return True

    def _next(self, index: int, error: SluiceError) -> TaskManagerPlace | None:
        if isinstance(error, TaskManagerSilent) and self._moves.get(index, 0) < MAX_MOVES:
            source = self._gate.sources[index]
            if source.taskmanager_id != error.taskmanager_id:
                # It was read through the silent one, and may be read through another.
                self._moves[index] = self._moves.get(index, 0) + 1
                return TaskManagerPlace(source.taskmanager_id, *source.address)
        if error.code is ErrorCode.PARTITION_MOVED and self._moves.get(index, 0) < MAX_MOVES:
            self._moves[index] = self._moves.get(index, 0) + 1
            place = TaskManagerPlace.parse(str(error.value))
            if place is not None:
                return place
        places = self._places.get(index)
        return places.popleft() if places else None
