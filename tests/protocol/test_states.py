"""State × role × side × message, and the payload limit."""

import itertools

import pytest

from sluice.protocol import schema as m
from sluice.protocol.errors import UnexpectedMessage
from sluice.protocol.limits import (
    MAX_LARGE_PAYLOAD_BYTES,
)
from sluice.protocol.schema import TYPE_IDS
from sluice.protocol.states import (
    ALLOWED_WHEN_OPEN,
    ROLES,
    ConnectionState,
    Side,
    State,
    large_payload_limit,
    payload_limit,
)
from tests.protocol.wire_vectors import MESSAGES

EXAMPLES: dict[type[m.Message], m.Message] = {type(message): message for _, message, _ in MESSAGES}

# Written from the tables of docs/reference/wire.md, not from sluice.protocol.states: the
# sender of each message on each leg.
ANY_TIME: set[type[m.Message]] = {m.ErrorResponse, m.CloseRequest, m.Ping, m.Pong}
CONSUMER_OF_CHANNELS_SENDS: set[type[m.Message]] = {
    m.AddCredit,
    m.ResumeConsumption,
    m.CancelPartitionRequest,
    m.TaskEvent,
}
PRODUCER_OF_CHANNELS_SENDS: set[type[m.Message]] = {m.BufferResponse, m.BacklogAnnouncement}
CONNECTOR_SENDS: dict[int, set[type[m.Message]]] = {
    m.ROLE_PEER: CONSUMER_OF_CHANNELS_SENDS | {m.PartitionRequest, m.VerifyOutputs, m.TraceContext},
    m.ROLE_CONSUMER: CONSUMER_OF_CHANNELS_SENDS
    | {m.OpenGate, m.CloseGate, m.ReportDamage, m.TraceContext},
    m.ROLE_PRODUCER: {
        m.OpenPartition,
        m.BeginRegion,
        m.RegionData,
        m.FinishPartition,
        m.ResumePartition,
        m.SecureRegion,
        m.AttachRegionArea,
        m.SharedRegion,
        m.AbortPartition,
        m.OpenPipelinedPartition,
        m.PipelinedData,
        m.ReplicatePartition,
        m.ReplicateToRemote,
        m.WatchConsumption,
        m.TraceContext,
    },
    m.ROLE_DRIVER: {
        m.ReleaseShuffle,
        m.ReleaseApplication,
        m.KnownTaskManager,
        m.MoveNoted,
        m.ReleaseAttempts,
        m.CheckOutputs,
    },
    m.ROLE_COPIER: {
        m.OpenPartition,
        m.BeginRegion,
        m.RegionData,
        m.FinishPartition,
        m.AbortPartition,
        m.CopyOf,
        m.CopyChecksum,
        m.ReplicateToRemote,
        m.TraceContext,
        m.MemberReport,
    },
}
ACCEPTOR_SENDS: dict[int, set[type[m.Message]]] = {
    m.ROLE_PEER: PRODUCER_OF_CHANNELS_SENDS | {m.ChecksummedBuffer},
    m.ROLE_CONSUMER: PRODUCER_OF_CHANNELS_SENDS | {m.GateOpened, m.GateClosed},
    m.ROLE_PRODUCER: {
        m.PartitionOpened,
        m.RegionOpened,
        m.RegionAreaAttached,
        m.AddCredit,
        m.PartitionFinished,
        m.PartitionResumed,
        m.RegionSecured,
        m.PartitionAborted,
        m.TaskEvent,
        m.PartitionConsumed,
    },
    m.ROLE_DRIVER: {
        m.ShuffleReleased,
        m.ApplicationReleased,
        m.OutputsLost,
        m.OutputsHeld,
        m.OutputsRemote,
        m.OutputsMoved,
        m.OutputsChecked,
        m.MemberReport,
    },
    m.ROLE_COPIER: {
        m.PartitionOpened,
        m.RegionOpened,
        m.AddCredit,
        m.PartitionFinished,
        m.PartitionAborted,
        m.MemberReport,
    },
}


def _expected(side: Side, role: int, state: State) -> set[type[m.Message]]:
    if state is State.AWAIT_HELLO:
        return {m.Hello}
    if state is State.AWAIT_CHALLENGE:
        return {m.Challenge, m.HelloAck, m.ErrorResponse}
    if state is State.AWAIT_PROOF:
        return {m.Proof, m.ErrorResponse}
    if state is State.AWAIT_ACK:
        return {m.HelloAck, m.ErrorResponse}
    if state is State.CLOSED:
        return set()
    return ANY_TIME | (CONNECTOR_SENDS if side is Side.ACCEPTED else ACCEPTOR_SENDS)[role]


