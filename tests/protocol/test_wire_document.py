"""docs/reference/wire.md against the code: ids, field names, codes, limits."""

import re
from pathlib import Path

import pytest

from sluice.protocol import codec, events, limits
from sluice.protocol import messages as m
from sluice.protocol.errors import ErrorCode

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "wire.md"
DOCUMENT = PAGE.read_text(encoding="utf-8")
TEXT = " ".join(DOCUMENT.split())
"""In one line: a sentence may be wrapped anywhere."""
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in DOCUMENT.splitlines()
    if line.startswith("|")
]
NAMES = {kind.__name__: kind for kind in codec.TYPE_IDS}


def _documented() -> dict[str, tuple[int, str]]:
    """Return each message's id and the cell that lists its fields."""
    found: dict[str, tuple[int, str]] = {}
    columns: list[str] = []
    for row in ROWS:
        if row[0] == "id":
            columns = row
        elif columns and re.fullmatch(r"\d+( / \d+)?", row[0]) and len(row) == len(columns):
            fields = row[columns.index("fields")] if "fields" in columns else ""
            for number, name in zip(row[0].split(" / "), row[1].split(" / "), strict=True):
                if name in NAMES:
                    found[name] = (int(number), fields)
    return found


def test_every_message_is_documented_with_its_id() -> None:
    assert {name: number for name, (number, _) in _documented().items()} == {
        kind.__name__: number for kind, number in codec.TYPE_IDS.items()
    }


@pytest.mark.parametrize("name", NAMES)
def test_fields_are_documented_in_order(name: str) -> None:
    cell = _documented()[name][1].partition(";")[0]
    outer, _, inner = cell.partition("[[")
    # "[[…]]" of a field lists the fields of its elements.
    outer = re.sub(r"\(.*?\)", "", outer)  # remarks
    names = [part.split()[0] for part in outer.split(",") if part.strip()]
    assert names == list(NAMES[name]._fields)
    if inner:
        parts = [part.split()[0] for part in inner.split("]]")[0].split(",")]
        assert parts == list(m.GateChannel._fields)


def test_events_are_documented_with_their_fields() -> None:
    documented = {
        row[1]: (int(row[0]), [part.split()[0] for part in row[2].split(",") if part])
        for row in ROWS
        if len(row) == 3 and row[1] in {kind.__name__ for kind in events.EVENT_IDS}
    }
    assert documented == {
        kind.__name__: (number, list(kind._fields)) for kind, number in events.EVENT_IDS.items()
    }


def test_error_codes() -> None:
    documented = {
        int(row[0]): re.sub(r" \(.*\)", "", row[1])
        for row in ROWS
        if len(row) == 3 and row[0].isdigit() and re.match(r"[A-Z_]{5,}", row[1])
    }
    assert documented == {int(code): code.name for code in ErrorCode}


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
    assert f"magic str = `{limits.MAGIC}`" in TEXT
    assert f"Version is {limits.VERSION}." in TEXT
