"""Numbers of the wire protocol, each with its reason (docs/reference/wire.md)."""

from typing import Final

MAGIC: Final = "sluice"
VERSION: Final = 1
"""The only protocol version so far."""

PREFIX_BYTES: Final = 8
"""Frame prefix: control length u32 and payload length u32, big endian."""

MAX_HANDSHAKE_CONTROL_BYTES: Final = 4 * 1024
"""Longest control part before the end of the handshake; a Hello has two short strings."""

MAX_CONTROL_BYTES: Final = 4 * 1024 * 1024
"""Longest control part. An OpenGate is the longest message: at 5 bytes each it has room for some
800,000 map attempts."""

MAX_GATE_CHANNELS: Final = 16 * 1024
"""Most channels of a gate, which has one for each TaskManager that holds map outputs."""

MAX_EVENT_BYTES: Final = 1024
"""Longest event. Events are a few integers and are received outside the segment pool, so they are
kept small."""

RECEIVE_TAIL_BYTES: Final = 64
"""Spare bytes behind each receive buffer: one recv() can bring a payload and the next frame's head.

The prefix and the control part of a ChecksummedBuffer take at most 8 + 23 bytes.
"""

MAX_ERROR_TEXT_CHARACTERS: Final = 320
"""Longest text in an ErrorResponse of this side: three of them, at most 4 bytes a character, fit
MAX_HANDSHAKE_CONTROL_BYTES, so that an error in answer to a Hello always arrives."""

HEAD_BYTES: Final = 4 * 1024
"""Size of the buffer that frame heads and small messages are received into."""

FIRST_CONTROL_BYTES: Final = 2 * HEAD_BYTES
"""First memory of a control part that does not fit into the head buffer; it doubles from there."""

MAX_U32: Final = 2**32 - 1
MAX_U64: Final = 2**64 - 1
MIN_I64: Final = -(2**63)
MAX_I64: Final = 2**63 - 1

MAX_CREDIT: Final = 2**31 - 1
"""Most credit of a channel; Flink counts credit in a signed 32-bit integer."""

MAX_NAME_CHARACTERS: Final = 256
"""Longest application id, TaskManager id, host or connection name."""

MAX_SUBJECT_BYTES: Final = 512
"""Longest subject of a credential: a user's name, or the address of a TaskManager."""

NONCE_BYTES: Final = 32
"""Length of a nonce and of a proof in a handshake: that of an HMAC-SHA-256."""

FEATURE_LARGE_PAYLOADS: Final = 1
"""Feature bit: payloads above the segment size on client legs, which use no segments."""

FEATURE_BUFFER_GROUPS: Final = 2
"""Feature bit: a frame of a peer leg may have several buffers of one channel, each for a credit."""

FEATURE_RESUMABLE_OUTPUTS: Final = 4
"""Feature bit: a map output goes on from its secured regions on another connection."""

FEATURE_REGION_AREAS: Final = 8
"""Feature bit: a producer on the same host may put regions into memory shared by both sides."""

FEATURE_ENCRYPTED_PEERS: Final = 16
"""Feature bit: the TaskManager speaks TLS with all others."""

FEATURE_BUFFER_CHECKSUMS: Final = 32
"""Feature bit: buffers and events of pipelined partitions have a checksum on the peer leg."""

FEATURE_LOST_OUTPUTS: Final = 64
"""Feature bit: a driver is told of map outputs that were lost with a storage directory."""

FEATURE_COPIES: Final = 128
"""Feature bit: map outputs have copies, and move to other TaskManagers."""

FEATURE_BOUNDED_RELEASES: Final = 256
"""Feature bit: a release of a shuffle may have an upper bound of map attempts."""

FEATURE_CHECKED_OUTPUTS: Final = 512
"""Feature bit: a driver may ask which map outputs are missing; needs FEATURE_LOST_OUTPUTS."""

FEATURE_INSTANCES: Final = 1024
"""Feature bit: HelloAck has the instance id of the TaskManager, which is new at each start."""

FEATURES: Final[dict[str, int]] = {
    "large_payloads": FEATURE_LARGE_PAYLOADS,
    "buffer_groups": FEATURE_BUFFER_GROUPS,
    "resumable_outputs": FEATURE_RESUMABLE_OUTPUTS,
    "region_areas": FEATURE_REGION_AREAS,
    "buffer_checksums": FEATURE_BUFFER_CHECKSUMS,
    "lost_outputs": FEATURE_LOST_OUTPUTS,
    "copies": FEATURE_COPIES,
    "bounded_releases": FEATURE_BOUNDED_RELEASES,
    "checked_outputs": FEATURE_CHECKED_OUTPUTS,
    "instances": FEATURE_INSTANCES,
}
"""Features by name that a TaskManager may do without. TLS between TaskManagers is not among them:
clients ask for it, and never give it up."""

MAX_LOST_ATTEMPTS: Final = 256
"""Most map attempts in a message to a driver: 2.3 KB of msgpack at most."""

MAX_REPLICAS: Final = 8
"""Most TaskManagers that keep a map output."""

MAX_LARGE_PAYLOAD_BYTES: Final = 256 * 1024
"""Largest payload with FEATURE_LARGE_PAYLOADS: eight segments of the default size cost one message,
and the payload is still small against a socket's buffers."""

DEFAULT_SEGMENT_SIZE_BYTES: Final = 32 * 1024
"""Flink's default size of a network buffer."""
