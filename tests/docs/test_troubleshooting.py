"""The messages of the troubleshooting page are messages of the code."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.docs.examples import ROOT

PAGE = ROOT / "docs" / "operate" / "troubleshooting.md"
MESSAGES = re.findall(r"^#### `(.+)`$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
SOURCES = ("protocol", "transport", "shuffle", "spark_integration", "sluice/cli")
PLACEHOLDER = re.compile(
    r"\[?'?\b[A-Z][A-Z_]+\b'?\]?"  # capitals stand for what changes
    r"|\b107\b"  # a constant
    r"|(?<=local TaskManager )(?=was)"  # made of two halves
)


@cache
def code() -> str:
    """Return all sources, with literals that stand beside each other put together."""
    files = [path for name in SOURCES for path in (ROOT / name).rglob("*")]
    text = "\n".join(
        path.read_text(encoding="utf-8")
        for path in files
        if path.suffix in {".py", ".java"} and "test" not in path.parts
    )
    return re.sub(r'"\s*\+?\s*f?"', "", text)


def fragments(message: str) -> list[str]:
    """Return the fixed words of a message."""
    parts = (part.strip(" :,.()<>/") for part in PLACEHOLDER.split(message))
    return [part for part in parts if len(part) > 3]


def test_there_are_many():
    assert len(MESSAGES) > 70


@pytest.mark.parametrize("message", MESSAGES)
def test_the_code_says_it(message: str):
    wanted = fragments(message)
    assert wanted
    missing = [part for part in wanted if part not in code()]
    assert not missing
