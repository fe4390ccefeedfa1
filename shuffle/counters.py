"""Plain integers that the data path bumps; everything that watches reads them from here.

One :class:`Counters` belongs to one TaskManager and is touched only by the data plane's event-loop
thread, so an increment is one attribute addition: no lock, no label lookup, no metrics library.
All values only grow while the daemon lives.

The legs: *producer* is map task → TaskManager, *peer* is TaskManager → TaskManager, *consumer* is
TaskManager → reduce task. Bytes are payload bytes, frame heads not counted; a buffer is one
payload-carrying message of at most one segment.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

OTHER_KEY = "other"
"""Key that takes every count of a :class:`BoundedCounts` that has no room for another key."""

MAX_KEYS = 64
"""Keys kept by a :class:`BoundedCounts`: twice the message types of the wire, and a bound on what
a hostile client can make a metrics page grow by."""


class BoundedCounts(dict[str, int]):
    """Counts by name with a bounded set of names, safe for names that come from the network."""

    __slots__ = ()

    def bump(self, key: str, amount: int = 1) -> None:
        """Add ``amount`` to ``key``, or to ``"other"`` once ``MAX_KEYS`` names are in use."""
        if key not in self and len(self) >= MAX_KEYS:
            key = OTHER_KEY
        self[key] = self.get(key, 0) + amount


@dataclass(slots=True)
class Counters:
    """What one TaskManager has done since it started."""

    producer_bytes_in: int = 0
    """Bytes of region data received from map tasks."""
    producer_buffers_in: int = 0

    peer_bytes_out: int = 0
    """Bytes sent to other TaskManagers in answer to their partition requests."""
    peer_buffers_out: int = 0
    peer_bytes_in: int = 0
    """Bytes received from other TaskManagers into input gates."""
    peer_buffers_in: int = 0

    consumer_bytes_out_local: int = 0
    """Bytes sent to reduce tasks out of this TaskManager's own store: they crossed no peer leg."""
    consumer_buffers_out_local: int = 0
    consumer_bytes_out_remote: int = 0
    """Bytes sent to reduce tasks that had come from another TaskManager."""
    consumer_buffers_out_remote: int = 0

    credits_sent: int = 0
    """Credits granted to senders; 1 credit = 1 buffer."""
    credits_received: int = 0
    """Credits granted to us by receivers."""

    regions_written: int = 0
    map_outputs_committed: int = 0
    map_outputs_aborted: int = 0
    """Map attempts given up: aborted by the producer, or its connection ended before the commit."""
    map_outputs_adopted: int = 0
    """Committed map outputs found in the journal when the daemon started."""

    connections_accepted: int = 0
    connections_refused: int = 0
    """Connections closed before their handshake was done: limit reached, bad hello, deadline."""
    applications_expired: int = 0
    """Applications whose data was dropped because no client of theirs was left."""

    producer_credit_wait_seconds: float = 0.0
    """Time for which open partitions had a region begun and no credit outstanding."""
    event_loop_lag_seconds: float = 0.0
    """Time by which timers of the event loop fired late, added up."""

    late_messages: BoundedCounts = field(default_factory=BoundedCounts)
    """Messages for a channel or partition that was already gone, by message type."""
    errors_by_code: BoundedCounts = field(default_factory=BoundedCounts)
    """Errors reported to a client or peer, by error code."""

    def snapshot(self) -> Counters:
        """Return a copy that no longer changes with this one."""
        return replace(
            self,
            late_messages=BoundedCounts(self.late_messages),
            errors_by_code=BoundedCounts(self.errors_by_code),
        )