def _connection(side: Side, role: int, state: State) -> ConnectionState:
    connected = side is Side.CONNECTED
    claims = connected and state is State.AWAIT_CHALLENGE
    connection = ConnectionState(side, role if connected else 0, claims=claims)
    if state is State.AWAIT_PROOF:
        connection.await_next(state)
    if state is State.OPEN:
        connection.open(role)
    elif state is State.CLOSED:
        connection.close()
    return connection


REACHABLE = [
    (side, role, state)
    for side, role, state in itertools.product(Side, sorted(ROLES), State)
    if (side, state)
    not in {
        (Side.ACCEPTED, State.AWAIT_ACK),
        (Side.ACCEPTED, State.AWAIT_CHALLENGE),
        (Side.CONNECTED, State.AWAIT_HELLO),
    }
]


@pytest.mark.parametrize("kind", TYPE_IDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    ("side", "role", "state"),
    REACHABLE,
    ids=[f"{side.value}-{role}-{state.value}" for side, role, state in REACHABLE],
)
def test_allowed_or_unexpected(side: Side, role: int, state: State, kind: type[m.Message]) -> None:
    connection = _connection(side, role, state)
    assert connection.state is state
    if kind in _expected(side, role, state):
        connection.check(EXAMPLES[kind])
    else:
        with pytest.raises(UnexpectedMessage, match=kind.__name__) as caught:
            connection.check(EXAMPLES[kind])
        assert state.value in str(caught.value.value)
        assert caught.value.limit
    # A check moves nothing.
    assert (connection.state, connection.side) == (state, side)


def test_every_message_is_allowed_somewhere() -> None:
    somewhere = {m.Hello, m.HelloAck, m.Challenge, m.Proof}.union(*ALLOWED_WHEN_OPEN.values())
    assert somewhere == set(TYPE_IDS)


def test_the_role_of_an_accepted_connection_comes_with_the_hello() -> None:
    connection = ConnectionState(Side.ACCEPTED)
    assert connection.role == 0
    connection.open(m.ROLE_DRIVER)
    assert connection.role == m.ROLE_DRIVER


@pytest.mark.parametrize("side", Side)
def test_closed_before_the_handshake(side: Side) -> None:
    connection = ConnectionState(side, m.ROLE_PEER)
    connection.close()
    connection.close()
    for message in EXAMPLES.values():
        with pytest.raises(UnexpectedMessage) as caught:
            connection.check(message)
        assert caught.value.limit == "nothing"


@pytest.mark.parametrize("side", list(Side))
def test_messages_of_credit_have_no_place_in_watermark_mode(side: Side) -> None:
    connection = ConnectionState(side, m.ROLE_PEER)
    connection.open(m.ROLE_PEER, m.FLOW_WATERMARK)
    assert connection.allowed == ALLOWED_WHEN_OPEN[side, m.ROLE_PEER] - {
        m.AddCredit,
        m.BacklogAnnouncement,
    }


@pytest.mark.parametrize(
    ("own", "other", "limit"),
    [
        (32768, 32768, 32768),
        (32768, 1024, 1024),
        (1024, 32768, 1024),
        (32768, 0, 32768),
        (0, 32768, 32768),
        (0, 0, 0),
    ],
)
def test_payload_limit(own: int, other: int, limit: int) -> None:
    assert payload_limit(own, other) == limit


@pytest.mark.parametrize("own", [32768, 1000])
@pytest.mark.parametrize(
    ("role", "other", "limit"),
    [
        (m.ROLE_PRODUCER, 0, "most"),
        (m.ROLE_PRODUCER, 40000, "segment"),
        (m.ROLE_CONSUMER, 0, "most"),
        (m.ROLE_CONSUMER, 40000, "some"),
        (m.ROLE_CONSUMER, 2 * MAX_LARGE_PAYLOAD_BYTES, "group"),
        (m.ROLE_PEER, 40000, "group"),
        (m.ROLE_PEER, 2 * MAX_LARGE_PAYLOAD_BYTES, "group"),
    ],
)
def test_large_payload_limit(role: int, own: int, other: int, limit: str) -> None:
    expected = {
        "most": MAX_LARGE_PAYLOAD_BYTES,
        "segment": own,
        "some": other // own * own,
        "group": MAX_LARGE_PAYLOAD_BYTES // own * own,
    }[limit]
    assert large_payload_limit(Side.ACCEPTED, role, own, other) == expected


@pytest.mark.parametrize("role", [m.ROLE_PRODUCER, m.ROLE_CONSUMER])
def test_a_client_takes_large_payloads_and_whole_segments(role: int) -> None:
    for segment in (1000, 32768, 4 * MAX_LARGE_PAYLOAD_BYTES):
        most = max(segment, MAX_LARGE_PAYLOAD_BYTES)
        assert large_payload_limit(Side.CONNECTED, role, 0, segment) == most
