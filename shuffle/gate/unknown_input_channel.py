"""A channel whose producer is not known yet.

It takes the place of the channel in its gate and keeps the messages of the consumer to the
producer, until ``InputGate.update_channel`` puts a local or a remote channel there.
"""

from ...protocol.errors import SluiceError
from ..errors import InvalidRequest
from ..partition.view import DataListener, OutgoingBuffer
from .task_events import KeptTaskEvents, check_task_event


class UnknownInputChannel:
    """A channel without a connection.

    Args:
        listener: The listener of the channel that will take its place.
    """

    is_local = False
    has_priority_event = False
    backlog = 0
    bytes_in = 0
    buffers_in = 0
    failure: SluiceError | None = None

    def __init__(self, listener: DataListener) -> None:
        self.listener = listener
        self.task_events = KeptTaskEvents()
        """The events sent meanwhile, for the producer."""

    def is_available(self, credit: int) -> bool:
        """Return False: nothing comes before the producer is known."""
        return False

    def next_buffer(self, credit: int) -> OutgoingBuffer | None:
        """Return None: nothing has come yet."""
        return None

    def resume_consumption(self) -> None:
        """Refuse: nothing has come that could block the channel.

        Raises:
            InvalidRequest: Always.
        """
        raise InvalidRequest("Channel without a known producer is not blocked")

    def send_task_event(self, event_type: int, payload: bytes) -> None:
        """Keep an event for the producer.

        Raises:
            InvalidEvent: It does not fit the wire.
            TooManyTaskEvents: The channel keeps as many already as it may.
        """
        check_task_event(event_type, payload)
        self.task_events.keep(event_type, payload)

    def release(self) -> None:
        """Forget the events kept. Idempotent."""
        self.task_events.take()
