"""Handshakes behind their state table: any message in any state, and damage on the wire.

A connection checks each message against the table first, and its handshake takes what is left. Here
both are driven as a connection drives them, without a loop.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sluice.protocol import schema as m
from sluice.protocol.admission import AcceptingHandshake
from sluice.protocol.errors import AuthenticationFailed, ProtocolViolation, UnexpectedMessage
from sluice.protocol.framing import FrameDecoder
from sluice.protocol.handshake import ConnectingHandshake
from sluice.protocol.identity import ClusterSecrets, Credential, SubmitToken
from sluice.protocol.limits import NONCE_BYTES, PREFIX_BYTES
from sluice.protocol.schema import encode
from sluice.protocol.states import BEFORE_OPEN, ROLES, ConnectionState, Side, State
from tests.protocol import identity_vectors as vectors
from tests.protocol.wire_vectors import MESSAGES as WIRE_MESSAGES
from tests.support.decoding import RecordingSink, feed
from tests.support.strategies import MESSAGES, MESSAGES_BY_TYPE

TOKEN = SubmitToken.make(vectors.SECRET, "alice", 0, vectors.TOKEN_ID)
DRIVER = TOKEN.application(vectors.SALT)
BOB = SubmitToken.make(vectors.SECRET, "bob", 0, vectors.TOKEN_ID).application(vectors.SALT)
DRIVER_HELLO = replace(vectors.CLIENT, role=m.ROLE_DRIVER)


class Meeting(NamedTuple):
    """Who meets whom in a handshake, and over what."""

    hello: m.Hello
    credential: Credential | None
    binding: bytes = b""
    connector_nonce: bytes = vectors.CONNECTOR_NONCE
    acceptor_nonce: bytes = vectors.ACCEPTOR_NONCE


AS_DRIVER = Meeting(DRIVER_HELLO, DRIVER)
MEETINGS = {
    "driver": AS_DRIVER,
    "consumer": Meeting(vectors.CLIENT, DRIVER.for_tasks()),
    "producer": Meeting(replace(vectors.CLIENT, role=m.ROLE_PRODUCER), DRIVER.for_tasks()),
    "peer": Meeting(vectors.PEER, ClusterSecrets([vectors.SECRET]).peer("host-a.example:7337")),
    "tls": Meeting(vectors.CLIENT, DRIVER.for_tasks(), vectors.BINDING),
}


class End:
    """One side of a connection up to the end of its handshake."""

    def __init__(self, side: Side, meeting: Meeting) -> None:
        self.hello: m.Hello | None = None
        self._binding = meeting.binding
        self._handshake: ConnectingHandshake | AcceptingHandshake
        claims = False
        if side is Side.CONNECTED:
            claims = meeting.credential is not None
            connecting = ConnectingHandshake(
                meeting.hello, meeting.credential, meeting.connector_nonce
            )
            self.hello, self._handshake = connecting.hello, connecting
        else:
            self._handshake = AcceptingHandshake(
                vectors.ACK, vectors.admission(vectors.SECRET), meeting.acceptor_nonce
            )
        self.connection = ConnectionState(side, meeting.hello.role, claims=claims)
        self.opened = False
        self.replies: deque[bytes] = deque()
        self._decoder = FrameDecoder(RecordingSink(on_message=self.receive), 32768)

    @property
    def situation(self) -> tuple[Side, State]:
        return self.connection.side, self.connection.state

    def receive(self, message: m.Message) -> None:
        """Take a message; a violation closes the connection."""
        try:
            self.connection.check(message)
            if type(message) is m.ErrorResponse:
                self.connection.close()
                return
            step = self._handshake.receive(message, self._binding, 0)
        except ProtocolViolation:
            self.connection.close()
            raise
        self.replies += map(encode, step.replies)
        if step.agreed is None:
            self.connection.await_next(step.state)
        else:
            self.opened = True
            self.connection.close()  # nothing that follows is of a handshake

    def receive_all(self, messages: list[m.Message]) -> None:
        for message in messages:
            self.receive(message)

    def receive_bytes(self, data: bytes) -> None:
        """Take a frame as it comes over the wire; damage that is noticed closes the connection."""
        if self.connection.state is State.CLOSED:
            return
        try:
            feed(self._decoder, data)
        except ProtocolViolation:
            self.connection.close()


def converse(meeting: Meeting, damaged: dict[int, bytes]) -> tuple[End, End, list[bytes]]:
    """Run a handshake in which some frames, by their numbers, are replaced on the way."""
    connects, accepts = End(Side.CONNECTED, meeting), End(Side.ACCEPTED, meeting)
    assert connects.hello is not None
    connects.replies.append(encode(connects.hello))
    sent: list[bytes] = []
    while connects.replies or accepts.replies:
        for sender, receiver in ((connects, accepts), (accepts, connects)):
            while sender.replies:
                frame = sender.replies.popleft()
                sent.append(frame)
                receiver.receive_bytes(damaged.get(len(sent) - 1, frame))
    return connects, accepts, sent


def decoded(frame: bytes) -> list[m.Message]:
    sink = RecordingSink()
    feed(FrameDecoder(sink, 32768), frame)
    return [message for message, _ in sink.frames]


def recorded(meeting: Meeting) -> tuple[list[m.Message], list[m.Message]]:
    """Return the messages to the accepting and to the connecting side of a good handshake."""
    connects, accepts, sent = converse(meeting, {})
    assert connects.opened
    assert accepts.opened
    messages = [message for frame in sent for message in decoded(frame)]
    assert [type(each) for each in messages] == KINDS
    return [messages[0], messages[2]], [messages[1], *messages[3:]]


KINDS = [m.Hello, m.Challenge, m.Proof, m.Proof, m.HelloAck]
HELLO, CHALLENGE, PROOF, ANSWER, ACK = range(5)

# ---- any message in any state ----------------------------------------------------------------

TO_ACCEPTOR, TO_CONNECTOR = recorded(AS_DRIVER)

SITUATIONS = {
    (Side.ACCEPTED, State.AWAIT_HELLO): TO_ACCEPTOR[:0],
    (Side.ACCEPTED, State.AWAIT_PROOF): TO_ACCEPTOR[:1],
    (Side.CONNECTED, State.AWAIT_CHALLENGE): TO_CONNECTOR[:0],
    (Side.CONNECTED, State.AWAIT_PROOF): TO_CONNECTOR[:1],
    (Side.CONNECTED, State.AWAIT_ACK): TO_CONNECTOR[:2],
}
"""The good messages that lead to each state."""

BY_SITUATION = pytest.mark.parametrize(
    "situation", SITUATIONS, ids=lambda each: f"{each[0].value}-{each[1].value}"
)

OTHERS = [
    Meeting(DRIVER_HELLO, DRIVER, b"", bytes(NONCE_BYTES), bytes(NONCE_BYTES)),  # another time
    Meeting(DRIVER_HELLO, DRIVER, vectors.BINDING),  # over another channel
    Meeting(DRIVER_HELLO, BOB),  # of another key
    MEETINGS["consumer"],
    MEETINGS["peer"],
]
RECORDED = [each for meeting in OTHERS for way in recorded(meeting) for each in way]

_NONCES = st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES)
_CLAIMS = st.sampled_from([b"", DRIVER.claim.pack(), DRIVER.for_tasks().claim.pack()])
_TOKENS = st.builds(bytes.__add__, _NONCES, _CLAIMS | st.binary(max_size=80)) | st.just(b"")
NEARLY_RIGHT = st.one_of(
    st.builds(
        lambda hello, role, token: replace(hello, role=role, token=token),
        st.sampled_from([DRIVER_HELLO, vectors.CLIENT, vectors.PEER]),
        st.sampled_from(sorted(ROLES)),
        _TOKENS,
    ),
    st.builds(
        lambda features, port: replace(vectors.ACK, features=features, data_port=port),
        st.integers(0, 31),
        st.integers(7336, 7338),
    ),
    MESSAGES_BY_TYPE[m.Challenge],
    MESSAGES_BY_TYPE[m.Proof],
)
ANY = MESSAGES | NEARLY_RIGHT | st.sampled_from(RECORDED)


def there(situation: tuple[Side, State]) -> End:
    """Return a side that good messages have led to a state."""
    end = End(situation[0], AS_DRIVER)
    end.receive_all(SITUATIONS[situation])
    end.replies.clear()
    assert end.situation == situation
    return end


def expected_next(situation: tuple[Side, State]) -> m.Message:
    """Return the message that continues the good handshake."""
    good = TO_ACCEPTOR if situation[0] is Side.ACCEPTED else TO_CONNECTOR
    return good[len(SITUATIONS[situation])]


def test_the_situations_are_all_that_the_table_has() -> None:
    assert SITUATIONS.keys() == BEFORE_OPEN.keys()


@BY_SITUATION
def test_the_good_message_leads_on(situation: tuple[Side, State]) -> None:
    end = there(situation)
    end.receive(expected_next(situation))
    last = situation in ((Side.ACCEPTED, State.AWAIT_PROOF), (Side.CONNECTED, State.AWAIT_ACK))
    assert end.opened is last


@BY_SITUATION
@given(message=ANY)
def test_any_message_is_allowed_by_the_table_or_closes(
    situation: tuple[Side, State], message: m.Message
) -> None:
    """And only the good one ends a handshake."""
    end = there(situation)
    allowed = type(message) in BEFORE_OPEN[situation]
    try:
        end.receive(message)
    except UnexpectedMessage:
        assert not allowed
    except ProtocolViolation:
        assert allowed
    else:
        assert allowed
        if type(message) is m.ErrorResponse:
            assert end.connection.state is State.CLOSED
        elif end.opened:
            assert message == expected_next(situation)
        else:
            assert end.situation in SITUATIONS
        return
    assert not end.opened
    assert not end.replies
    assert end.connection.state is State.CLOSED


@BY_SITUATION
@given(messages=st.lists(ANY, min_size=1, max_size=5))
def test_no_messages_end_a_handshake_without_the_proof_of_its_key(
    situation: tuple[Side, State], messages: list[m.Message]
) -> None:
    end = there(situation)
    for message in messages:
        if message == expected_next(situation):
            return  # chance has found the good one
        try:
            end.receive(message)
        except ProtocolViolation:
            break
    assert not end.opened


@pytest.mark.parametrize("side", Side, ids=lambda side: side.value)
@given(messages=st.lists(NEARLY_RIGHT | st.sampled_from(RECORDED), min_size=1, max_size=6))
def test_the_handshake_alone_needs_the_proof_too(side: Side, messages: list[m.Message]) -> None:
    """Without the table in front of it, which is the second lock of the same door."""
    meeting = AS_DRIVER._replace(connector_nonce=b"\1" * 32, acceptor_nonce=b"\2" * 32)
    handshake = End(side, meeting)._handshake
    for message in messages:
        try:
            step = handshake.receive(message, b"", 0)
        except ProtocolViolation:
            continue  # and goes on all the same
        assert step.agreed is None
        assert step.state is not State.OPEN


@pytest.mark.parametrize("number", range(len(RECORDED)))
def test_the_messages_of_another_handshake_end_none(number: int) -> None:
    """One of them in place of the good one, and the good ones after it."""
    message = RECORDED[number]
    for situation in SITUATIONS:
        if message == expected_next(situation):
            continue  # a claim, and a challenge of the same nonce, are the same over any channel
        end = there(situation)
        good = TO_ACCEPTOR if situation[0] is Side.ACCEPTED else TO_CONNECTOR
        with pytest.raises((UnexpectedMessage, AuthenticationFailed)):
            end.receive_all([message, *good[len(SITUATIONS[situation]) + 1 :]])
        assert not end.opened


def test_without_a_credential_only_the_answer_opens() -> None:
    for _, message, _ in WIRE_MESSAGES:
        end = End(Side.CONNECTED, AS_DRIVER._replace(credential=None))
        assert end.situation == (Side.CONNECTED, State.AWAIT_ACK)
        if isinstance(message, m.HelloAck):
            end.receive(vectors.ACK)
            assert end.opened
        elif not isinstance(message, m.ErrorResponse):
            with pytest.raises(UnexpectedMessage):
                end.receive(message)
            assert not end.opened


# ---- damage on the way -----------------------------------------------------------------------


def flipped(frame: bytes, bits: set[int]) -> bytes:
    changed = bytearray(frame)
    for bit in bits:
        changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def check_damage_is_noticed(meeting: Meeting, number: int, frame: bytes, damaged: bytes) -> None:
    """Check that the sides that verify the frame do not open."""
    connects, accepts, sent = converse(meeting, {number: damaged})
    assert sent[number] == frame
    assert not connects.opened
    # The accepting side verifies what comes before its own answer, and is open by then.
    assert accepts.opened is (number > PROOF)


@pytest.mark.parametrize("name", MEETINGS)
@pytest.mark.parametrize("number", range(5), ids=["hello", "challenge", "proof", "answer", "ack"])
def test_no_flipped_bit_goes_unnoticed(name: str, number: int) -> None:
    """Each bit of each frame, its lengths too."""
    meeting = MEETINGS[name]
    frame = converse(meeting, {})[2][number]
    for bit in range(8 * len(frame)):
        check_damage_is_noticed(meeting, number, frame, flipped(frame, {bit}))


@given(st.sampled_from(sorted(MEETINGS)), st.integers(0, 4), st.data())
def test_no_flipped_bits_go_unnoticed(name: str, number: int, data: st.DataObject) -> None:
    meeting = MEETINGS[name]
    frame = converse(meeting, {})[2][number]
    # The lengths stay as they are, so that all the damage reaches the message.
    places = st.integers(8 * PREFIX_BYTES, 8 * len(frame) - 1)
    bits = data.draw(st.sets(places, min_size=1, max_size=12))
    check_damage_is_noticed(meeting, number, frame, flipped(frame, bits))


@given(st.integers(0, 4), st.integers(0, 4))
def test_a_frame_in_place_of_another_is_noticed(number: int, other: int) -> None:
    sent = converse(AS_DRIVER, {})[2]
    if number != other:
        check_damage_is_noticed(AS_DRIVER, number, sent[number], sent[other])


@pytest.mark.parametrize("number", range(5), ids=["hello", "challenge", "proof", "answer", "ack"])
def test_a_frame_that_is_cut_or_lost_opens_nothing(number: int) -> None:
    frame = converse(AS_DRIVER, {})[2][number]
    for length in range(len(frame)):
        connects, accepts, _ = converse(AS_DRIVER, {number: frame[:length]})
        assert not connects.opened
        assert accepts.opened is (number > PROOF)
