"""Counters of a TaskManager: plain numbers that the data path adds to, and that metrics read.

One :class:`Counters` belongs to one TaskManager. Only the data plane's event-loop thread writes it,
so an increment is one attribute addition: no lock, no label lookup, no metrics library. All values
only grow while the daemon lives.

The legs: *producer* is map task → TaskManager, *peer* is TaskManager → TaskManager, *consumer* is
TaskManager → reduce task. Bytes are payload bytes, frame heads not counted; a buffer is one
payload-carrying message of at most one segment.
"""

import copy
from dataclasses import dataclass, field, fields
from typing import Annotated

from .metric import Part, total

OTHER_KEY = "other"
"""Key that takes every count of a :class:`BoundedCounts` that has no room for another key."""

MAX_KEYS = 64
"""Keys kept by a :class:`BoundedCounts`: twice the message types of the wire, so that a hostile
client cannot grow a metrics page without end."""


PROGRESS_KINDS = ("region", "gate", "channel", "partition", "connection")
"""Things that are taken back when the other side does not move."""


DAMAGE_RESULTS = ("damaged", "intact", "repeated", "refused", "unknown")
"""Results of the check of a map output that a reader reports as damaged."""


class BoundedCounts(dict[str, int]):
    """Counts by name with a bounded set of names, safe for names that come from the network."""

    __slots__ = ()

    def bump(self, key: str, amount: int = 1) -> None:
        """Add ``amount`` to ``key``, or to ``"other"`` once ``MAX_KEYS`` names are in use."""
        if key not in self and len(self) >= MAX_KEYS:
            key = OTHER_KEY
        self[key] = self.get(key, 0) + amount


_WAITS = total(
    "Time that channels waited for data or for credit, summed over channels.",
    "served_channel_wait_seconds",
)
_SERVING = total(
    "Time by state, summed over gates (consumer) or connections (peer).",
    "serving_seconds",
)
_RECEIVED_BYTES = total("Payload bytes received.", "received_bytes")
_RECEIVED_BUFFERS = total("Buffers received.", "received_buffers")
_SENT_BYTES = total("Payload bytes sent.", "sent_bytes")
_SENT_BUFFERS = total("Buffers sent.", "sent_buffers")
_FINISHED = total(
    "Map outputs by outcome; adopted ones were found at the start.",
    "map_outputs_finished",
)
_HANDSHAKES = total("Finished handshakes.", "connections_finished_handshake")
_TLS_RELOADS = total(
    "Reloads of TLS files; after a refused one the previous files stay in use.",
    "tls_reloads",
)
_PARTITIONS_ENDED = total("Pipelined partitions by outcome.", "pipelined_partitions_ended")
_CREDIT_WAIT = total(
    "Time that producers waited for credit, summed over partitions.",
    "producer_credit_wait_seconds",
)


@dataclass(slots=True)
class ServingSeconds:
    """Times of a serving leg, as ``sluice.shuffle.taskmanager.serve.channel_times`` counts them.

    Waits are summed over channels; the states over the gates of the consumer leg, or over the
    connections of the peer leg. A gate or connection with nothing open is in no state.
    """

    data_wait: Annotated[float, _WAITS.at(wait="data")] = 0.0
    """Channels had credit and nothing to send."""
    credit_wait: Annotated[float, _WAITS.at(wait="credit")] = 0.0
    """Channels had something to send and no credit."""
    idle: Annotated[float, _SERVING.at(state="idle")] = 0.0
    busy: Annotated[float, _SERVING.at(state="busy")] = 0.0
    back_pressured: Annotated[float, _SERVING.at(state="back_pressured")] = 0.0

    def add(self, other: "ServingSeconds") -> None:
        """Add other sums to these."""
        self.data_wait += other.data_wait
        self.credit_wait += other.credit_wait
        self.idle += other.idle
        self.busy += other.busy
        self.back_pressured += other.back_pressured


