"""The outcomes of accepted connections: every failed handshake has its reason."""

from __future__ import annotations

import pytest

from sluice.protocol.errors import (
    AuthenticationFailed,
    ErrorCode,
    Fault,
    MalformedMessage,
    NotPermitted,
    ProtocolViolation,
    SluiceError,
    UnexpectedMessage,
)
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import ErrorResponse, Pong
from sluice.transport.errors import ConnectionLost, DeadlineExceeded, TlsRefused
from sluice.transport.outcomes import HANDSHAKE_REASONS, HUNG_UP, Outcomes, reason_of
from tests.support.certificates import Authority
from tests.support.fakes import FakeConnection
from tests.support.peers import (
    RawPeer,
    Service,
    a_config,
    a_hello,
    a_service,
    end,
    open_client,
    until,
)

REMOTE = RemoteError(ErrorResponse(None, 60, Fault.LOCAL, False, "It broke", "", "", None))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


class Draining(SluiceError):
    code = ErrorCode.SHUTTING_DOWN
    retryable = True


class Bug(SluiceError):
    """An error of this side without a code of its own."""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, HUNG_UP),
        (REMOTE, HUNG_UP),
        (AuthenticationFailed("No", reason="wrong proof"), "wrong proof"),
        (ProtocolViolation("No", code=ErrorCode.UNSUPPORTED_VERSION), "version"),
        (ProtocolViolation("No", code=ErrorCode.SEGMENT_SIZE_MISMATCH), "segment size"),
        (MalformedMessage("No"), "bad frame"),
        (UnexpectedMessage("No"), "bad frame"),
        (DeadlineExceeded("No"), "deadline"),
        (SluiceError("No", code=ErrorCode.TOO_MANY_CONNECTIONS), "too many"),
        (TlsRefused("No"), "TLS"),
        (Draining("No"), "draining"),
        (Bug("No"), "internal"),
        (ConnectionLost("No"), "other"),
    ],
    ids=str,
)
def test_an_error_has_its_reason(error: SluiceError | None, reason: str) -> None:
    assert reason_of(error) == reason
    assert reason in (*HANDSHAKE_REASONS, "wrong proof")


def ended(error: SluiceError | None, *, greeted: bool) -> Outcomes:
    outcomes, connection = Outcomes(), FakeConnection()
    connection.close_reason = error
    outcomes.ended(connection, greeted=greeted)
    return outcomes


def test_an_orderly_end_is_no_error() -> None:
    outcomes = ended(None, greeted=True)
    assert (outcomes.refused, outcomes.errors, outcomes.failed_handshakes) == ({}, {}, 0)


def test_an_error_that_the_other_side_found_is_not_counted_as_one_of_this_side() -> None:
    assert ended(REMOTE, greeted=True).errors == {}
    assert ended(REMOTE, greeted=False).refused == {HUNG_UP: 1}


def test_a_later_error_is_no_failed_handshake() -> None:
    outcomes = ended(MalformedMessage("Odd"), greeted=True)
    assert (outcomes.refused, outcomes.failed_handshakes) == ({}, 0)
    assert outcomes.errors == {"MALFORMED_MESSAGE": 1}


def test_to_ask_for_more_than_is_permitted_is_a_refusal_at_any_time() -> None:
    outcomes = ended(NotPermitted("No", reason="wrong role"), greeted=True)
    assert (outcomes.refused, outcomes.failed_handshakes) == ({"wrong role": 1}, 0)
    assert outcomes.errors == {"NOT_PERMITTED": 1}


# ---- on connections ----------------------------------------------------------------------------


async def all_gone(service: Service) -> Outcomes:
    await until(lambda: not service.listener.connections)
    return service.listener.outcomes


