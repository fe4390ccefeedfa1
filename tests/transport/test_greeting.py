"""The handshake of one connection: its deadline, and the transport that it is bound to."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import pytest

from sluice.protocol.errors import AuthenticationFailed, SluiceError
from sluice.protocol.identity import ClusterSecrets, SubmitToken
from sluice.protocol.schema import ROLE_DRIVER, Challenge, Hello, Proof
from sluice.protocol.states import State
from sluice.transport.access import Accepting, Access, SocketUser
from sluice.transport.errors import DeadlineExceeded
from sluice.transport.greeting import CHANNEL_BINDING, Greeting
from tests.protocol.identity_vectors import SALT, SECRET
from tests.support.peers import PATIENCE_SECONDS, a_hello, an_ack, turns

if TYPE_CHECKING:
    from sluice.protocol.identity import Credential

LATER_SECONDS = 3600.0
"""A deadline that passes in no test."""

SECRETS = Access(ClusterSecrets([SECRET]))
DRIVER = SubmitToken.make(SECRET).application(SALT)
HELLO = a_hello(role=ROLE_DRIVER, application_id="etl")
STRANGER = SocketUser(54321, (54321,))


class Failures:
    """Takes the error of a deadline."""

    def __init__(self) -> None:
        self.errors: list[SluiceError] = []
        self._some = asyncio.Event()

    def __call__(self, error: SluiceError) -> None:
        self.errors.append(error)
        self._some.set()

    async def first(self) -> SluiceError:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._some.wait()
        return self.errors[0]


def a_transport(**extra: object) -> asyncio.BaseTransport:
    return asyncio.BaseTransport(extra)


def never(error: SluiceError) -> None:
    raise AssertionError(f"no deadline passes in this test: {error}")


def connecting(hello: Hello = HELLO, credential: Credential | None = None) -> Greeting:
    return Greeting(hello, credential, None, never)


def accepting(access: Access = SECRETS) -> Greeting:
    return Greeting(None, None, Accepting(an_ack(), access), never)


def begun(greeting: Greeting, **extra: object) -> Greeting:
    greeting.begin(a_transport(**extra), LATER_SECONDS)
    return greeting


# ---- the deadline ----------------------------------------------------------------------------


async def test_the_deadline_is_stopped_at_the_end_and_any_number_of_times() -> None:
    failures, control = Failures(), Failures()
    stopped = Greeting(HELLO, None, None, failures)
    stopped.end()  # before it began, too
    stopped.begin(a_transport(), 0)
    stopped.end()
    stopped.end()
    running = Greeting(HELLO, None, None, control)
    running.begin(a_transport(), 0)
    await control.first()
    await turns()
    assert failures.errors == []


async def test_messages_do_not_stop_the_deadline() -> None:
    failures = Failures()
    greeting = Greeting(None, None, Accepting(an_ack(), SECRETS), failures)
    greeting.begin(a_transport(), 0)
    hello = _said(connecting(credential=DRIVER))
    assert greeting.receive(hello).state is State.AWAIT_PROOF
    assert isinstance(await failures.first(), DeadlineExceeded)


def _said(greeting: Greeting) -> Hello:
    """Return the Hello of a side that connects."""
    hello = greeting.begin(a_transport(), LATER_SECONDS)
    greeting.end()
    assert hello is not None
    return hello


# ---- refusals --------------------------------------------------------------------------------


async def test_another_user_that_says_nothing_is_given_up_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sluice.transport.access.peer_user", lambda sock: STRANGER)
    failures = Failures()
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        greeting = Greeting(None, None, Accepting(an_ack(), Access()), failures)
        greeting.begin(a_transport(socket=ours), 0)
        assert isinstance(await failures.first(), DeadlineExceeded)


async def test_a_message_before_the_beginning_is_an_error_of_this_side() -> None:
    for greeting in (connecting(), accepting()):
        with pytest.raises(RuntimeError):
            greeting.receive(HELLO)


# ---- what the handshake is bound to ----------------------------------------------------------


def shake_hands(connects: Greeting, accepts: Greeting, hello: Hello) -> None:
    """Pass the messages of a handshake with a claim on."""
    (challenge,) = accepts.receive(hello).replies
    assert isinstance(challenge, Challenge)
    (proof,) = connects.receive(challenge).replies
    answered = accepts.receive(proof)
    answer, ack = answered.replies
    assert isinstance(answer, Proof)
    assert connects.receive(answer).agreed is None
    opened = connects.receive(ack)
    assert answered.state is opened.state is State.OPEN
    assert answered.agreed == opened.agreed == an_ack()


async def _handshake(ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[Greeting, Greeting]:
    connects, accepts = connecting(credential=DRIVER), accepting()
    hello = connects.begin(a_transport(**ours), LATER_SECONDS)
    assert accepts.begin(a_transport(**theirs), LATER_SECONDS) is None
    assert hello is not None
    try:
        shake_hands(connects, accepts, hello)
    finally:
        connects.end()
        accepts.end()
    return connects, accepts


BOUND = {CHANNEL_BINDING: b"a certificate"}


@pytest.mark.parametrize(
    "extra",
    [{}, {CHANNEL_BINDING: None}, {CHANNEL_BINDING: b""}, BOUND],
    ids=["nothing", "none", "empty", "bound"],
)
async def test_both_sides_of_one_channel_open(extra: dict[str, Any]) -> None:
    connects, accepts = await _handshake(extra, extra)
    assert accepts.application_id.startswith("etl@")
    assert connects.application_id == ""


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(BOUND, {}), ({}, BOUND), (BOUND, {CHANNEL_BINDING: b"another certificate"})],
    ids=["ends before", "begins behind", "two channels"],
)
async def test_sides_of_two_channels_do_not_open(
    ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        await _handshake(ours, theirs)
    assert caught.value.reason == "wrong proof"


async def test_the_binding_is_the_one_at_the_time_of_the_message() -> None:
    """TLS knows it when its own handshake is done, which the transport may tell late."""
    extra: dict[str, Any] = {}
    transport = asyncio.BaseTransport(extra)  # the very dictionary, not a copy
    connects, accepts = connecting(credential=DRIVER), begun(accepting(), **BOUND)
    hello = connects.begin(transport, LATER_SECONDS)
    assert hello is not None
    extra.update(BOUND)
    shake_hands(connects, accepts, hello)
    connects.end()
    accepts.end()
