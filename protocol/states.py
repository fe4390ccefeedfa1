"""The state machine of a connection, as tables.

A connection is made for one *role*, named in the Hello of the side that connected. It lives through

::

    AWAIT_HELLO ──recv Hello──▶ OPEN ──▶ CLOSED        the side that accepted
    AWAIT_ACK ──recv HelloAck─▶ OPEN ──▶ CLOSED        the side that connected

The tables name every message that a peer may send in a state and a role; any other message is a
violation that closes the connection. This module does not know the meaning of messages.
"""

import enum
from typing import Final

from . import messages as m
from .errors import (
    MalformedMessage,
    SegmentSizeMismatch,
    UnexpectedMessage,
    UnsupportedVersion,
)
from .limits import (
    FEATURE_BUFFER_GROUPS,
    FEATURE_LARGE_PAYLOADS,
    MAGIC,
    MAX_CONTROL_BYTES,
    MAX_HANDSHAKE_CONTROL_BYTES,
    MAX_LARGE_PAYLOAD_BYTES,
    VERSION,
)


class State(enum.Enum):
    """States of a connection."""

    AWAIT_HELLO = "await hello"
    AWAIT_ACK = "await ack"
    OPEN = "open"
    CLOSED = "closed"


class Side(enum.Enum):
    """The end of a connection that this process is."""

    ACCEPTED = "accepted"
    CONNECTED = "connected"


_Types = frozenset[type[m.Message]]

_BOTH: Final[_Types] = frozenset({m.ErrorResponse, m.CloseRequest, m.Ping, m.Pong})

_DATA_DOWN: Final[_Types] = frozenset({m.BufferResponse, m.BacklogAnnouncement})
_DATA_UP: Final[_Types] = frozenset(
    {m.AddCredit, m.ResumeConsumption, m.CancelPartitionRequest, m.TaskEvent, m.NewBufferSize}
)

ALLOWED_WHEN_OPEN: Final[dict[tuple[Side, int], _Types]] = {
    # received by the accepting side
    (Side.ACCEPTED, m.ROLE_PEER): _BOTH | _DATA_UP | {m.PartitionRequest},
    (Side.ACCEPTED, m.ROLE_CONSUMER): _BOTH | _DATA_UP | {m.OpenGate, m.CloseGate},
    (Side.ACCEPTED, m.ROLE_PRODUCER): _BOTH
    | {
        m.OpenPartition,
        m.BeginRegion,
        m.RegionData,
        m.AttachRegionArea,
        m.SharedRegion,
        m.OpenPipelinedPartition,
        m.PipelinedData,
        m.ResumePartition,
        m.SecureRegion,
        m.FinishPartition,
        m.AbortPartition,
    },
    (Side.ACCEPTED, m.ROLE_DRIVER): _BOTH | {m.ReleaseShuffle, m.ReleaseApplication},
    # received by the connecting side
    (Side.CONNECTED, m.ROLE_PEER): _BOTH | _DATA_DOWN,
    (Side.CONNECTED, m.ROLE_CONSUMER): _BOTH | _DATA_DOWN | {m.GateOpened, m.GateClosed},
    (Side.CONNECTED, m.ROLE_PRODUCER): _BOTH
    | {
        m.PartitionOpened,
        m.RegionOpened,
        m.RegionAreaAttached,
        m.AddCredit,
        m.PartitionResumed,
        m.RegionSecured,
        m.PartitionFinished,
        m.PartitionAborted,
        m.TaskEvent,
        m.NewBufferSize,
    },
    (Side.CONNECTED, m.ROLE_DRIVER): _BOTH | {m.ShuffleReleased, m.ApplicationReleased},
}

CREDIT_ONLY: Final[_Types] = frozenset({m.AddCredit, m.BacklogAnnouncement})
"""Messages that are a violation on a connection in watermark mode."""

CONTROL_LIMITS: Final[dict[tuple[Side, int], int]] = {
    key: (
        MAX_CONTROL_BYTES
        if allowed & {m.OpenGate, m.PartitionRequest, m.BeginRegion}
        else MAX_HANDSHAKE_CONTROL_BYTES
    )
    for key, allowed in ALLOWED_WHEN_OPEN.items()
}
"""Longest control part to receive. Only messages with map attempts or subpartitions are long; all
messages of a driver, and all messages back on any leg, are shorter than a Hello may be."""

ROLES: Final = frozenset({m.ROLE_PEER, m.ROLE_PRODUCER, m.ROLE_CONSUMER, m.ROLE_DRIVER})

_BEFORE_OPEN: Final[dict[State, _Types]] = {
    State.AWAIT_HELLO: frozenset({m.Hello}),
    State.AWAIT_ACK: frozenset({m.HelloAck, m.ErrorResponse}),
    State.CLOSED: frozenset(),
}


