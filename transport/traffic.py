"""What went over a connection, or over many."""

from dataclasses import dataclass


@dataclass(slots=True)
class Traffic:
    """Messages, and bytes with the heads of frames, in both directions."""

    messages_in: int = 0
    messages_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    def add(self, other: "Traffic") -> None:
        """Add what went over another."""
        self.messages_in += other.messages_in
        self.messages_out += other.messages_out
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
