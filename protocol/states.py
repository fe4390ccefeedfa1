"""The state machine of a connection, as tables.

A connection has one *role*, named in the Hello of the side that connected. Its states are

::

    the side that accepted
        AWAIT_HELLO ──Hello──▶ OPEN                                  without a claim
        AWAIT_HELLO ──Hello──▶ AWAIT_PROOF ──Proof──▶ OPEN           with a claim
    the side that connected
        AWAIT_ACK ──HelloAck──▶ OPEN                                 without a claim
        AWAIT_CHALLENGE ──Challenge──▶ AWAIT_PROOF ──Proof──▶ AWAIT_ACK ──HelloAck──▶ OPEN

and from any state CLOSED. The tables list the messages that the other side may send in each state
and role; any other message is a violation that closes the connection. This module does not know the
meaning of messages.
"""

import enum
from typing import Final

from . import schema as m
from .errors import UnexpectedMessage
from .limits import (
    MAX_CONTROL_BYTES,
    MAX_HANDSHAKE_CONTROL_BYTES,
    MAX_LARGE_PAYLOAD_BYTES,
)


class State(enum.Enum):
    """States of a connection."""

    AWAIT_HELLO = "await hello"
    AWAIT_CHALLENGE = "await challenge"
    AWAIT_PROOF = "await proof"
    AWAIT_ACK = "await ack"
    OPEN = "open"
    CLOSED = "closed"


class Side(enum.Enum):
    """Whether this process accepted or made a connection."""

    ACCEPTED = "accepted"
    CONNECTED = "connected"


_Types = frozenset[type[m.Message]]

_BOTH: Final[_Types] = frozenset({m.ErrorResponse, m.CloseRequest, m.Ping, m.Pong})

_DATA_DOWN: Final[_Types] = frozenset({m.BufferResponse, m.BacklogAnnouncement})
_DATA_UP: Final[_Types] = frozenset(
    {m.AddCredit, m.ResumeConsumption, m.CancelPartitionRequest, m.TaskEvent}
)

_STORED_UP: Final[_Types] = frozenset(
    {m.OpenPartition, m.BeginRegion, m.RegionData, m.FinishPartition, m.AbortPartition}
)
_STORED_DOWN: Final[_Types] = frozenset(
    {m.PartitionOpened, m.RegionOpened, m.AddCredit, m.PartitionFinished, m.PartitionAborted}
)

