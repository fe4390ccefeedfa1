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
"""Longest control part. The longest messages are an OpenGate with MAX_GATE_ATTEMPTS map attempts,
and a BeginRegion with the lengths of a million subpartitions."""

MAX_GATE_CHANNELS: Final = 16 * 1024
"""Most channels of a gate, which has one for each TaskManager with map outputs."""

MAX_GATE_ATTEMPTS: Final = 256 * 1024
"""Most map attempts of a gate, all its channels together, or of a partition request."""

MAX_EVENT_BYTES: Final = 1024
"""Longest event. Events are a few integers and are received outside the segment pool, so they must
be small."""

RECEIVE_TAIL_BYTES: Final = 64
"""Spare bytes after each receive buffer: one recv() can bring a payload and the next frame's head.

The prefix and the control part of a ChecksummedBuffer take at most 8 + 23 bytes.
"""

MAX_ERROR_TEXT_CHARACTERS: Final = 320
"""Longest text in an ErrorResponse of this side: three texts of up to 4 bytes per character fit in
MAX_HANDSHAKE_CONTROL_BYTES, so an error in answer to a Hello always arrives."""

HEAD_BYTES: Final = 4 * 1024
"""Size of the receive buffer for frame heads and small messages."""

HEAD_READ_BYTES: Final = 256
"""Most bytes of one read into it: about twenty small messages, after which others have their turn
of the event loop."""

FIRST_CONTROL_BYTES: Final = 2 * HEAD_BYTES
"""Initial memory of a control part that does not fit into the head buffer; it doubles."""

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

MAX_PROCESS_CHARACTERS: Final = 64
"""Longest random text of a client's process: 32 bytes in hexadecimal."""

NONCE_BYTES: Final = 32
"""Length of a nonce and of a proof in a handshake: the size of an HMAC-SHA-256."""

PEERS_ENCRYPTED: Final = 1 << 4
"""Bit in the features of a HelloAck: the TaskManager uses TLS with all others.

It reports a setting. The first features of protocol version 1 do not have bits; the next addition
to the protocol gets bit 10.
"""

COPIES_COMPARED: Final = 1 << 0
"""Bit in the features of Hello and HelloAck: a copier sends CopyChecksum."""

DAMAGE_REPORTS: Final = 1 << 1
"""Bit in the features of Hello and HelloAck: readers send ReportDamage, and peers VerifyOutputs."""

HYBRID_PARTITIONS: Final = 1 << 2
"""Bit in the features of Hello and HelloAck: a producer may open hybrid partitions."""

REMOTE_COPIES: Final = 1 << 3
"""Bit in the features of Hello and HelloAck: the TaskManager has a remote tier, takes
ReplicateToRemote, and sends OutputsRemote to drivers."""

COPIER_IDLE: Final = 1 << 5
"""Bit in the features of a copier's Hello: its TaskManager has no client of the application now."""

COPIER_ADOPTED: Final = 1 << 6
"""Bit in the features of a copier's Hello, besides COPIER_IDLE: its TaskManager adopted the
application at its start, and has not had a client of it since. So it cannot know whether the
application has ended."""

HYBRID_FULL_PARTITIONS: Final = 1 << 7
"""Bit in the features of Hello and HelloAck: a producer may open full hybrid partitions."""

TRACES: Final = 1 << 8
"""Bit in the features of Hello and HelloAck: the acceptor makes traces and takes TraceContext."""

MEMBERS: Final = 1 << 9
"""Bit in the features of Hello and HelloAck: drivers and TaskManagers take MemberReport."""

MAX_LOST_ATTEMPTS: Final = 256
"""Most map attempts in a message to a driver: 2.3 KB of msgpack at most."""

MAX_PROCESSES: Final = 256
"""Most data processes of a TaskManager."""

MAX_REPLICAS: Final = 8
"""Most copies of a map output, each on its own TaskManager."""

MAX_LARGE_PAYLOAD_BYTES: Final = 1024 * 1024
"""Largest payload if segments do not limit it: 32 segments of the default size in one message."""

SEGMENTS_OF_CLIENTS_BYTES: Final = 1024 * 1024
"""Segment size that a client with segments announces: its segments are as large as those of the
TaskManager, which are at most this large."""

DEFAULT_SEGMENT_SIZE_BYTES: Final = 32 * 1024
"""Flink's default size of a network buffer."""
