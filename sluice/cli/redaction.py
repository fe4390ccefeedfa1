"""Removes secrets from texts that leave the host, such as an archive for a bug report.

Two rules, and either suffices: a text that is known to be secret, because its file was read, and a
text that looks like one. Too much is removed rather than too little.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

REMOVED: Final = "[removed]"

_MIN_KNOWN_CHARACTERS: Final = 8
"""A shorter text may occur by chance, and removing it everywhere would say what it is."""

_SENSITIVE_NAME: Final = (
    r"[\w.-]*(?:secret|token|passw(?:or)?d|passphrase|credential|private[_-]?key|access[_-]?key"
    r"|api[_-]?key|authorization)[\w.-]*"
)
_PATTERNS: Final = (
    # Whatever Sluice makes: secrets, tokens, credentials.
    (re.compile(r"\bsluice-(secret|token|driver|task|access|peer)-\d+-[^\s\"',;]+"), r"sluice-\1-"),
    (re.compile(r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)"), ""),
    # The end of a log may begin in the middle of a key.
    (re.compile(r"(?s)\A.*-----END [A-Z ]*PRIVATE KEY-----"), ""),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), r"\1 "),
    (re.compile(r"(?i)(\w+://)[^\s/@:\"']+:[^\s/@\"']+@"), r"\1"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), ""),
)
_ASSIGNED: Final = re.compile(
    rf"(?im)(?P<name>[\"']?\b{_SENSITIVE_NAME}[\"']?\s*[=:]\s*)"
    r"(?P<value>\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|[^\s,;\[\]{}\"']+)"
)
_NUMBER_OR_FLAG: Final = re.compile(r"(?i)[\"']?(?:[\d.]+|true|false|none|null|)[\"']?")
_NAMES_A_FILE: Final = re.compile(r"(?i).*(?:files?|path|director(?:y|ies))[\"']?\s*[=:]\s*")
_IS_TYPED: Final = re.compile(r"(?i).*(?:passw|passphrase|key).*")
"""Names of what people choose: a number may be one."""


def is_sensitive(name: str) -> bool:
    """Return whether the value of a name, such as an environment variable, is not to be shown."""
    return re.fullmatch(f"(?i){_SENSITIVE_NAME}", name) is not None


def known_forms(secrets: Iterable[bytes | str]) -> list[str]:
    """Return the forms in which known secrets may be written, longest first."""
    forms: set[str] = set()
    for secret in secrets:
        raw = secret.encode() if isinstance(secret, str) else secret
        forms |= {
            raw.decode("latin-1").strip(),
            raw.hex(),
            base64.b64encode(raw).decode().rstrip("="),
            base64.urlsafe_b64encode(raw).decode().rstrip("="),
            base64.b32encode(raw).decode().rstrip("="),
        }
    useful = {form for form in forms if len(form) >= _MIN_KNOWN_CHARACTERS}
    return sorted(useful, key=len, reverse=True)


def redact(text: str, known: Iterable[str] = ()) -> str:
    """Return a text without secrets.

    Args:
        text: Any text, such as a log or a configuration file.
        known: Forms of known secrets, as :func:`known_forms` returns them.
    """
    for form in known:
        text = text.replace(form, REMOVED)
    for pattern, kept in _PATTERNS:
        text = pattern.sub(kept + REMOVED, text)
    return _ASSIGNED.sub(_without_value, text)


def _without_value(match: re.Match[str]) -> str:
    """Remove what is assigned to a sensitive name, unless it names a file or is a count."""
    name, value = match["name"], match["value"]
    is_count = _NUMBER_OR_FLAG.fullmatch(value) and not _IS_TYPED.fullmatch(name)
    if _NAMES_A_FILE.fullmatch(name) or is_count or REMOVED in value:
        return match[0]
    quote = value[0] if value[0] in "\"'" else ""
    return f"{name}{quote}{REMOVED}{quote}"