ALLOWED_WHEN_OPEN: Final[dict[tuple[Side, int], _Types]] = {
    # received by the accepting side
    (Side.ACCEPTED, m.ROLE_PEER): _BOTH
    | _DATA_UP
    | {m.PartitionRequest, m.VerifyOutputs, m.TraceContext},
    (Side.ACCEPTED, m.ROLE_CONSUMER): _BOTH
    | _DATA_UP
    | {m.OpenGate, m.CloseGate, m.ReportDamage, m.TraceContext},
    (Side.ACCEPTED, m.ROLE_PRODUCER): _BOTH
    | _STORED_UP
    | {
        m.AttachRegionArea,
        m.SharedRegion,
        m.OpenPipelinedPartition,
        m.PipelinedData,
        m.ResumePartition,
        m.SecureRegion,
        m.ReplicatePartition,
        m.ReplicateToRemote,
        m.WatchConsumption,
        m.TraceContext,
    },
    (Side.ACCEPTED, m.ROLE_COPIER): _BOTH
    | _STORED_UP
    | {m.CopyOf, m.CopyChecksum, m.ReplicateToRemote, m.TraceContext, m.MemberReport},
    (Side.ACCEPTED, m.ROLE_DRIVER): _BOTH
    | {
        m.ReleaseShuffle,
        m.ReleaseApplication,
        m.KnownTaskManager,
        m.MoveNoted,
        m.ReleaseAttempts,
        m.CheckOutputs,
    },
    # received by the connecting side
    (Side.CONNECTED, m.ROLE_PEER): _BOTH | _DATA_DOWN | {m.ChecksummedBuffer},
    (Side.CONNECTED, m.ROLE_CONSUMER): _BOTH | _DATA_DOWN | {m.GateOpened, m.GateClosed},
    (Side.CONNECTED, m.ROLE_PRODUCER): _BOTH
    | _STORED_DOWN
    | {
        m.RegionAreaAttached,
        m.PartitionResumed,
        m.RegionSecured,
        m.TaskEvent,
        m.PartitionConsumed,
    },
    (Side.CONNECTED, m.ROLE_COPIER): _BOTH | _STORED_DOWN | {m.MemberReport},
    (Side.CONNECTED, m.ROLE_DRIVER): _BOTH
    | {
        m.ShuffleReleased,
        m.ApplicationReleased,
        m.OutputsLost,
        m.OutputsHeld,
        m.OutputsRemote,
        m.OutputsMoved,
        m.OutputsChecked,
        m.MemberReport,
    },
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
messages of a driver, and all answers on any leg, are shorter than the longest Hello."""

ROLES: Final = frozenset(
    {m.ROLE_PEER, m.ROLE_PRODUCER, m.ROLE_CONSUMER, m.ROLE_DRIVER, m.ROLE_COPIER}
)

BEFORE_OPEN: Final[dict[tuple[Side, State], _Types]] = {
    (Side.ACCEPTED, State.AWAIT_HELLO): frozenset({m.Hello}),
    (Side.ACCEPTED, State.AWAIT_PROOF): frozenset({m.Proof, m.ErrorResponse}),
    # The handshake refuses the HelloAck of a side that proves nothing, and states the reason.
    (Side.CONNECTED, State.AWAIT_CHALLENGE): frozenset({m.Challenge, m.HelloAck, m.ErrorResponse}),
    (Side.CONNECTED, State.AWAIT_PROOF): frozenset({m.Proof, m.ErrorResponse}),
    (Side.CONNECTED, State.AWAIT_ACK): frozenset({m.HelloAck, m.ErrorResponse}),
}
"""Messages allowed in each state of the handshake."""

_NOTHING: Final[_Types] = frozenset()


class ConnectionState:
    """The state of a connection, and the messages that it may receive.

    Args:
        side: Whether this process accepted or made the connection.
        role: The connection's role if this side connected; otherwise the Hello sets it.
        claims: Whether this side connected and has a claim to prove.
    """

    __slots__ = ("allowed", "role", "side", "state")

    def __init__(self, side: Side, role: int = 0, *, claims: bool = False) -> None:
        self.side = side
        self.role = role
        if side is Side.ACCEPTED:
            self.state = State.AWAIT_HELLO
        else:
            self.state = State.AWAIT_CHALLENGE if claims else State.AWAIT_ACK
        self.allowed: _Types = BEFORE_OPEN[side, self.state]

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

    def await_next(self, state: State) -> None:
        """Enter another state of the handshake."""
        self.state = state
        self.allowed = BEFORE_OPEN[self.side, state]

    def open(self, role: int, flow_control: int = m.FLOW_CREDIT) -> None:
        """Enter OPEN after the handshake, with the agreed flow control."""
        self.role = role
        self.state = State.OPEN
        self.allowed = ALLOWED_WHEN_OPEN[self.side, role]
        if flow_control == m.FLOW_WATERMARK:
            self.allowed -= CREDIT_ONLY

    def close(self) -> None:
        """Enter CLOSED, in which no message may be received."""
        self.state = State.CLOSED
        self.allowed = _NOTHING


def payload_limit(own: int, other: int) -> int:
    """Return the largest payload that both sides accept; 0 means no limit."""
    return min(own, other) if own and other else own or other


def large_payload_limit(side: Side, role: int, own: int, other: int) -> int:
    """Return the largest payload of data messages.

    It is above :func:`payload_limit` for clients without segments. It is as many whole segments as
    fit on peer legs, and for consumers with segments that take several in one message.

    Args:
        side: Whether this process accepted or made the connection.
        role: Role of the connection.
        own: Segment size of this side in bytes, 0 if it has no segments.
        other: The same of the other side.
    """
    segment = payload_limit(own, other)
    if role == m.ROLE_PEER:
        most = MAX_LARGE_PAYLOAD_BYTES
    elif side is Side.CONNECTED:
        return max(segment, MAX_LARGE_PAYLOAD_BYTES)
    elif not other:
        return MAX_LARGE_PAYLOAD_BYTES
    elif role == m.ROLE_CONSUMER:
        most = min(other, MAX_LARGE_PAYLOAD_BYTES)
    else:
        return segment
    return max(segment, most // segment * segment)
