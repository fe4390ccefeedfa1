"""Compares the rows of two runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SHOWN_DIFFERENCES = 3


def differences(expected: Path, found: Path) -> list[str]:
    """Return the differences of two files of canonical rows (``jobs/rows.py``); empty when equal.

    Both files are sorted, so a missing, changed or repeated row shows where it belongs.
    """
    expected_lines = expected.read_text(encoding="utf-8").splitlines()
    found_lines = found.read_text(encoding="utf-8").splitlines()
    if expected_lines == found_lines:
        return []
    told = []
    if len(expected_lines) != len(found_lines):
        told.append(f"{len(expected_lines)} rows expected, {len(found_lines)} found")
    for number, pair in enumerate(zip(expected_lines, found_lines, strict=False), 1):
        if pair[0] != pair[1]:
            told.append(f"row {number}: expected {pair[0]}, found {pair[1]}")
        if len(told) >= SHOWN_DIFFERENCES:
            break
    return told