@dataclass(slots=True)  # not a Struct: adding to a field of one takes half as long again
class Counters:
    """The counts of one TaskManager since it started."""

    producer_bytes_in: Annotated[int, _RECEIVED_BYTES.at(leg="producer")] = 0
    """Bytes of region data received from map tasks."""
    producer_buffers_in: Annotated[int, _RECEIVED_BUFFERS.at(leg="producer")] = 0
    region_area_bytes_in: Annotated[
        int,
        total(
            "Bytes received through region areas.",
            "region_area_received_bytes",
        ),
    ] = 0

    peer_bytes_out: Annotated[int, _SENT_BYTES.at(leg="peer", source="local")] = 0
    """Bytes sent to other TaskManagers in answer to their partition requests."""
    peer_buffers_out: Annotated[int, _SENT_BUFFERS.at(leg="peer", source="local")] = 0
    peer_bytes_in: Annotated[int, _RECEIVED_BYTES.at(leg="peer")] = 0
    """Bytes received from other TaskManagers into input gates."""
    peer_buffers_in: Annotated[int, _RECEIVED_BUFFERS.at(leg="peer")] = 0

    consumer_bytes_out_local: Annotated[int, _SENT_BYTES.at(leg="consumer", source="local")] = 0
    """Bytes sent to reduce tasks out of this TaskManager's own store: they crossed no peer leg."""
    consumer_buffers_out_local: Annotated[int, _SENT_BUFFERS.at(leg="consumer", source="local")] = 0
    consumer_bytes_out_remote: Annotated[int, _SENT_BYTES.at(leg="consumer", source="remote")] = 0
    """Bytes sent to reduce tasks that had come from another TaskManager."""
    consumer_buffers_out_remote: Annotated[
        int, _SENT_BUFFERS.at(leg="consumer", source="remote")
    ] = 0

    credits_sent: Annotated[int, total("Credits granted to senders.")] = 0
    """1 credit = 1 buffer."""
    credits_received: Annotated[int, total("Credits granted by receivers.")] = 0

    regions_written: Annotated[int, total("Regions written.")] = 0
    memory_tier_refusals: Annotated[
        int,
        total("Regions sent to disk because of the fair shares of the memory tier."),
    ] = 0
    map_outputs_committed: Annotated[int, _FINISHED.at(outcome="committed")] = 0
    map_outputs_aborted: Annotated[int, _FINISHED.at(outcome="aborted")] = 0
    """Map attempts given up: aborted by the producer, or its connection ended before the commit."""
    map_outputs_adopted: Annotated[int, _FINISHED.at(outcome="adopted")] = 0
    """Committed map outputs found in the journal when the daemon started."""

    copies_made: Annotated[
        int, total("Map outputs copied to other TaskManagers, moves included.")
    ] = 0
    copy_bytes_out: Annotated[int, total("Bytes sent for copies.", "copy_sent_bytes")] = 0
    copies_found: Annotated[int, total("Copies that the other TaskManager already had.")] = 0
    damaged_map_outputs_dropped: Annotated[
        int,
        total("Map outputs that were found damaged in storage, and dropped."),
    ] = 0
    damaged_map_outputs_repaired: Annotated[
        int, total("Dropped map outputs that have come back from a copy.")
    ] = 0
    damage_reports: Annotated[
        BoundedCounts,
        total(
            "Map outputs that readers reported as damaged, by what was found; `refused`: too many "
            "reports, or false ones before; `unknown`: not here.",
            key="result",
            zeros=DAMAGE_RESULTS,
        ),
    ] = field(default_factory=BoundedCounts)
    copies_failed: Annotated[int, total("Failed attempts to copy a map output.")] = 0
    remote_copies_made: Annotated[
        int, total("Map outputs copied to the remote tier, moves not included.")
    ] = 0
    remote_copy_bytes: Annotated[
        int, total("Bytes of map outputs copied to the remote tier.", "remote_copied_bytes")
    ] = 0
    remote_copies_failed: Annotated[
        int, total("Failed attempts to copy a map output to the remote tier.")
    ] = 0
    commits_without_copies: Annotated[
        int,
        total("Synchronous commits acknowledged before their copies were made."),
    ] = 0
    map_outputs_moved: Annotated[int, total("Map outputs moved to other TaskManagers.")] = 0

    gates_opened: Annotated[int, total("Input gates opened.")] = 0

    connections_accepted: Annotated[int, _HANDSHAKES.at(result="accepted")] = 0
    connections_refused: Annotated[int, _HANDSHAKES.at(result="refused")] = 0
    """Connections that ended in their handshake, for whatever reason."""
    socket_file_restorations: Annotated[
        int,
        total("Times that a removed file of the Unix socket was made again."),
    ] = 0
    tls_reloads: Annotated[int, _TLS_RELOADS.at(result="loaded")] = 0
    tls_reload_failures: Annotated[int, _TLS_RELOADS.at(result="refused")] = 0
    refused_connections: Annotated[
        BoundedCounts,
        total(
            "Connections refused in the handshake or for a forbidden request.",
            "connections_refused",
            key="reason",
        ),
    ] = field(default_factory=BoundedCounts)
    http_refused: Annotated[
        BoundedCounts,
        total(
            "Refused requests to the HTTP port.",
            key="reason",
        ),
    ] = field(default_factory=BoundedCounts)
    http_dropped: Annotated[
        BoundedCounts,
        total(
            "HTTP connections that this TaskManager closed: late request, idle, response not read, "
            "to make room; `no room`: refused.",
            "http_connections_dropped",
            key="reason",
        ),
    ] = field(default_factory=BoundedCounts)
    log_lines_dropped: Annotated[
        int, total("Log lines dropped because standard error was not read.")
    ] = 0
    audit_lines_dropped: Annotated[
        int, total("Audit log lines dropped because their file could not be written.")
    ] = 0
    applications_expired: Annotated[
        int, total("Applications whose data was dropped after their last connection closed.")
    ] = 0

    pipelined_partitions_opened: Annotated[int, total("Pipelined partitions opened.")] = 0
    pipelined_partitions_finished: Annotated[int, _PARTITIONS_ENDED.at(outcome="finished")] = 0
    pipelined_partitions_failed: Annotated[int, _PARTITIONS_ENDED.at(outcome="failed")] = 0
    """Partitions given up, by either side, before their producer had finished them."""

    producer_credit_wait_seconds: Annotated[float, _CREDIT_WAIT.at(kind="map_output")] = 0.0
    """Time for which open map outputs had a region begun and no credit outstanding."""
    pipelined_credit_wait_seconds: Annotated[float, _CREDIT_WAIT.at(kind="pipelined")] = 0.0
    """Time for which open pipelined partitions had no memory for another buffer."""
    peer_serving: Annotated[ServingSeconds, Part({"leg": "peer"})] = field(
        default_factory=ServingSeconds
    )
    """Of channels that other TaskManagers read."""
    consumer_serving: Annotated[ServingSeconds, Part({"leg": "consumer"})] = field(
        default_factory=ServingSeconds
    )
    """Of channels that reduce tasks read."""
    events_by_type: Annotated[
        BoundedCounts,
        total("Events that producers of pipelined partitions sent.", "events_received", key="type"),
    ] = field(default_factory=BoundedCounts)
    backward_messages: Annotated[
        BoundedCounts,
        total(
            "Messages from consumers to producers: task events, resumed consumption.",
            "backward_messages_received",
            key="type",
        ),
    ] = field(default_factory=BoundedCounts)
    late_messages: Annotated[
        BoundedCounts,
        total("Messages for a channel or partition that no longer exists.", key="type"),
    ] = field(default_factory=BoundedCounts)
    errors_by_code: Annotated[
        BoundedCounts,
        total(
            "Errors reported to clients and peers, or that closed a connection.",
            "errors",
            key="code",
        ),
    ] = field(default_factory=BoundedCounts)
    quota_refusals: Annotated[
        BoundedCounts, total("Requests refused because of a quota.", key="resource")
    ] = field(default_factory=BoundedCounts)
    progress_deadlines: Annotated[
        BoundedCounts,
        total(
            "Resources reclaimed after a progress deadline.",
            key="kind",
            zeros=PROGRESS_KINDS,
        ),
    ] = field(default_factory=BoundedCounts)

    def snapshot(self) -> "Counters":
        """Return a copy that no longer changes with this one."""
        return Counters(*(copy.copy(getattr(self, each.name)) for each in fields(self)))
