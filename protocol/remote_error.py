"""Errors on the wire: an ErrorResponse from an error, and an error from an ErrorResponse."""

from protocol.errors import ErrorCode, Fault, SluiceError
from protocol.messages import ErrorResponse


class RemoteError(SluiceError):
    """An error that the other side reported; it carries the reported code on unchanged."""

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


def error_response(channel: int | None, error: SluiceError) -> ErrorResponse:
    """Put an error on the wire, for a channel, gate or partition, or (None) the connection."""
    return ErrorResponse(
        channel,
        int(error.code),
        int(error.fault),
        error.retryable,
        f"{error.message}. {error.remedy}" if error.remedy else error.message,
        "" if error.value is None else str(error.value),
        "" if error.limit is None else str(error.limit),
        error.map_attempt_id,
    )
