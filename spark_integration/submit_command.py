"""Parses the command line of ``spark-submit`` and the settings that it makes.

A setting comes from the first of these that has it: its own option (``--jars``), the last
``--conf``, the properties file, and ``spark-defaults.conf``, which Spark reads only without a
properties file or with ``--load-spark-defaults``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

_SWITCHES: Final = frozenset(
    {
        *("--help", "-h", "--supervise", "--usage-error", "--verbose", "-v", "--version"),
        "--load-spark-defaults",
    }
)
"""Options without a value; every other option has one."""

_OWN_OPTIONS: Final = {
    "--jars": "spark.jars",
    "--driver-class-path": "spark.driver.extraClassPath",
    "--master": "spark.master",
    "--remote": "spark.remote",
    "--deploy-mode": "spark.submit.deployMode",
}
_CONF: Final = ("--conf", "-c")
_WITH_EQUALS_SIGN: Final = re.compile(r"(--[^=]+)=(.+)", re.DOTALL)


class SubmitCommand(NamedTuple):
    """The parsed arguments of ``spark-submit``."""

    options: tuple[tuple[str, str | None], ...]
    """The options with their values, in the order of the command line."""
    job: tuple[str, ...]
    """The job and its arguments."""

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> SubmitCommand:
        """Parse ``arguments``; the first word that is not an option begins the job."""
        options: list[tuple[str, str | None]] = []
        position = 0
        while position < len(arguments) and arguments[position].startswith("-"):
            word = arguments[position]
            position += 1
            match = _WITH_EQUALS_SIGN.fullmatch(word)
            if match is not None:
                options.append((match[1], match[2]))
            elif word in _SWITCHES or position == len(arguments):
                options.append((word, None))
            else:
                options.append((word, arguments[position]))
                position += 1
        return cls(tuple(options), tuple(arguments[position:]))

    def has(self, name: str) -> bool:
        """Return whether an option is given."""
        return any(name == each for each, _ in self.options)

    def conf(self) -> dict[str, str]:
        """Return the settings that the options set."""
        settings: dict[str, str] = {}
        for name, value in self.options:
            if name in _CONF and value is not None:
                key, _, text = value.partition("=")
                settings[key] = text
        for name, value in self.options:
            if name in _OWN_OPTIONS and value is not None:
                settings[_OWN_OPTIONS[name]] = value
        return settings

    def settings(self, configuration: Path | None) -> dict[str, str]:
        """Return all settings of the user, including property files.

        Args:
            configuration: Directory that may have a ``spark-defaults.conf``, or None.
        """
        files = [value for name, value in self.options if name == "--properties-file" and value]
        found: dict[str, str] = {}
        if configuration is not None and (not files or self.has("--load-spark-defaults")):
            found |= read_properties(configuration / "spark-defaults.conf")
        if files:
            found |= read_properties(Path(files[-1]))
        return found | self.conf()

    def without(self, keys: Container[str]) -> list[str]:
        """Return the words of the options, except those that set one of ``keys``."""
        words: list[str] = []
        for name, value in self.options:
            key = (value or "").partition("=")[0] if name in _CONF else _OWN_OPTIONS.get(name, "")
            if key not in keys:
                words += [name] if value is None else [name, value]
        return words


def read_properties(path: Path) -> dict[str, str]:
    """Read a file of Java properties; return nothing if it cannot be read.

    Spark reads the same file and reports the error.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        match = _KEY_AND_VALUE.fullmatch(line)
        if match is not None:
            found[_unescaped(match[1])] = _unescaped(match[2]).strip()
    return found


_KEY_AND_VALUE: Final = re.compile(r"((?:\\.|[^\\\s=:])+)\s*[=:]?\s*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROL_CHARACTERS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _logical_lines(text: str) -> Iterator[str]:
    """Join lines that end in an odd number of backslashes with the next; skip comments."""
    begun = ""
    for line in re.split(r"\r\n|\r|\n", text):
        stripped = line.lstrip()
        if not begun and stripped[:1] in ("#", "!", ""):
            continue
        backslashes = len(stripped) - len(stripped.rstrip("\\"))
        if backslashes % 2:
            begun += stripped[:-1]
        else:
            yield begun + stripped
            begun = ""
    if begun:
        yield begun


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_unescape, text)


def _unescape(match: re.Match[str]) -> str:
    escaped = match[1]
    if len(escaped) > 1:
        return chr(int(escaped[1:], 16))
    return _CONTROL_CHARACTERS.get(escaped, escaped)
