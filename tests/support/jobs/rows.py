"""Rows written so that two runs can be compared exactly.

Spark promises no order beyond ORDER BY (rows that tie may come either way), so the lines are
sorted. Values are written in full and with their type: ``1``, ``"1"`` and ``1.00`` differ. A
float is refused, because the last bits of a sum of floats depend on the order in which partial
sums arrive, which no shuffle promises: such a query must sum decimals instead, as TPC-H's do.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def canonical_lines(result: Iterable[Sequence[Any]]) -> list[str]:
    """One line of JSON per row, with its line end, sorted.

    Raises:
        TypeError: A value has a type that cannot be compared exactly.
    """
    return sorted(json.dumps([_canonical(value) for value in row]) + "\n" for row in result)


def digest(lines: Iterable[str]) -> str:
    """SHA-256 of the lines, in hexadecimal."""
    checksum = hashlib.sha256()
    for line in lines:
        checksum.update(line.encode())
    return checksum.hexdigest()


def _canonical(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, datetime.date | datetime.datetime):
        return {type(value).__name__: value.isoformat()}
    if isinstance(value, bytes | bytearray):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, list | tuple):
        return [_canonical(part) for part in value]
    raise TypeError(
        f"a result has the {type(value).__name__} {value!r}, which two runs cannot be expected to"
        " produce bit by bit; cast it to decimal or to text in the job"
    )
