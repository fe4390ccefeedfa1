"""Whether the data path runs as extension modules or as plain Python (docs/design.md)."""

from typing import Final

from protocol import framing

COMPILED: Final = "compiled"
INTERPRETED: Final = "interpreted"


def data_path() -> str:
    """Return ``COMPILED`` or ``INTERPRETED``: a wheel has all its extension modules or none."""
    return INTERPRETED if framing.__file__.endswith(".py") else COMPILED
