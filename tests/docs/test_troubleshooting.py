"""The messages of the troubleshooting page are messages of the code, and none is there twice."""

from __future__ import annotations

import re
from functools import cache

import pytest

from sluice.protocol.errors import ErrorCode
from tests.docs.examples import ROOT
from tools.docs import troubleshooting_page as generator
from tools.docs.errors_page import all_errors

PAGE = generator.PAGE.read_text(encoding="utf-8")
BY_HAND, _, GENERATED = PAGE.partition(generator.BEGIN)
SOURCES = ("protocol", "transport", "shuffle", "spark_integration", "sluice/cli")
PLACEHOLDER = re.compile(r"\[?'?\b[A-Z][A-Z_]+\b'?\]?")
"""Capitals stand for what changes."""


def messages() -> list[str]:
    """Return the messages of the part that is written by hand: code of several words."""
    found = [each.replace("\n", " ") for each in re.findall(r"`([^`]+)`", BY_HAND)]
    is_message = re.compile(r"(?!sluice |ulimit )\S*[a-z']+( [\w:'/,;]+){2,}")
    return [each for each in dict.fromkeys(found) if is_message.fullmatch(each)]


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


def test_messages_are_found():
    assert len(messages()) > 20


@pytest.mark.parametrize("message", messages())
def test_the_code_says_it(message: str):
    wanted = fragments(message)
    assert wanted
    assert not [part for part in wanted if part not in code()]


def test_the_committed_tables_are_the_generated_ones():
    assert generator.page(PAGE) == PAGE, "run: make docs"


def test_hand_written_tables_repeat_no_generated_message():
    rows = re.findall(r"^\| `(.+?)`", BY_HAND, re.MULTILINE)
    assert rows
    repeated = [row for row in rows if all(part in GENERATED for part in fragments(row))]
    assert not repeated


def test_sections_name_codes_and_errors_that_exist():
    names = {kind.__name__ for kind in all_errors()}
    wanted = {key for keys in generator.SECTIONS.values() for key in keys}
    assert {key for key in wanted if not isinstance(key, ErrorCode)} <= names
    assert names >= generator.SEEN_AT_ONCE


def test_excluded_messages_exist():
    assert {each.text for each in generator.messages()} >= generator.FOR_AUTHORS


def test_no_section_is_empty():
    assert all(generator.by_section().values())


def test_messages_are_read_from_raised_errors():
    found = {each.text: each for each in generator.messages()}
    message = found["The TaskManager has reached its limit of connections"]
    assert message.code == "TOO_MANY_CONNECTIONS"
    assert message.remedy.startswith("Raise transport.max_connections")
