"""What a remote channel tells its producer, through the connection that it shares with others."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from shuffle.gate.remote_channel import RemoteInputChannel


class CreditSender(Protocol):
    """What a remote channel needs of its peer connection."""

    def announce_credit(self, channel: "RemoteInputChannel") -> None:
        """Send the channel's unannounced credit when the connection can take it."""

    def cancel(self, channel: "RemoteInputChannel") -> None:
        """The channel is of no more use; tell the producer unless it has ended."""

    def resume_consumption(self, channel: "RemoteInputChannel") -> None:
        """Tell the producer to go on after a blocking event."""

    def send_task_event(
        self, channel: "RemoteInputChannel", event_type: int, payload: bytes
    ) -> None:
        """Send an event to the producer.

        Raises:
            TooManyTaskEvents: The connection takes nothing now and no more are kept.
        """

    def announce_buffer_size(self, channel: "RemoteInputChannel", size_bytes: int) -> None:
        """Ask the producer for buffers of at most this size; only the last one counts."""
