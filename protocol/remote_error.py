"""Errors on the wire: an ErrorResponse from an error, and an error from an ErrorResponse."""

from sluice.protocol.errors import ErrorCode, Fault, SluiceError
from sluice.protocol.limits import MAX_ERROR_TEXT_CHARACTERS
from sluice.protocol.messages import ErrorResponse


class RemoteError(SluiceError):
    """An error that the other side reported; it carries the reported code on unchanged.

    Its fault is turned around: what the sender called its own is remote here.
    """

    fault = Fault.REMOTE

    def __init__(self, message: ErrorResponse) -> None:
        super().__init__(
            message.message,
            value=message.value or None,
            limit=message.limit or None,
            map_attempt_id=message.map_attempt_id,
        )
        try:
            code = ErrorCode(message.code)
        except ValueError:  # a newer peer's code
            code = ErrorCode.INTERNAL
        self.code = code  # type: ignore[misc]  # one class stands for every remote cause
        self.retryable = message.retryable  # type: ignore[misc]
        if message.fault == Fault.REMOTE:
            self.fault = Fault.LOCAL  # type: ignore[misc]


def error_response(channel: int | None, error: SluiceError) -> ErrorResponse:
    """Put an error on the wire, for a channel, gate or partition, or (None) the connection.

    Texts are cut to MAX_ERROR_TEXT_CHARACTERS, a message before its remedy. What has no UTF-8 form
    (a path of the operating system, say) becomes a question mark: reporting an error must not fail.
    """
    return ErrorResponse(
        channel,
        int(error.code),
        int(error.fault),
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
