"""Counts the traffic of one or more connections."""

from dataclasses import dataclass


@dataclass(slots=True)
class Traffic:
    """Counts messages and bytes, including the heads of frames, in both directions."""

    messages_in: int = 0
    messages_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    pings_in: int = 0
    """Received Pings, which are counted in the messages too."""

    def add(self, other: "Traffic") -> None:
        """Add the traffic of another connection."""
        self.messages_in += other.messages_in
        self.messages_out += other.messages_out
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.pings_in += other.pings_in
