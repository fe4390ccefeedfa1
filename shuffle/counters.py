"""Counters of a TaskManager: plain numbers that the data path adds to, and that metrics read.

One :class:`Counters` belongs to one TaskManager. Only the data plane's event-loop thread writes it,
so an increment is one attribute addition: no lock, no label lookup, no metrics library. All values
only grow while the daemon lives.

The legs: *producer* is map task → TaskManager, *peer* is TaskManager → TaskManager, *consumer* is
TaskManager → reduce task. Bytes are payload bytes, frame heads not counted; a buffer is one
payload-carrying message of at most one segment.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

OTHER_KEY = "other"
"""Key that takes every count of a :class:`BoundedCounts` that has no room for another key."""

MAX_KEYS = 64
"""Keys kept by a :class:`BoundedCounts`: twice the message types of the wire, so that a hostile
client cannot grow a metrics page without end."""


class BoundedCounts(dict[str, int]):
    """Counts by name with a bounded set of names, safe for names that come from the network."""

    __slots__ = ()

    def bump(self, key: str, amount: int = 1) -> None:
        """Add ``amount`` to ``key``, or to ``"other"`` once ``MAX_KEYS`` names are in use."""
        if key not in self and len(self) >= MAX_KEYS:
            key = OTHER_KEY
        self[key] = self.get(key, 0) + amount


@dataclass(slots=True)
class ServingSeconds:
    """Times of a serving leg, as ``sluice.shuffle.taskmanager.serve.channel_times`` counts them.

    Waits are summed over channels; the states over the gates of the consumer leg, or over the
    connections of the peer leg. A gate or connection with nothing open is in no state.
    """

    data_wait: float = 0.0
    """Channels had credit and nothing to send."""
    credit_wait: float = 0.0
    """Channels had something to send and no credit."""
    idle: float = 0.0
    busy: float = 0.0
    back_pressured: float = 0.0

    def add(self, other: ServingSeconds) -> None:
        """Add other sums to these."""
        self.data_wait += other.data_wait
        self.credit_wait += other.credit_wait
        self.idle += other.idle
        self.busy += other.busy
        self.back_pressured += other.back_pressured


@dataclass(slots=True)
class Counters:
    """The counts of one TaskManager since it started."""

    producer_bytes_in: int = 0
    """Bytes of region data received from map tasks."""
    producer_buffers_in: int = 0
    region_area_bytes_in: int = 0
    """Bytes from map tasks that were copied out of region areas, not received in buffers."""

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
    memory_tier_refusals: int = 0
    """Regions that went to the disk because their application had its share of the memory tier."""
    map_outputs_committed: int = 0
    map_outputs_aborted: int = 0
    """Map attempts given up: aborted by the producer, or its connection ended before the commit."""
    map_outputs_adopted: int = 0
    """Committed map outputs found in the journal when the daemon started."""

    copies_made: int = 0
    """Map outputs that were copied to other TaskManagers."""
    copy_bytes_out: int = 0
    """Their bytes."""
    copies_found: int = 0
    """Copies that were not made because the other TaskManager had them already."""
    copies_failed: int = 0
    """Attempts to copy a map output that failed, because of either side."""
    commits_without_copies: int = 0
    """Map outputs whose producer was to wait for copies, and was answered without them."""
    map_outputs_moved: int = 0
    """Map outputs that are read at other TaskManagers since this one was drained."""

    gates_opened: int = 0
    """Input gates that reduce tasks opened."""

    connections_accepted: int = 0
    """Connections whose handshake succeeded."""
    connections_refused: int = 0
    """Connections that ended in their handshake, for whatever reason."""
    socket_file_restorations: int = 0
    """Times that another program removed the file of the Unix socket, and it was made again."""
    tls_reloads: int = 0
    """Times that changed TLS files were loaded."""
    tls_reload_failures: int = 0
    """Times that changed TLS files could not be used, so that the ones before stay in use."""
    refused_connections: BoundedCounts = field(default_factory=BoundedCounts)
    """Connections that ended in their handshake, and those that later asked for what they may not
    do, by reason."""
    http_refused: BoundedCounts = field(default_factory=BoundedCounts)
    """Requests to the HTTP port that proved too little, by reason."""
    http_dropped: BoundedCounts = field(default_factory=BoundedCounts)
    """Connections to the HTTP port that their clients did not end, by reason."""
    log_lines_dropped: int = 0
    """Log lines that were dropped because standard error was not read."""
    applications_expired: int = 0
    """Applications whose data was dropped because no client of theirs was left."""

    pipelined_partitions_opened: int = 0
    pipelined_partitions_finished: int = 0
    pipelined_partitions_failed: int = 0
    """Partitions given up, by either side, before their producer had finished them."""

    producer_credit_wait_seconds: float = 0.0
    """Time for which open map outputs had a region begun and no credit outstanding."""
    pipelined_credit_wait_seconds: float = 0.0
    """Time for which open pipelined partitions had no memory for another buffer."""
    peer_serving: ServingSeconds = field(default_factory=ServingSeconds)
    """Of channels that other TaskManagers read."""
    consumer_serving: ServingSeconds = field(default_factory=ServingSeconds)
    """Of channels that reduce tasks read."""
    event_loop_lag_seconds: float = 0.0
    """Time by which timers of the event loop fired late, added up."""

    events_by_type: BoundedCounts = field(default_factory=BoundedCounts)
    """Events that producers of pipelined partitions sent, by type."""
    backward_messages: BoundedCounts = field(default_factory=BoundedCounts)
    """Messages of consumers to producers, by message type."""
    late_messages: BoundedCounts = field(default_factory=BoundedCounts)
    """Messages for a channel or partition that was already gone, by message type."""
    errors_by_code: BoundedCounts = field(default_factory=BoundedCounts)
    """Errors reported to a client or peer, of one channel or partition or of the whole connection,
    by error code."""
    quota_refusals: BoundedCounts = field(default_factory=BoundedCounts)
    """Requests of applications beyond a quota, by resource."""
    progress_deadlines: BoundedCounts = field(default_factory=BoundedCounts)
    """Things that were taken back because those they were held for did not move, by kind."""

    def snapshot(self) -> Counters:
        """Return a copy that no longer changes with this one."""
        return replace(
            self,
            peer_serving=replace(self.peer_serving),
            consumer_serving=replace(self.consumer_serving),
            refused_connections=BoundedCounts(self.refused_connections),
            http_refused=BoundedCounts(self.http_refused),
            http_dropped=BoundedCounts(self.http_dropped),
            events_by_type=BoundedCounts(self.events_by_type),
            backward_messages=BoundedCounts(self.backward_messages),
            late_messages=BoundedCounts(self.late_messages),
            errors_by_code=BoundedCounts(self.errors_by_code),
            quota_refusals=BoundedCounts(self.quota_refusals),
            progress_deadlines=BoundedCounts(self.progress_deadlines),
        )
