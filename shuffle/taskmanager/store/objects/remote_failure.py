"""Failures of requests to the remote tier, in known phrases.

A server's answer may repeat parts of a credential, so its text is never part of a message.
"""

import os
import re
from typing import Final

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>([A-Za-z]{3,40})</Code>")
_OS_ERROR: Final = re.compile(r"(?:\(os error |^\[Errno )(\d+)")
_NO_ROOM: Final = frozenset({28, 122})
_PHRASES: Final = (
    ("Connection refused", "connection refused"),
    ("dns error", "host name cannot be resolved"),
    ("timed out", "no answer in time"),
    ("TimedOut", "no answer in time"),
    ("certificate", "its certificate is not trusted"),
    ("error sending request", "connection failed"),
    ("error decoding response body", "incomplete response"),
    ("request or response body error", "incomplete response"),
    ("IncompleteMessage", "incomplete response"),
    ("missing", "credentials or settings are missing"),
    ("Requested range was invalid", "the object is shorter"),
    ("credentials", "no credentials"),
    ("Token", "no credentials"),
)


class RemoteFailure(Exception):
    """A request failed. The text contains no secrets.

    Attributes:
        missing: The object does not exist.
        full: The store is full.
        exists: An object with that name exists already.
        is_answer: The store answered. If not, the request may still take effect.
    """

    def __init__(
        self,
        reason: str,
        *,
        missing: bool = False,
        full: bool = False,
        exists: bool = False,
        is_answer: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.missing = missing
        self.full = full
        self.exists = exists
        self.is_answer = is_answer or missing or full or exists


def failure_in_words(error: Exception) -> RemoteFailure:
    """Describe an error in known phrases, without repeating text from the server."""
    if isinstance(error, RemoteFailure):
        return error
    kind, text = type(error).__name__, str(error)
    if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in text:
        return RemoteFailure("the object does not exist", missing=True)
    if kind == "AlreadyExistsError":
        return RemoteFailure("the object exists already", exists=True)
    number = _OS_ERROR.search(text)
    if number is not None:
        reason = os.strerror(int(number[1]))
        return RemoteFailure(reason, full=int(number[1]) in _NO_ROOM, is_answer=True)
    status, code = _STATUS.search(text), _CODE.search(text)
    if status is not None or code is not None:
        words = [each for each in (status and f"status {status[1]}", code and code[1]) if each]
        missing = (
            status is not None and status[1] == "404" and (code is None or code[1] == "NoSuchKey")
        )
        full = code is not None and code[1] in ("XMinioStorageFull", "QuotaExceeded")
        what = "it answers " + ", ".join(words)
        # A proxy may answer 5xx to a request that takes effect later.
        is_answer = status is None or status[1] < "500"
        return RemoteFailure(what, missing=missing, full=full, is_answer=is_answer)
    if kind in ("PermissionDeniedError", "UnauthenticatedError"):
        return RemoteFailure("the credentials are not accepted", is_answer=True)
    for phrase, words_ in _PHRASES:
        if phrase in text:
            return RemoteFailure(words_)
    return RemoteFailure(kind)
