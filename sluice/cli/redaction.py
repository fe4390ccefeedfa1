"""Removes secrets from texts that leave the host, such as an archive for a bug report.

Two rules, and either suffices: a text that is known to be secret, because its file was read, and a
text that looks like one. Too much is removed rather than too little.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import re
import urllib.parse
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

REMOVED: Final = "[removed]"

_MIN_KNOWN_CHARACTERS: Final = 8
"""A shorter text may occur by chance, and removing it everywhere would say what it is."""

_LINE_WORD: Final = (
    r"passw(?:or)?d|passphrase|passcode|cookie|authorization|[_.-](?:pass|pwd)(?![a-z])"
)
"""In names whose value may have blanks: without quotes it ends with the line."""

_WORD: Final = (
    rf"(?:{_LINE_WORD}|secret|token|credential|signature"
    r"|(?:private|access|account|api|shared|signing|encryption)[_-]?key)"
)
_REST: Final = r"[\w.-]{0,200}+"
"""Of a name; with a bound, because a long text may repeat the words above."""

_SENSITIVE_NAME: Final = rf"[\w.-]*{_WORD}[\w.-]*"
_PATTERNS: Final = (
    # Whatever Sluice makes: secrets, tokens, credentials.
    (re.compile(r"\bsluice-(secret|token|driver|task|access|peer)-\d+-[^\s\"',;]+"), r"sluice-\1-"),
    (re.compile(r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)"), ""),
    # The end of a log may begin in the middle of a key.
    (re.compile(r"(?s)\A.*-----END [A-Z ]*PRIVATE KEY-----"), ""),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), r"\1 "),
    (re.compile(r"(://)[^\s/\"'<>]+@"), r"\1"),
    # In the query of a signed URL, also after & written as an escape of JSON.
    (re.compile(r"(?i)(?<![a-z_-])(sig=)[^\s&\"'<>\\]+"), r"\1"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), ""),
    # XML, also that of Hadoop, which has the name in an element of its own.
    (re.compile(rf"(?i)({_WORD}{_REST}(?:</name>\s*<value)?>)[^<\n]+"), r"\1"),
)

_IN_QUOTES: Final = r"\"(?:[^\"\\\n]|\\.)*+\"|'[^'\n]*+'"
_QUOTED: Final = (
    # JSON in a string of JSON.
    r"(?P<escaped>\\+[\"']).*?(?:(?<!\\)(?P=escaped)|$)"
    r"|\"\"\"(?:[^\"\\]|\\[\s\S]|\"(?!\"\"))*+(?:\"\"\"|\Z)|\'\'\'[\s\S]*?(?:\'\'\'|\Z)"
    # A block of YAML: the next line, and all that are indented.
    r"|(?:[!&]\S*[ \t]+)*[|>][-+\d]*[ \t]*(?:#.*)?\n.*(?:\n[ \t]+.*|\n(?=\n))*+"
    # A shell joins strings.
    rf"|(?:{_IN_QUOTES})(?:{_IN_QUOTES}|\\.|[^\s,;\"'\\\[\]{{}}()<>])*+"
    # More than a line, and the rest of its last one, since the quotes may not be a pair.
    r"|\"(?:[^\"\\]|\\[\s\S]){0,4096}+.*|'[^']{0,4096}+.*"
)
_LIST: Final = r"\[[^\]]{0,4096}+\]?|\{[^}]{0,4096}+\}?"
_BARE: Final = (
    # A quote ends the value only if it looks like that of an outer string.
    r"(?:[^\s,;\"'\\]|\\.|\"(?![,}\]):\s]|$)(?:[^\"\\\n]|\\.)*+\"?|'(?![,}\]):\s]|$)[^'\n]*+'?)++"
)
_LINE: Final = r".+"
_SEPARATOR: Final = r"(?:\\*[\"'])?(?:\[\w*\])?[ \t]*[=:]{1,2}>?\s*|\\*[\"']\s*,\s*(?=\\*[\"'])"


def _assignment(name: str, separator: str, value: str) -> re.Pattern[str]:
    return re.compile(rf"(?im)(?P<name>{name})(?P<separator>{separator})(?P<value>{value})")


_ASSIGNMENTS: Final = (
    _assignment(rf"(?:{_LINE_WORD}){_REST}", _SEPARATOR, f"{_QUOTED}|{_LINE}"),
    _assignment(rf"{_WORD}{_REST}", _SEPARATOR, f"{_QUOTED}|{_LIST}|{_BARE}"),
    # Command lines, and the files of properties of Spark.
    _assignment(
        rf"(?<![\w.-])spark\.[\w.-]{{0,200}}?(?:{_LINE_WORD}){_REST}",
        r"[ \t]+",
        rf"(?![=:]){_QUOTED}|{_LINE}",
    ),
    _assignment(
        rf"(?<![\w.-])(?:--|spark\.)[\w.-]{{0,200}}?{_WORD}{_REST}",
        r"[\"']?[ \t]+",
        rf"(?![-=:])(?:{_QUOTED}|{_BARE})",
    ),
)
_NUMBER_OR_FLAG: Final = re.compile(
    r"(?i)(?:\\*[\"'])?(?:[\d.]+|true|false|none|null|)(?:\\*[\"'])?[)\]}]*"
)
_NAMES_A_FILE: Final = re.compile(r"(?i).*(?:files?|path|director(?:y|ies))")
_IS_TYPED: Final = re.compile(rf"(?i).*(?:{_LINE_WORD}|key|signature).*")
"""Names of what people choose: a number may be one."""

_SHORT: Final = 256
_OPENING: Final = re.compile(r"\"\"\"|\'\'\'|\\*[\"']")
_REPEATED: Final = re.compile(rf"(?:{re.escape(REMOVED)}){{2,}}")


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
    forms |= {json.dumps(form)[1:-1] for form in forms}
    forms |= {urllib.parse.quote(form, safe="") for form in forms}
    useful = {form for form in forms if len(form) >= _MIN_KNOWN_CHARACTERS}
    return sorted(useful, key=len, reverse=True)


def redact(text: str, known: Iterable[str] = ()) -> str:
    """Return a text without secrets.

    JSON stays JSON, and is the same text if there is no secret in it.

    Args:
        text: Any text, such as a log or a configuration file.
        known: Forms of known secrets, as :func:`known_forms` returns them.
    """
    known = tuple(known)
    if text.lstrip()[:1] in ("{", "["):
        # Before any pattern: one that removes a whole line would remove the rest of the document.
        with contextlib.suppress(ValueError, RecursionError):
            document = json.loads(text)
            clean = redact_values(document, known)
            return text if clean == document else json.dumps(clean, indent=2, ensure_ascii=False)
    # A status repeats its short texts.
    return _redact_again(text, known) if len(text) < _SHORT else _redact_text(text, known)


def _redact_text(text: str, known: tuple[str, ...]) -> str:
    for form in known:
        text = text.replace(form, REMOVED)
    for pattern, kept in _PATTERNS:
        text = pattern.sub(kept + REMOVED, text)
    for assignment in _ASSIGNMENTS:
        text = assignment.sub(_without_value, text)
    return _REPEATED.sub(REMOVED, text)


_redact_again = functools.lru_cache(maxsize=4096)(_redact_text)


def redact_values(document: Any, known: Iterable[str] = (), *, is_secret: bool = False) -> Any:
    """Return a document of JSON without secrets, in its names too.

    Args:
        document: What ``json.loads`` returns.
        known: Forms of known secrets, as :func:`known_forms` returns them.
        is_secret: Whether every text and number in it is secret.

    Raises:
        RecursionError: It is too deep.
    """
    if isinstance(document, dict):
        return {
            redact(name, known): redact_values(
                value, known, is_secret=is_secret or _hides(name, value)
            )
            for name, value in document.items()
        }
    if isinstance(document, list):
        is_pair = len(document) == 2 and isinstance(document[0], str)
        if is_pair and _hides(document[0].lstrip("-"), document[1]):
            return [redact(document[0], known), REMOVED]
        return [redact_values(each, known, is_secret=is_secret) for each in document]
    if is_secret and document is not None and not isinstance(document, bool):
        return REMOVED
    return redact(document, known) if isinstance(document, str) else document


def _hides(name: str, value: object) -> bool:
    """Return whether a name says that its value is secret."""
    if not is_sensitive(name) or _NAMES_A_FILE.fullmatch(name):
        return False
    return not _is_count(name, str(value))


def _is_count(name: str, value: str) -> bool:
    return bool(_NUMBER_OR_FLAG.fullmatch(value) and not _IS_TYPED.fullmatch(name))


def _without_value(match: re.Match[str]) -> str:
    """Remove what is assigned to a sensitive name, unless it names a file or is a count."""
    name, value = match["name"], match["value"]
    if _NAMES_A_FILE.fullmatch(name) or _is_count(name, value):
        return match[0]
    opening = _OPENING.match(value)
    quote = opening[0] if opening else ""
    return f"{name}{match['separator']}{quote}{REMOVED}{quote}"
