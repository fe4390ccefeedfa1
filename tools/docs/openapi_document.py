"""Writes ``docs/reference/openapi.json``, the description of the HTTP port, from the code.

``python -m tools.docs.openapi_document``, or ``make docs``. A test fails when the committed
document differs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sluice.shuffle.taskmanager.http.openapi import encoded

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"


if __name__ == "__main__":
    DOCUMENT.write_bytes(encoded())
