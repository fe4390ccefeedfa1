"""The error tree, and errors on the wire."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sluice.protocol import errors
from sluice.protocol.errors import (
    ErrorCode,
    Fault,
    MalformedMessage,
    ProtocolViolation,
    SluiceError,
)
from sluice.protocol.limits import (
    MAX_ERROR_TEXT_CHARACTERS,
    MAX_HANDSHAKE_CONTROL_BYTES,
    PREFIX_BYTES,
)
from sluice.protocol.remote_error import RemoteError, error_response
from sluice.protocol.schema import ErrorResponse, decode_control, encode


def _classes(root: type[SluiceError]) -> list[type[SluiceError]]:
    return [root, *(kind for child in root.__subclasses__() for kind in _classes(child))]


HERE = [kind for kind in _classes(SluiceError) if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", HERE, ids=lambda kind: kind.__name__)
def test_every_class_has_a_code_and_a_line_in_the_tree(kind: type[SluiceError]) -> None:
    assert isinstance(kind.code, ErrorCode)
    assert kind.__name__ in (errors.__doc__ or "")


def test_classes_of_this_file_have_codes_of_their_own() -> None:
    codes = [kind.code for kind in HERE]
    assert len(set(codes)) == len(codes)


def test_a_violation_is_the_peers_fault_and_no_retry_helps() -> None:
    for kind in _classes(ProtocolViolation):
        assert kind.code in errors.REMOTE_FAULTS - errors.RETRYABLE


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SluiceError("It broke"), "It broke"),
        (SluiceError("It broke", value=0), "It broke (value 0)"),
        (SluiceError("It broke", limit=4), "It broke (limit 4)"),
        (
            SluiceError("It broke", value=5, limit=4, remedy="Use 4"),
            "It broke (value 5, limit 4). Use 4",
        ),
        (SluiceError("It broke", remedy="Mend it"), "It broke. Mend it"),
    ],
)
def test_the_text_of_an_error(error: SluiceError, text: str) -> None:
    assert str(error) == text


def test_map_attempt_is_kept() -> None:
    assert SluiceError("Gone", map_attempt_id=7).map_attempt_id == 7
    assert SluiceError("Gone").map_attempt_id is None


# ---- on the wire -----------------------------------------------------------------------------


def test_error_response_has_every_field() -> None:
    error = MalformedMessage("Odd bytes", value=b"x", limit=3, remedy="Send less", map_attempt_id=9)
    assert error_response(4, error) == ErrorResponse(
        4, 4, Fault.REMOTE, False, "Odd bytes. Send less", "b'x'", "3", 9
    )


def test_error_response_of_a_bare_error() -> None:
    assert error_response(None, SluiceError("It broke")) == ErrorResponse(
        None, 60, Fault.LOCAL, False, "It broke", "", "", None
    )


@pytest.mark.parametrize("character", ["x", "é", "日", "🦀", "\ud800"])
def test_any_error_can_be_sent_within_the_handshake_limit(character: str) -> None:
    text = character * 10_000
    response = error_response(
        2**32 - 1,
        SluiceError(text, value=text, limit=text, remedy=text, map_attempt_id=-(2**63)),
    )
    control = encode(response)[PREFIX_BYTES:]
    assert len(control) <= MAX_HANDSHAKE_CONTROL_BYTES
    assert decode_control(control) == response


def test_a_long_message_does_not_push_its_remedy_out():
    error = SluiceError("It broke in " + "a/" * 400, remedy="Mend it")
    text = error_response(1, error).message
    assert len(text) == MAX_ERROR_TEXT_CHARACTERS
    assert text.startswith("It broke in a/")
    assert text.endswith(". Mend it")


@given(st.text(), st.text(), st.integers() | st.none())
def test_error_texts_of_any_kind_can_be_sent(message: str, value: str, limit: int | None) -> None:
    response = error_response(1, SluiceError(message, value=value, limit=limit))
    assert decode_control(encode(response)[PREFIX_BYTES:]) == response


@pytest.mark.parametrize("code", ErrorCode)
@pytest.mark.parametrize("retryable", [True, False])
def test_remote_error_carries_the_report(code: ErrorCode, retryable: bool) -> None:
    error = RemoteError(ErrorResponse(3, code, 1, retryable, "It broke", "5", "4", 7))
    assert error.code is code
    assert error.retryable is retryable
    assert error.fault is Fault.REMOTE
    assert (error.value, error.limit, error.map_attempt_id) == ("5", "4", 7)
    assert str(error) == "It broke (value 5, limit 4)"


def test_remote_error_of_a_code_this_release_does_not_know() -> None:
    assert RemoteError(ErrorResponse(None, 9999, 1, False, "New", "", "", None)).code is (
        ErrorCode.INTERNAL
    )


def test_remote_error_without_numbers() -> None:
    error = RemoteError(ErrorResponse(None, 1, 1, False, "It broke", "", "", None))
    assert (error.value, error.limit) == (None, None)


def test_the_fault_of_a_remote_error_is_turned_around() -> None:
    assert RemoteError(ErrorResponse(None, 4, 2, False, "Odd", "", "", None)).fault is Fault.LOCAL


def test_one_report_does_not_change_the_next() -> None:
    RemoteError(ErrorResponse(None, 4, 2, True, "Odd", "", "", None))
    assert RemoteError.fault is Fault.REMOTE
    assert RemoteError.code is ErrorCode.INTERNAL
    assert not RemoteError.retryable


def test_an_error_passed_on_twice_keeps_its_cause() -> None:
    first = error_response(3, SluiceError("It broke", value=1, limit=2, map_attempt_id=7))
    assert error_response(3, RemoteError(first)) == replace(first, fault=Fault.REMOTE)


def test_an_error_that_is_passed_on_does_not_blame_its_receiver() -> None:
    """The receiver sees the sender, and not the sides behind it."""
    gap = SluiceError("The sender of channel 3 left out a buffer", code=ErrorCode.SEQUENCE_GAP)
    assert (gap.fault, gap.retryable) == (Fault.REMOTE, True)
    told = error_response(3, gap, Fault.LOCAL)
    assert told == replace(error_response(3, gap), fault=Fault.LOCAL)
    assert RemoteError(told).fault is Fault.REMOTE
    assert RemoteError(told).retryable
