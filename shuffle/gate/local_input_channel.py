"""The consuming end of a channel whose partition is on the same TaskManager.

The channel gives out the partition's own buffers: nothing is copied and no socket is touched. Until
the partition is found, the channel has nothing to read and keeps the messages of the consumer to
the producer.
"""

from collections.abc import Callable

from ...protocol.errors import ErrorCode, SluiceError
from ...protocol.schema import DATA
from ..errors import InvalidRequest, UnknownProducer
from ..names import ShuffleKey
from ..partition.view import (
    DataListener,
    OutgoingBuffer,
    PipelinedView,
    SubpartitionView,
    is_pipelined,
    no_listener,
)
from .task_events import KeptTaskEvents, check_task_event

TaskEventHandler = Callable[[int, bytes], None]
"""Takes an event's type and payload. Runs in the event loop; must not wait and must not raise."""

TaskEventPublisher = Callable[[int, bytes], None]
"""Passes an event's type and payload to the producer; raises UnknownProducer without one."""


class TaskEventDispatcher:
    """Passes task events to the running producers of this TaskManager."""

    def __init__(self) -> None:
        self._handlers: dict[tuple[ShuffleKey, int], TaskEventHandler] = {}

    def __len__(self) -> int:
        return len(self._handlers)

    def register(self, key: ShuffleKey, map_attempt_id: int, handler: TaskEventHandler) -> None:
        """Register a producer for the events of its map attempt.

        Raises:
            DUPLICATE_MAP_OUTPUT: Another producer is registered for it.
        """
        if (key, map_attempt_id) in self._handlers:
            raise SluiceError(
                f"Map attempt {map_attempt_id} of shuffle {key.shuffle_id} has a producer already",
                code=ErrorCode.DUPLICATE_MAP_OUTPUT,
                value=map_attempt_id,
                map_attempt_id=map_attempt_id,
            )
        self._handlers[key, map_attempt_id] = handler

    def unregister(self, key: ShuffleKey, map_attempt_id: int, handler: TaskEventHandler) -> None:
        """Forget a producer. Idempotent; a producer that has taken its place stays."""
        if self._handlers.get((key, map_attempt_id)) == handler:
            del self._handlers[key, map_attempt_id]

    def publish(
        self, key: ShuffleKey, map_attempt_id: int, event_type: int, payload: bytes
    ) -> None:
        """Pass an event to the producer of a map attempt.

        Raises:
            UnknownProducer: No producer is registered yet, or it has finished or gone.
        """
        handler = self._handlers.get((key, map_attempt_id))
        if handler is None:
            raise UnknownProducer(
                f"No producer takes task events for map attempt {map_attempt_id} "
                f"of shuffle {key.shuffle_id}",
                value=map_attempt_id,
                remedy="It has finished, or is not running on this TaskManager",
                map_attempt_id=map_attempt_id,
            )
        handler(event_type, payload)


def _no_producer(event_type: int, payload: bytes) -> None:
    raise UnknownProducer("Channel has no way back to its producer", value=event_type)


class LocalInputChannel:
    """A channel to a partition of this TaskManager.

    Args:
        listener: Called when a channel that had nothing has something, or has failed.
        publish: Passes task events to the producer.
    """

    is_local = True

    def __init__(self, listener: DataListener, publish: TaskEventPublisher = _no_producer) -> None:
        self.bytes_in = 0
        self.buffers_in = 0
        self._listener = listener
        self._publish = publish
        self._kept = KeptTaskEvents()
        self._pipelined: PipelinedView | None = None
        """The view, if its producer takes messages from the consumer."""
        self._failure: SluiceError | None = None
        self._view: SubpartitionView | None = None
        self._released = False

    def attach(self, view: SubpartitionView) -> None:
        """Set the view; a released channel releases it at once."""
        if self._released:
            view.release()
            return
        self._view = view
        if is_pipelined(view):
            self._pipelined = view
        self._listener()
        try:
            for event_type, payload in self._kept.take():
                self._publish(event_type, payload)
        except SluiceError as error:
            self.fail(error)  # the call that sent the event has returned without an error

    def data_available(self) -> None:
        """Notify the listener: the view has something to read, or has failed."""
        self._listener()

    def fail(self, error: SluiceError) -> None:
        """End the channel with an error."""
        if self._failure is None and not self._released:
            self._failure = error
            self._listener()

    @property
    def view(self) -> SubpartitionView | None:
        """The view; None before the partition is found, and after the release."""
        return self._view

    @property
    def failure(self) -> SluiceError | None:
        """The error that has ended the channel, if any."""
        if self._failure is None and self._view is not None:
            return self._view.failure
        return self._failure

    @property
    def backlog(self) -> int:
        """Data buffers that are still to come."""
        return 0 if self._view is None else self._view.backlog

    @property
    def holds_segments(self) -> bool:
        """Whether segments wait for its reader."""
        return self._view is not None and self._view.holds_segments

    @property
    def is_pipelined(self) -> bool:
        """True if the partition is found and is read while it is written."""
        return self._pipelined is not None

    @property
    def has_priority_event(self) -> bool:
        """True if the next buffer is an event that overtakes data."""
        return self._pipelined is not None and self._pipelined.has_priority_event

    def is_available(self, credit: int) -> bool:
        """Return whether the view has something to give."""
        return self._view is not None and self._view.is_available(credit)

    def next_buffer(self, credit: int) -> OutgoingBuffer | None:
        """Take the next buffer; None if there is none yet."""
        if self._failure is not None:
            raise self._failure
        if self._view is None:
            return None
        buffer = self._view.next_buffer(credit)
        if buffer is not None and buffer.data_type == DATA:
            self.bytes_in += len(buffer.payload)
            self.buffers_in += 1
        return buffer

    def take_more(self, most_bytes: int) -> OutgoingBuffer | None:
        """Take data that is there, for a message with the data taken before."""
        if self._failure is not None or self._view is None:
            return None
        buffer = self._view.take_more(most_bytes)
        if buffer is not None:
            self.bytes_in += len(buffer.payload)
            self.buffers_in += 1
        return buffer

    # ---- to the producer -------------------------------------------------------------------------

    def resume_consumption(self) -> None:
        """Resume after a blocking event.

        Raises:
            InvalidRequest: The partition is not pipelined, and so it never blocks.
        """
        if self._released:
            return
        if self._pipelined is None:
            raise InvalidRequest("Channel is not blocked: nothing to resume")
        self._pipelined.resume_consumption()

    def send_task_event(self, event_type: int, payload: bytes) -> None:
        """Send an event to the producer; it is kept while the partition is not found yet.

        Raises:
            InvalidEvent: It does not fit the wire.
            TooManyTaskEvents: The channel keeps as many already as it may.
            UnknownProducer: The producer has finished or was never registered.
        """
        check_task_event(event_type, payload)
        if self._released:
            return
        if self._view is None and self._failure is None:
            self._kept.keep(event_type, payload)
        else:
            self._publish(event_type, payload)

    def release(self) -> None:
        """Release the view. Idempotent."""
        self._released = True
        self._listener = no_listener
        self._kept.take()
        self._pipelined = None
        view, self._view = self._view, None
        if view is not None:
            view.release()