@pytest.mark.parametrize(
    ("said", "reason", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "bad frame", "FRAME_TOO_LARGE"),
        (b"\0\0\0\1\0\0\0\0\xc1", "bad frame", "MALFORMED_MESSAGE"),
        (Pong(1), "bad frame", "UNEXPECTED_MESSAGE"),
        (a_hello(version_min=7, version_max=9), "version", "UNSUPPORTED_VERSION"),
        (a_hello(segment_size_bytes=1 << 20), "segment size", "SEGMENT_SIZE_MISMATCH"),
        (b"", HUNG_UP, None),
        (b"\0\0", HUNG_UP, None),
    ],
    ids=["http", "garbage", "another message", "version", "segments", "nothing", "a piece"],
)
async def test_a_failed_handshake_is_counted_by_its_reason(said, reason, code) -> None:
    async with a_service() as service:
        with await RawPeer.connect(service.address) as peer:
            if isinstance(said, bytes):
                await peer.send(said)
            else:
                await peer.send_message(said)
            if code is None:
                peer.half_close()
            await peer.read_to_end()
        outcomes = await all_gone(service)
        assert outcomes.refused == {reason: 1}
        assert outcomes.errors == ({} if code is None else {code: 1})
        assert (outcomes.greeted, outcomes.failed_handshakes) == (0, 1)


async def test_a_connection_beyond_the_limit_is_a_failed_handshake() -> None:
    async with a_service(a_config(max_connections=1)) as service:
        first = await open_client(service.address)
        with await RawPeer.connect(service.address) as peer:
            await peer.read_to_end()
        await until(lambda: service.listener.outcomes.failed_handshakes)
        await end(first)
        outcomes = await all_gone(service)
        assert outcomes.refused == {"too many": 1}
        assert outcomes.errors == {"TOO_MANY_CONNECTIONS": 1}
        assert (outcomes.greeted, outcomes.failed_handshakes) == (1, 1)


async def test_a_client_without_tls_and_one_that_breaks_off_are_told_apart(
    authority: Authority,
) -> None:
    async with a_service(a_config(**authority.settings())) as service:
        with await RawPeer.connect(service.address) as peer:
            await peer.send_message(a_hello())
            await peer.read_to_end()
        with await RawPeer.connect(service.address) as peer:
            await peer.send(b"\x16\x03\x01\x00\x05hello")  # a TLS record that is none
            await peer.read_to_end()
        with await RawPeer.connect(service.address):
            pass
        outcomes = await all_gone(service)
        assert outcomes.refused == {"TLS": 2, HUNG_UP: 1}
        assert outcomes.failed_handshakes == 3


# ---- refused by the owner of the listener ------------------------------------------------------


async def test_a_refusal_of_the_owner_is_told_as_it_is(caplog) -> None:
    async with a_service() as service:
        service.refuse = Draining("Not now", remedy="Go elsewhere")
        with pytest.raises(RemoteError, match=r"Not now\. Go elsewhere") as caught:
            await open_client(service.address)
        assert (caught.value.code, caught.value.retryable) == (ErrorCode.SHUTTING_DOWN, True)
        assert caught.value.fault is Fault.REMOTE
        outcomes = await all_gone(service)
        assert (outcomes.greeted, outcomes.refused) == (0, {"draining": 1})
        assert outcomes.errors == {"SHUTTING_DOWN": 1}
    assert "Traceback" not in caplog.text
    assert "internal error" not in caplog.text


@pytest.mark.parametrize("bug", [Bug("It broke"), ZeroDivisionError("a bug")], ids=repr)
async def test_a_bug_of_the_owner_is_internal_and_has_its_traceback(caplog, bug) -> None:
    async with a_service() as service:
        service.refuse = bug
        with pytest.raises(RemoteError, match="Internal error") as caught:
            await open_client(service.address)
        assert (caught.value.code, caught.value.retryable) == (ErrorCode.INTERNAL, False)
        outcomes = await all_gone(service)
        assert (outcomes.refused, outcomes.errors) == ({"internal": 1}, {"INTERNAL": 1})
    assert "Traceback" in caplog.text


async def test_a_bug_in_a_handler_is_counted() -> None:
    async with a_service() as service:
        client = await open_client(service.address)
        handler = await service.handler()

        def broken(message: object, payload_length: int) -> None:
            raise ZeroDivisionError("a bug")

        handler.message_received = broken  # type: ignore[method-assign]
        client.connection.send(ErrorResponse(5, 60, 1, False, "It broke", "", "", None))
        await client.until_lost()
        outcomes = await all_gone(service)
        assert (outcomes.greeted, outcomes.refused) == (1, {})
        assert outcomes.errors == {"INTERNAL": 1}
