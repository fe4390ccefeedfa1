"""Task events: messages of consumers to producers, against the direction of the data.

A producer registers for its map attempt. A local channel publishes events to it directly; a remote
channel sends them over its peer connection, and the serving side publishes them there. An event is
never dropped silently: without a producer the caller gets an error.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol

from ...protocol.errors import InvalidEvent, SluiceError
from ...protocol.limits import MAX_EVENT_BYTES, MAX_U32
from ..errors import TooManyTaskEvents

MAX_KEPT_TASK_EVENTS: Final = 64
"""Events kept for one channel that is not open yet: 64 KiB of the longest ones."""


class KeptTaskEvents:
    """A bounded queue of events for a channel that is not open yet."""

    __slots__ = ("_events",)

    def __init__(self) -> None:
        self._events: deque[tuple[int, bytes]] = deque()

    def __len__(self) -> int:
        return len(self._events)

    def keep(self, event_type: int, payload: bytes) -> None:
        """Keep an event.

        Raises:
            TooManyTaskEvents: The queue is full.
        """
        if len(self._events) >= MAX_KEPT_TASK_EVENTS:
            raise TooManyTaskEvents(
                "Channel is not open yet and keeps no more task events",
                value=len(self._events) + 1,
                limit=MAX_KEPT_TASK_EVENTS,
                remedy="Send them when its producer is known",
            )
        self._events.append((event_type, payload))

    def take(self) -> list[tuple[int, bytes]]:
        """Return the events in their order, and forget them."""
        events = list(self._events)
        self._events.clear()
        return events


class TaskEventTarget(Protocol):
    """A channel or a gate, to which a task event can be sent."""

    def send_task_event(self, event_type: int, payload: bytes) -> None:
        """Send an event to the producers behind this target."""


def send_to_all(targets: Iterable[TaskEventTarget], event_type: int, payload: bytes) -> None:
    """Send an event to each target, also when another one has raised an error.

    Raises:
        SluiceError: The first error of all.
    """
    failure: SluiceError | None = None
    for target in targets:
        try:
            target.send_task_event(event_type, payload)
        except SluiceError as error:
            failure = failure or error
    if failure is not None:
        raise failure


def check_task_event(event_type: int, payload: bytes) -> None:
    """Refuse a task event that does not fit the wire.

    Raises:
        InvalidEvent: Its type does not fit 32 bits without a sign, or its payload is too long.
    """
    if not 0 <= event_type <= MAX_U32:
        raise InvalidEvent(
            "Type of a task event is out of range", value=event_type, limit=f"0 to {MAX_U32}"
        )
    if len(payload) > MAX_EVENT_BYTES:
        raise InvalidEvent(
            "Task event is too large",
            value=f"{len(payload)} bytes",
            limit=f"{MAX_EVENT_BYTES} bytes",
            remedy="Send large content as data",
        )
