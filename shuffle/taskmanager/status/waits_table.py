"""The waits of a status as text: a tree for a terminal, rows for a pipe.

A wait whose resource waits itself has that wait below it, so a branch leads from what a user sees,
a writer that waits, to the cause, such as a reader that does not read.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from ...wait_status import MAX_WAITS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...wait_status import WaitStatus

MAX_SHOWN: Final = 40
"""Waits that a terminal shows."""

INDENT: Final = "  "


def tree(waits: Sequence[WaitStatus]) -> Iterator[tuple[int, WaitStatus]]:
    """Yield each wait once with its depth, in front of those of its resource.

    Branches come in the order of their first waits. The waits of a resource stand below the first
    wait for it. Of a circle, in which everything waits for another, the first wait comes first.
    """
    by_waiter: dict[object, list[WaitStatus]] = {}
    for each in waits:
        by_waiter.setdefault((each.taskmanager_id, each.waiter), []).append(each)
    awaited = {(each.taskmanager_id, each.resource) for each in waits}
    roots = [each for each in waits if (each.taskmanager_id, each.waiter) not in awaited]
    seen: set[int] = set()
    for root in (*roots, *waits):
        pending = [(0, root)]
        while pending:
            depth, wait = pending.pop()
            if id(wait) in seen:
                continue
            seen.add(id(wait))
            yield depth, wait
            below = by_waiter.get((wait.taskmanager_id, wait.resource), [])
            pending += [(depth + 1, each) for each in reversed(below)]


def tree_lines(waits: Sequence[WaitStatus], omitted: int) -> Iterator[tuple[str, str]]:
    """Yield indent and text of each line of the tree; the texts may have any length."""
    several = len({each.taskmanager_id for each in waits}) > 1
    for depth, each in islice(tree(waits), MAX_SHOWN):
        indent = INDENT * depth
        where = f" at {each.taskmanager_id}" if several and not depth else ""
        waiter = "which" if depth else str(each.waiter)  # the resource of the line above it
        yield indent, f"{waiter} waits for {each.resource}{where}{_since(each)}"
        yield indent + INDENT, f"{each.text}. {each.remedy}."
    omitted += max(0, len(waits) - MAX_SHOWN)
    if omitted:
        yield "", f"{omitted} more waits are left out; --json has up to {MAX_WAITS}."


def rows(waits: Sequence[WaitStatus]) -> Iterator[tuple[str, ...]]:
    """Yield waiter, resource, time, sentence and remedy of each wait."""
    for each in waits:
        since = "-" if each.seconds is None else f"{each.seconds:.1f} s"
        yield str(each.waiter), str(each.resource), since, each.text, each.remedy


def _since(wait: WaitStatus) -> str:
    return "" if wait.seconds is None else f" for {wait.seconds:.1f} s"