class ConnectionState:
    """The state of a connection, and the messages that it may receive in it.

    Args:
        side: The end that this process is.
        role: The connection's role if this side connected; otherwise the Hello sets it.
    """

    __slots__ = ("allowed", "role", "side", "state")

    def __init__(self, side: Side, role: int = 0) -> None:
        self.side = side
        self.role = role
        self.state = State.AWAIT_HELLO if side is Side.ACCEPTED else State.AWAIT_ACK
        self.allowed: _Types = _BEFORE_OPEN[self.state]

    def check(self, message: m.Message) -> None:
        """Check that a message may be received now; call it for every message.

        Raises:
            UnexpectedMessage: The message is not allowed now.
        """
        if type(message) not in self.allowed:
            raise UnexpectedMessage(
                f"{type(message).__name__} is not allowed here",
                value=f"state {self.state.value}, role {self.role}",
                limit=", ".join(sorted(kind.__name__ for kind in self.allowed)) or "nothing",
            )

    def open(self, role: int, flow_control: int = m.FLOW_CREDIT) -> None:
        """Enter OPEN after a good handshake, with the agreed flow control."""
        self.role = role
        self.state = State.OPEN
        self.allowed = ALLOWED_WHEN_OPEN[self.side, role]
        if flow_control == m.FLOW_WATERMARK:
            self.allowed -= CREDIT_ONLY

    def close(self) -> None:
        """Enter CLOSED, in which no message may be received."""
        self.state = State.CLOSED
        self.allowed = _BEFORE_OPEN[State.CLOSED]


def answer_hello(hello: m.Hello, offer: m.HelloAck) -> m.HelloAck:
    """Decide on a Hello.

    Args:
        hello: The Hello of the connecting side.
        offer: This side's own numbers; its version is the newest that this side knows.

    Returns:
        The HelloAck to send.

    Raises:
        MalformedMessage: The magic is wrong, the role or the flow control is unknown, or the
            application is missing.
        UnsupportedVersion: The two sides have no common version.
        SegmentSizeMismatch: A peer has another segment size.
    """
    if hello.magic != MAGIC:
        raise MalformedMessage("Hello has the wrong magic", value=hello.magic, limit=MAGIC)
    if not hello.version_min <= VERSION <= hello.version_max:
        raise UnsupportedVersion(
            "No common protocol version",
            value=f"{hello.version_min} to {hello.version_max}",
            limit=VERSION,
            remedy="Use the same release of Sluice on both sides",
        )
    if hello.role not in ROLES:
        raise MalformedMessage("Hello has an unknown role", value=hello.role, limit="1 to 4")
    if (hello.role == m.ROLE_PEER) != (hello.application_id == ""):
        raise MalformedMessage(
            "The Hello of a client must name an application, that of a peer must not",
            value=f"role {hello.role}, application {hello.application_id!r}",
        )
    if hello.flow_control not in (m.FLOW_CREDIT, m.FLOW_WATERMARK):
        raise MalformedMessage(
            "Hello has an unknown flow control mode",
            value=hello.flow_control,
            limit="0 or 1",
        )
    if hello.role == m.ROLE_PEER and hello.segment_size_bytes != offer.segment_size_bytes:
        raise SegmentSizeMismatch(
            "TaskManagers have different segment sizes",
            value=hello.segment_size_bytes,
            limit=offer.segment_size_bytes,
            remedy="Set memory.segment_size_bytes to the same value on all TaskManagers",
        )
    return offer._replace(
        features=hello.features & offer.features,
        # Clients are always served by credit, also if they ask for watermark mode.
        flow_control=hello.flow_control if hello.role == m.ROLE_PEER else m.FLOW_CREDIT,
    )


def check_ack(hello: m.Hello, ack: m.HelloAck) -> None:
    """Check the answer of the accepting side to a Hello.

    Raises:
        UnsupportedVersion: The version was not offered.
        MalformedMessage: The flow control mode is neither credit nor the requested one.
    """
    if ack.version != VERSION:
        raise UnsupportedVersion(
            "HelloAck names a version that was not offered",
            value=ack.version,
            limit=VERSION,
            remedy="Use the same release of Sluice on both sides",
        )
    if ack.flow_control not in (m.FLOW_CREDIT, hello.flow_control):
        raise MalformedMessage(
            "HelloAck names a flow control mode that was not asked for",
            value=ack.flow_control,
            limit=f"{m.FLOW_CREDIT} or {hello.flow_control}",
        )


def payload_limit(own: int, other: int) -> int:
    """Return the largest payload that both sides accept; a side with 0 has no limit of its own."""
    return min(own, other) if own and other else own or other


def large_payload_limit(role: int, features: int, own: int, other: int) -> int:
    """Return the largest payload of data messages.

    It is above :func:`payload_limit` on client legs that agreed on large payloads, for data that
    needs no segment of this side, and on peer and consumer legs that agreed on groups of buffers,
    where it is a multiple of the segment size.

    Args:
        role: Role of the connection.
        features: Feature bits that both sides agreed on.
        own: Segment size of this side in bytes.
        other: Segment size of the other side in bytes.
    """
    segment = payload_limit(own, other)
    if role in (m.ROLE_PEER, m.ROLE_CONSUMER) and features & FEATURE_BUFFER_GROUPS:
        return max(segment, MAX_LARGE_PAYLOAD_BYTES // segment * segment)
    if role == m.ROLE_PEER or not features & FEATURE_LARGE_PAYLOADS:
        return segment
    return min(other, MAX_LARGE_PAYLOAD_BYTES) if other else MAX_LARGE_PAYLOAD_BYTES
