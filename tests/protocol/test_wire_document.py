"""docs/reference/wire.md against the code: ids, field names, limits."""

import re
from pathlib import Path

import pytest

from sluice.protocol import events, limits
from sluice.protocol import schema as m
from tools.docs import wire_tables

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "wire.md"
DOCUMENT = PAGE.read_text(encoding="utf-8")
TEXT = " ".join(DOCUMENT.split())
"""In one line: a sentence may be wrapped anywhere."""
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in DOCUMENT.splitlines()
    if line.startswith("|")
]


def test_the_tables_of_messages_are_the_generated_ones() -> None:
    assert wire_tables.page(DOCUMENT) == DOCUMENT, "run: make docs"


def test_every_message_is_in_a_table() -> None:
    numbers = {
        int(number)
        for _, ids, _ in wire_tables.TABLE.findall(DOCUMENT)
        for number in ids.split(", ")
    }
    assert numbers == set(m.TYPE_IDS.values())


def test_events_are_documented_with_their_fields() -> None:
    documented = {
        row[1]: (int(row[0]), [part.split()[0] for part in row[2].split(",") if part])
        for row in ROWS
        if len(row) == 3 and row[1] in {kind.__name__ for kind in events.EVENT_IDS}
    }
    assert documented == {
        kind.__name__: (number, list(kind.__struct_fields__))
        for kind, number in events.EVENT_IDS.items()
    }


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (limits.MAX_CONTROL_BYTES, "u32, 1 … 4 MiB"),
        (limits.MAX_HANDSHAKE_CONTROL_BYTES, "(4 KiB until the handshake is over)"),
        (limits.MAX_EVENT_BYTES, "1 KiB"),
        (limits.MAX_CREDIT, "2³¹−1"),
        (limits.MAX_NAME_CHARACTERS, "at most 256 characters"),
    ],
)
def test_limits(number: int, text: str) -> None:
    assert text in TEXT
    digits = re.search(r"(\d+) (MiB|KiB|characters)", text)
    unit = {"MiB": 2**20, "KiB": 2**10, "characters": 1}
    assert number == (int(digits[1]) * unit[digits[2]] if digits else 2**31 - 1)


def test_magic_and_version() -> None:
    assert f"magic is `{limits.MAGIC}`." in TEXT
    assert f"Version is {limits.VERSION}." in TEXT
