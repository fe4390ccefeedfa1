"""One warning in the status of a TaskManager."""

from typing import Literal, TypeAlias

import msgspec

Severity: TypeAlias = Literal["error", "warning", "note"]


class WarningStatus(msgspec.Struct, frozen=True, gc=False):
    """A condition that somebody should know about, in words."""

    severity: Severity = "note"
    """``"error"``: data or work is lost or refused now. ``"warning"``: it soon may be. ``"note"``:
    it happened since the start and may be over."""
    text: str = ""
    """What is the matter, with the value."""
    remedy: str = ""
    """What to do about it."""
