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

PEERS_ENCRYPTED: Final = 1 << 4
"""The only bit in the features of Hello and HelloAck: the TaskManager speaks TLS with all others.

It tells a setting. What this release can do is the baseline of protocol version 1 and has no bits;
the next addition to the protocol gets bit 0.
"""

MAX_LOST_ATTEMPTS: Final = 256
"""Most map attempts in a message to a driver: 2.3 KB of msgpack at most."""

MAX_REPLICAS: Final = 8
"""Most TaskManagers that keep a map output."""

MAX_LARGE_PAYLOAD_BYTES: Final = 256 * 1024
"""Largest payload where no segment bounds it: eight segments of the default size cost one message,
and the payload is still small against a socket's buffers."""

SEGMENTS_OF_CLIENTS_BYTES: Final = 1024 * 1024
"""What a client with segments says of their size: they are as large as those of the TaskManager,
which has at most this much."""

DEFAULT_SEGMENT_SIZE_BYTES: Final = 32 * 1024
"""Flink's default size of a network buffer."""
