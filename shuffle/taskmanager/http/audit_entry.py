"""The part of a line of the audit log that comes from the answer of its request."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

AUDIT: Final = "sluice.audit"
"""The logger of requests that change a TaskManager."""


class AuditEntry:
    """The part of a line that is not in the request itself."""

    __slots__ = ("change", "token_id")

    def __init__(self) -> None:
        self.change = ""
        self.token_id = b""


current: ContextVar[AuditEntry] = ContextVar("_entry")
"""The entry of the request that is being answered, if it changes something."""


def note_change(what: str) -> None:
    """Record what the request changes, for its line."""
    if (entry := current.get(None)) is not None:
        entry.change = what


def note_token(token_id: bytes) -> None:
    """Record the id of the access token that was accepted for the request."""
    if (entry := current.get(None)) is not None:
        entry.token_id = token_id
