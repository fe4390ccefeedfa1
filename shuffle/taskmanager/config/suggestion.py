"""Suggestions for unknown names in a configuration."""

import difflib
from collections.abc import Iterable, Mapping


def suggestion(name: str, known: Iterable[str], places: Mapping[str, str] | None = None) -> str:
    """Return the end of an error message about an unknown name.

    Args:
        name: The unknown name.
        known: Valid names at this place.
        places: Names that are valid elsewhere, and where.
    """
    if nearest := _nearest(name, known):
        return f": did you mean {nearest}?"
    if places is not None and (nearest := _nearest(name, places)):
        return f": did you mean {nearest} in {places[nearest]}?"
    return ": see docs/reference/settings.md"


def _nearest(name: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, [*known], n=1, cutoff=0.6)), None)
