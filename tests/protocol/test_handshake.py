# Longer than 450 lines, because all tests of the handshake share its two sides and credentials.
"""The handshake: numbers that both sides agree on, proofs, and everything that is refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple, replace

from sluice.protocol import schema as m
from sluice.protocol.admission import AcceptingHandshake, Admission, answer_hello, refusal
from sluice.protocol.errors import (
    AuthenticationFailed,
    ErrorCode,
    MalformedMessage,
    NotPermitted,
    ProtocolViolation,
)
from sluice.protocol.handshake import ConnectingHandshake, check_ack
from sluice.protocol.identity import (
    KIND_DRIVER,
    ClusterSecrets,
    Credential,
    SubmitToken,
    is_scoped,
    secret_id,
)
from sluice.protocol.limits import MAX_U32, PREFIX_BYTES
from sluice.protocol.schema import encode
from sluice.protocol.states import State
from tests.protocol import identity_vectors as vectors

GOLDEN: dict[str, list[dict[str, Any]]] = json.loads(vectors.VECTORS.read_text(encoding="utf-8"))

OFFER = m.HelloAck(1, "tm-a", 32768, m.FLOW_CREDIT, 0, "host-a", 7337, "i-a", 0, 1)
PEER = m.Hello("sluice", 1, 1, m.ROLE_PEER, "", b"", 32768, m.FLOW_CREDIT, 0, "tm-b")
CLIENT = replace(PEER, role=m.ROLE_CONSUMER, application_id="app-1", segment_size_bytes=0)


@pytest.mark.parametrize(
    "hello",
    [
        PEER,
        CLIENT,
        replace(CLIENT, role=m.ROLE_PRODUCER),
        replace(CLIENT, role=m.ROLE_DRIVER),
        replace(CLIENT, segment_size_bytes=1024),  # a client may receive less, or more
        replace(CLIENT, segment_size_bytes=MAX_U32),
        replace(CLIENT, flow_control=m.FLOW_WATERMARK),  # answered with credit
        replace(CLIENT, version_min=0, version_max=9),
        replace(CLIENT, features=MAX_U32),  # unknown features are not agreed to
        replace(CLIENT, name=""),
    ],
)
def test_good_hello(hello: m.Hello) -> None:
    assert answer_hello(hello, OFFER) == OFFER


@pytest.mark.parametrize(
    ("hello", "code", "value"),
    [
        (replace(PEER, magic="slurp"), ErrorCode.MALFORMED_MESSAGE, "slurp"),
        (replace(PEER, magic="SLUICE"), ErrorCode.MALFORMED_MESSAGE, "SLUICE"),
        (replace(PEER, magic="", version_min=2), ErrorCode.MALFORMED_MESSAGE, ""),
        (replace(PEER, version_min=2, version_max=3), ErrorCode.UNSUPPORTED_VERSION, "2 to 3"),
        (replace(PEER, version_min=0, version_max=0), ErrorCode.UNSUPPORTED_VERSION, "0 to 0"),
        (replace(PEER, version_min=2, version_max=0), ErrorCode.UNSUPPORTED_VERSION, "2 to 0"),
        (replace(PEER, role=0), ErrorCode.MALFORMED_MESSAGE, 0),
        (replace(PEER, role=6), ErrorCode.MALFORMED_MESSAGE, 6),
        (replace(PEER, application_id="app-1"), ErrorCode.MALFORMED_MESSAGE, None),
        (replace(CLIENT, application_id=""), ErrorCode.MALFORMED_MESSAGE, None),
        (
            replace(CLIENT, role=m.ROLE_PRODUCER, application_id=""),
            ErrorCode.MALFORMED_MESSAGE,
            None,
        ),
        (replace(CLIENT, role=m.ROLE_DRIVER, application_id=""), ErrorCode.MALFORMED_MESSAGE, None),
        (replace(CLIENT, flow_control=2), ErrorCode.MALFORMED_MESSAGE, 2),
        (replace(PEER, segment_size_bytes=0), ErrorCode.SEGMENT_SIZE_MISMATCH, 0),
        (replace(PEER, segment_size_bytes=32767), ErrorCode.SEGMENT_SIZE_MISMATCH, 32767),
        (replace(PEER, segment_size_bytes=65536), ErrorCode.SEGMENT_SIZE_MISMATCH, 65536),
    ],
)
def test_an_unusable_hello_is_refused(hello: m.Hello, code: ErrorCode, value: object) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        answer_hello(hello, OFFER)
    assert caught.value.code is code
    if value is not None:
        assert caught.value.value == value
        assert caught.value.limit is not None


def test_a_peer_gets_the_flow_control_that_it_asks_for() -> None:
    """The accepting side agrees to either mode."""
    asked = replace(PEER, flow_control=m.FLOW_WATERMARK)
    assert answer_hello(asked, OFFER) == replace(OFFER, flow_control=m.FLOW_WATERMARK)
    assert answer_hello(PEER, replace(OFFER, flow_control=m.FLOW_WATERMARK)) == OFFER


@pytest.mark.parametrize("asked", [m.FLOW_CREDIT, m.FLOW_WATERMARK])
@pytest.mark.parametrize("answered", [m.FLOW_CREDIT, m.FLOW_WATERMARK, 2])
def test_an_answer_is_what_was_asked_for_or_credit(asked: int, answered: int) -> None:
    """A side without watermark mode answers with credit, and that is then in force."""
    hello = replace(PEER, flow_control=asked)
    ack = replace(OFFER, flow_control=answered)
    if answered in (m.FLOW_CREDIT, asked):
        check_ack(hello, ack)
    else:
        with pytest.raises(MalformedMessage) as caught:
            check_ack(hello, ack)
        assert caught.value.value == answered


def test_an_answer_with_another_version_is_refused() -> None:
    with pytest.raises(ProtocolViolation) as caught:
        check_ack(PEER, replace(OFFER, version=2))
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
    assert (caught.value.value, caught.value.limit) == (2, 1)


# ---- proofs ----------------------------------------------------------------------------------

SECRET, OTHER = vectors.SECRET, vectors.OTHER_SECRET
TOKEN = SubmitToken.make(SECRET, "alice", 1000, vectors.TOKEN_ID)
DRIVER = TOKEN.application(vectors.SALT)
TASK = DRIVER.for_tasks()
CONSUMER_HELLO = CLIENT
DRIVER_HELLO = replace(CLIENT, role=m.ROLE_DRIVER)
ADDRESS = "host-a:7337"
NONCE_A, NONCE_B = bytes(32), bytes(range(32))


class Exchange:
    """Both sides of one handshake, and the messages between them."""

    def __init__(
        self,
        hello: m.Hello,
        credential: Credential | None,
        admission: Admission | None = None,
        bindings: tuple[bytes, bytes] = (b"", b""),
        now_seconds: float = 0,
        offer: m.HelloAck = OFFER,
    ) -> None:
        self.connects = ConnectingHandshake(hello, credential, NONCE_A)
        self.accepts = AcceptingHandshake(
            offer, vectors.admission(SECRET) if admission is None else admission, NONCE_B
        )
        self.bindings = bindings
        self.now_seconds = now_seconds
        self.sent: list[m.Message] = [self.connects.hello]

    def accept(self, message: m.Message) -> tuple[m.Message, ...]:
        """Let the accepting side take a message; return its answers."""
        step = self.accepts.receive(message, self.bindings[1], self.now_seconds)
        self.sent += step.replies
        self.accepted = step
        return step.replies

    def connect(self, message: m.Message) -> tuple[m.Message, ...]:
        """Let the connecting side take a message; return its answers."""
        step = self.connects.receive(message, self.bindings[0], self.now_seconds)
        self.sent += step.replies
        self.connected = step
        return step.replies

    def run(self) -> "Exchange":
        """Pass every message on."""
        waiting = self.accept(self.connects.hello)
        while waiting:
            answers: list[m.Message] = []
            for message in waiting:
                answers += self.connect(message)
            waiting = tuple(each for answer in answers for each in self.accept(answer))
        return self


@pytest.mark.parametrize(
    ("hello", "credential"),
    [
        (CONSUMER_HELLO, TASK),
        (replace(CONSUMER_HELLO, role=m.ROLE_PRODUCER), TASK),
        (DRIVER_HELLO, DRIVER),
        (PEER, ClusterSecrets([SECRET]).peer(ADDRESS)),
        (PEER, ClusterSecrets([SECRET]).peer("HOST-A:7337")),
    ],
)
@pytest.mark.parametrize("binding", [b"", b"certificate"])
def test_both_sides_open(hello: m.Hello, credential: Credential, binding: bytes) -> None:
    done = Exchange(hello, credential, bindings=(binding, binding)).run()
    assert done.accepted.state is done.connected.state is State.OPEN
    assert done.connected.agreed == done.accepted.agreed == OFFER
    assert [type(each) for each in done.sent] == [
        m.Hello,
        m.Challenge,
        m.Proof,
        m.Proof,
        m.HelloAck,
    ]
    if hello.role == m.ROLE_PEER:
        assert done.accepts.application_id == ""
    else:
        name, _, namespace = done.accepts.application_id.partition("@")
        assert (name, len(namespace)) == ("app-1", 24)
        assert is_scoped(done.accepts.application_id)


def test_all_roles_of_an_application_share_its_namespace() -> None:
    names = {
        Exchange(hello, credential).run().accepts.application_id
        for hello, credential in (
            (CONSUMER_HELLO, TASK),
            (replace(CONSUMER_HELLO, role=m.ROLE_PRODUCER), TASK),
            (DRIVER_HELLO, DRIVER),
        )
    }
    assert len(names) == 1


@pytest.mark.parametrize(
    "other",
    [
        TOKEN.application(bytes(16)),
        SubmitToken.make(SECRET, "alice", 1001, vectors.TOKEN_ID).application(vectors.SALT),
        SubmitToken.make(SECRET, "bob", 1000, vectors.TOKEN_ID).application(vectors.SALT),
        SubmitToken.make(SECRET, "alice", 1000, bytes(16)).application(vectors.SALT),
    ],
)
def test_another_key_of_the_same_name_has_another_namespace(other: Credential) -> None:
    ours = Exchange(DRIVER_HELLO, DRIVER).run().accepts.application_id
    theirs = Exchange(DRIVER_HELLO, other).run().accepts.application_id
    assert ours != theirs
    assert ours.partition("@")[0] == theirs.partition("@")[0]


@pytest.mark.parametrize(
    ("hello", "credential", "reason"),
    [
        (CONSUMER_HELLO, DRIVER, "wrong role"),
        (DRIVER_HELLO, TASK, "wrong role"),
        (PEER, TASK, "wrong role"),
        (PEER, DRIVER, "wrong role"),
        (CONSUMER_HELLO, ClusterSecrets([SECRET]).peer(ADDRESS), "wrong role"),
        (DRIVER_HELLO, ClusterSecrets([SECRET]).peer(ADDRESS), "wrong role"),
        (PEER, ClusterSecrets([SECRET]).peer("host-b:7337"), "wrong address"),
        (PEER, ClusterSecrets([SECRET]).peer("host-a:7338"), "wrong address"),
        (PEER, ClusterSecrets([OTHER]).peer(ADDRESS), "unknown secret"),
        (DRIVER_HELLO, Credential(DRIVER.claim, TASK.key), "wrong proof"),
        (CONSUMER_HELLO, Credential(TASK.claim, DRIVER.key), "wrong proof"),
        (CONSUMER_HELLO, Credential(TASK.claim, bytes(32)), "wrong proof"),
        (CONSUMER_HELLO, Credential(TASK.claim._replace(salt=bytes(16)), TASK.key), "wrong proof"),
        (CONSUMER_HELLO, Credential(TASK.claim._replace(subject="bob"), TASK.key), "wrong proof"),
        (
            CONSUMER_HELLO,
            Credential(TASK.claim._replace(expires_at_seconds=0), TASK.key),
            "wrong proof",
        ),
        (replace(CONSUMER_HELLO, application_id="a" * 240), TASK, "long name"),
    ],
)
def test_refused(hello: m.Hello, credential: Credential, reason: str) -> None:
    exchange = Exchange(hello, credential)
    with pytest.raises(AuthenticationFailed) as caught:
        exchange.run()
    assert caught.value.reason == reason
    assert caught.value.remedy
    assert exchange.accepts.claim is None or reason in ("wrong address", "long name")
    assert m.HelloAck not in map(type, exchange.sent)


REACHED = "[2001:db8::1]:7337"
"""The address of this end of the connection."""


@pytest.mark.parametrize(
    "dialed",
    [
        ("host-a:7337",),
        ("HOST-A:7337",),
        ("alias:7000", "10.0.0.9:7000"),
        ("another-name:7337", "[2001:db8:0:0:0:0:0:1]:7337"),
        ("another-name:7337", "[2001:db8::1%eth1]:7337"),
        ("[::ffff:10.0.0.8]:7337",),
        (),
    ],
)
def test_a_client_reaches_a_taskmanager_by_each_of_its_addresses(dialed: tuple[str, ...]) -> None:
    assert with_addresses(dialed).run().connected.agreed == OFFER


@pytest.mark.parametrize(
    "dialed",
    [
        ("host-b:7337",),
        ("host-a:7338",),
        ("host-b:7337", "10.0.0.2:7337"),
        ("host-a",),
        ("unix:",),
        ("host-b:7337", "host-b:7338", "host-a:7337"),  # a client dials one, with one IP address
    ],
)
def test_a_proof_for_another_taskmanager_is_refused(dialed: tuple[str, ...]) -> None:
    exchange = with_addresses(dialed)
    with pytest.raises(NotPermitted) as caught:
        exchange.run()
    assert caught.value.reason == "wrong address"
    assert "address_aliases" in caught.value.remedy
    assert m.HelloAck not in map(type, exchange.sent)
    # The certificate binds it to one TaskManager, whatever its address.
    assert with_addresses(dialed, b"certificate").run().connected.agreed == OFFER


def test_a_peer_dials_the_advertised_address() -> None:
    """The address of the connection alone does not suffice."""
    with pytest.raises(NotPermitted):
        with_addresses((), credential=ClusterSecrets([SECRET]).peer(REACHED)).run()


def with_addresses(
    dialed: tuple[str, ...], binding: bytes = b"", credential: Credential = DRIVER
) -> "Exchange":
    for address in dialed:
        credential = credential.at(address)
    exchange = Exchange(
        DRIVER_HELLO if credential.claim.kind == KIND_DRIVER else PEER,
        credential,
        vectors.admission(SECRET)._replace(aliases=frozenset(["Alias:7000", "10.0.0.8:7337"])),
        bindings=(binding, binding),
    )
    exchange.accepts._reached = REACHED
    return exchange


@pytest.mark.parametrize("role", [m.ROLE_PEER, m.ROLE_COPIER])
def test_a_taskmanager_needs_a_claim_even_beside_anonymous_clients(role: int) -> None:
    for application_id in ("", "app-1")[: 1 + (role == m.ROLE_COPIER)]:
        hello = replace(PEER, role=role, application_id=application_id)
        with pytest.raises(AuthenticationFailed) as caught:
            Exchange(hello, None, vectors.admission(SECRET, anonymous=True)).run()
        assert caught.value.code is ErrorCode.AUTHENTICATION_REQUIRED
        assert Exchange(hello, None, vectors.admission(anonymous=True)).run().connected.agreed
        peer = ClusterSecrets([SECRET]).peer(ADDRESS)
        beside = vectors.admission(SECRET, anonymous=True)
        assert Exchange(hello, peer, beside).run().connected.agreed


def test_a_wrong_key_and_an_unknown_secret_are_told_alike() -> None:
    texts = set()
    for credential in (
        Credential(TASK.claim, bytes(32)),
        SubmitToken.make(OTHER).application(vectors.SALT).for_tasks(),
    ):
        with pytest.raises(AuthenticationFailed) as caught:
            Exchange(CONSUMER_HELLO, credential).run()
        texts.add(str(caught.value))
    assert len(texts) == 1


def test_a_client_without_a_credential_is_refused_where_one_is_required() -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        Exchange(CONSUMER_HELLO, None).run()
    assert caught.value.code is ErrorCode.AUTHENTICATION_REQUIRED
    assert caught.value.reason == "no credential"


def test_a_client_without_a_credential_connects_where_that_is_allowed() -> None:
    done = Exchange(CONSUMER_HELLO, None, vectors.admission(SECRET, anonymous=True)).run()
    assert done.accepts.application_id == "app-1"
    assert done.connected.agreed == OFFER


def test_a_name_of_a_namespace_is_not_to_be_had_without_its_key() -> None:
    owner = Exchange(CONSUMER_HELLO, TASK).run()
    hello = replace(CONSUMER_HELLO, application_id=owner.accepts.application_id)
    with pytest.raises(NotPermitted) as caught:
        Exchange(hello, None, vectors.admission(SECRET, anonymous=True)).run()
    assert caught.value.reason == "reserved name"


def test_a_claim_where_there_is_no_secret() -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        Exchange(CONSUMER_HELLO, TASK, vectors.admission(anonymous=True)).run()
    assert caught.value.reason == "no cluster secret here"


@pytest.mark.parametrize("now_seconds", [0, 999.9, 1000])
def test_a_token_counts_until_it_expires(now_seconds: float) -> None:
    assert Exchange(DRIVER_HELLO, DRIVER, now_seconds=now_seconds).run().connected.agreed


def test_an_expired_token_begins_nothing() -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        Exchange(DRIVER_HELLO, DRIVER, now_seconds=1001).run()
    assert caught.value.code is ErrorCode.CREDENTIAL_EXPIRED
    assert caught.value.value == "1 s ago, by this TaskManager's clock"


def test_an_expired_token_ends_nothing() -> None:
    known = vectors.admission(SECRET, known=True)
    assert Exchange(DRIVER_HELLO, DRIVER, known, now_seconds=1001).run().connected.agreed


def test_a_secret_is_replaced_step_by_step() -> None:
    both = vectors.admission(OTHER, SECRET)
    for secret in (SECRET, OTHER):
        credential = ClusterSecrets([secret, SECRET]).peer(ADDRESS)
        assert Exchange(PEER, credential, both).run().connected.agreed
    with pytest.raises(AuthenticationFailed):
        Exchange(PEER, ClusterSecrets([SECRET]).peer(ADDRESS), vectors.admission(OTHER)).run()


def test_a_revoked_token_is_refused_after_its_proof() -> None:
    admission = Admission(ClusterSecrets([SECRET], [vectors.TOKEN_ID]), False, lambda name: True)
    for hello, credential in ((DRIVER_HELLO, DRIVER), (CONSUMER_HELLO, TASK)):
        with pytest.raises(AuthenticationFailed) as caught:
            Exchange(hello, credential, admission).run()
        assert (caught.value.reason, caught.value.value) == ("revoked", vectors.TOKEN_ID.hex())
        with pytest.raises(AuthenticationFailed) as forged:  # who has no key learns nothing
            Exchange(hello, replace_key(credential), admission).run()
        assert forged.value.reason == "wrong proof"
    no_peer = Admission(ClusterSecrets([SECRET], [bytes(16)]), False, lambda name: True)
    assert Exchange(PEER, ClusterSecrets([SECRET]).peer(ADDRESS), no_peer).run().connected.agreed


def replace_key(credential: Credential) -> Credential:
    return Credential(credential.claim, bytes(32))


def test_secrets_are_replaced_for_all_who_share_them() -> None:
    secrets = ClusterSecrets([SECRET])
    claim, peer = DRIVER.claim, secrets.peer("h:1").claim
    assert refusal(claim, secrets) is None
    assert not secrets.replace(ClusterSecrets([SECRET, OTHER], [vectors.TOKEN_ID]))
    refused = refusal(claim, secrets)
    assert refused is not None
    assert (refused.reason, refused.value) == ("revoked", vectors.TOKEN_ID.hex())
    assert refusal(peer, secrets) is None
    assert secrets.replace(ClusterSecrets([OTHER, SECRET]))
    assert refusal(claim, secrets) is None
    assert secrets.peer("h:1").claim.secret_id == secret_id(OTHER)
    assert not secrets.replace(ClusterSecrets([OTHER]))
    for each in (claim, peer):
        refused = refusal(each, secrets)
        assert refused is not None
        assert refused.reason == "unknown secret"


def test_a_side_that_proves_nothing_is_refused() -> None:
    connects = ConnectingHandshake(CONSUMER_HELLO, TASK, NONCE_A)
    with pytest.raises(AuthenticationFailed) as caught:
        connects.receive(OFFER, b"", 0)
    assert caught.value.reason == "unproven TaskManager"


@pytest.mark.parametrize("bindings", [(b"a", b"b"), (b"", b"b"), (b"a", b"")])
def test_a_proof_does_not_pass_from_one_tls_connection_to_another(
    bindings: tuple[bytes, bytes],
) -> None:
    with pytest.raises(AuthenticationFailed):
        Exchange(CONSUMER_HELLO, TASK, bindings=bindings).run()


def test_a_recorded_proof_is_worth_nothing() -> None:
    recorded = Exchange(CONSUMER_HELLO, TASK).run().sent
    accepts = AcceptingHandshake(OFFER, vectors.admission(SECRET), bytes(31) + b"x")
    accepts.receive(recorded[0], b"", 0)
    with pytest.raises(AuthenticationFailed):
        accepts.receive(recorded[2], b"", 0)


def test_a_proof_cannot_be_sent_back_to_its_maker() -> None:
    """Reflection: an attacker without a key answers with what the connecting side has sent."""
    connects = ConnectingHandshake(CONSUMER_HELLO, TASK, NONCE_A)
    step = connects.receive(m.Challenge(NONCE_A), b"", 0)
    connects.receive(step.replies[0], b"", 0)
    with pytest.raises(AuthenticationFailed):
        connects.receive(OFFER, b"", 0)


FORGERIES = st.one_of(
    st.builds(m.Proof, st.binary(min_size=32, max_size=32)),
    st.builds(m.Challenge, st.binary(min_size=32, max_size=32)),
    st.builds(lambda token: replace(CONSUMER_HELLO, token=token), st.binary(max_size=200)),
    st.sampled_from([OFFER, CONSUMER_HELLO, DRIVER_HELLO, PEER, m.Ping(1), m.CloseRequest()]),
)


@given(st.lists(FORGERIES, max_size=4))
def test_no_message_opens_a_connection_without_the_key(forgeries: list[m.Message]) -> None:
    accepts = AcceptingHandshake(OFFER, vectors.admission(SECRET), NONCE_B)
    for message in forgeries:
        try:
            step = accepts.receive(message, b"", 0)
        except ProtocolViolation:
            return
        assert step.state is State.AWAIT_PROOF
        assert step.agreed is None


@given(st.lists(FORGERIES, max_size=4))
def test_no_taskmanager_is_believed_without_the_key(forgeries: list[m.Message]) -> None:
    connects = ConnectingHandshake(CONSUMER_HELLO, TASK, NONCE_A)
    for message in forgeries:
        try:
            step = connects.receive(message, b"", 0)
        except ProtocolViolation:
            return
        assert step.agreed is None


@given(st.integers(0, 4), st.integers(0, 511), st.integers(1, 255))
def test_a_changed_byte_ends_the_handshake(which: int, at: int, change: int) -> None:
    """An attacker in between changes any byte of any message that he passes on."""
    exchange = Exchange(CONSUMER_HELLO, TASK)
    number = 0

    def altered(message: m.Message) -> m.Message:
        nonlocal number
        number += 1
        return _with_changed_byte(message, at, change) if number == which + 1 else message

    try:
        (challenge,) = exchange.accept(altered(exchange.connects.hello))
        (proof,) = exchange.connect(altered(challenge))
        answer, ack = exchange.accept(altered(proof))
        exchange.connect(altered(answer))
        exchange.connect(altered(ack))
    except ProtocolViolation:
        return
    assert exchange.sent == Exchange(CONSUMER_HELLO, TASK).run().sent
    pytest.fail("the change was not noticed")


def _with_changed_byte(message: m.Message, at: int, change: int) -> m.Message:
    fields: list[Any] = list(astuple(message))
    places = [place for place, field in enumerate(fields) if isinstance(field, bytes | str | int)]
    place = places[at % len(places)]
    field = fields[place]
    if isinstance(field, bytes) and field:
        index = at % len(field)
        fields[place] = field[:index] + bytes([field[index] ^ change]) + field[index + 1 :]
    elif isinstance(field, str):
        fields[place] = field + chr(change)
    elif isinstance(field, int):
        fields[place] = field ^ change
    else:
        fields[place] = bytes([change])
    return type(message)(*fields)


# ---- golden vectors --------------------------------------------------------------------------


def test_the_file_is_what_the_command_would_write() -> None:
    assert vectors.build() == GOLDEN


@pytest.mark.parametrize("vector", GOLDEN["handshakes"], ids=lambda vector: vector["name"])
def test_a_golden_proof_is_computed_independently(vector: dict[str, Any]) -> None:
    """Written from docs/reference/wire.md, without the code that makes the file."""
    import hashlib
    import hmac

    def proof(label: bytes, *kinds: str) -> str:
        parts = [label, *(bytes.fromhex(vector[f"{kind}_control_hex"]) for kind in kinds)]
        parts.append(bytes.fromhex(vector["binding_hex"]))
        text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.new(bytes.fromhex(vector["key_hex"]), text, hashlib.sha256).hexdigest()

    said = ("hello", "challenge")
    # [38, bytes 32]
    assert vector["proof_control_hex"] == "9226c420" + proof(
        b"sluice proof of the side that connects", *said
    )
    assert vector["answer_control_hex"] == "9226c420" + proof(
        b"sluice proof of the side that accepts", *said, "proof", "ack"
    )
    hello = bytes.fromhex(vector["hello_control_hex"])
    assert bytes.fromhex(vector["nonce_hex"] + vector["claim_hex"]) in hello
    assert (
        encode(m.Challenge(vectors.ACCEPTOR_NONCE))[PREFIX_BYTES:].hex()
        == (vector["challenge_control_hex"])
    )
