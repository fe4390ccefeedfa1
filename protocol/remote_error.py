"""Converts errors to ErrorResponses and back."""

from .errors import ErrorCode, Fault, SluiceError
from .limits import MAX_ERROR_TEXT_CHARACTERS
from .schema import ErrorResponse


class RemoteError(SluiceError):
    """An error that the other side reported, with its code.

    The fault is inverted: the sender's own fault is remote here.
    """

    fault: Fault = Fault.REMOTE
    retryable: bool = False

    def __init__(self, message: ErrorResponse) -> None:
        super().__init__(
            message.message,
            value=message.value or None,
            limit=message.limit or None,
            map_attempt_id=message.map_attempt_id,
        )
        try:
            self.code = ErrorCode(message.code)
        except ValueError:  # a newer peer's code
            self.code = ErrorCode.INTERNAL
        self.retryable = message.retryable
        if message.fault == Fault.REMOTE:
            self.fault = Fault.LOCAL


def error_response(
    channel: int | None, error: SluiceError, fault: Fault | None = None
) -> ErrorResponse:
    """Return the ErrorResponse of an error; without a channel it is for the connection.

    An error names the side at fault on the connection where it occurred. When it is forwarded to a
    third side, that side is not at fault: pass ``Fault.LOCAL``, the sender of the message.

    Texts are cut to MAX_ERROR_TEXT_CHARACTERS; a message is cut before its remedy. Characters
    without a UTF-8 form (as in a path) become question marks: reporting an error must not fail.
    """
    return ErrorResponse(
        channel,
        int(error.code),
        int(error.fault if fault is None else fault),
        error.retryable,
        _text(_with_remedy(error)),
        _text(error.value),
        _text(error.limit),
        error.map_attempt_id,
    )


def _with_remedy(error: SluiceError) -> str:
    if not error.remedy:
        return error.message
    remedy = f". {error.remedy}"
    return error.message[: max(0, MAX_ERROR_TEXT_CHARACTERS - len(remedy))] + remedy


def _text(value: object) -> str:
    if value is None:
        return ""
    return str(value)[:MAX_ERROR_TEXT_CHARACTERS].encode(errors="replace").decode()
