"""A progress bar while map outputs move to other TaskManagers, if somebody looks at it."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Final, TypeVar

import click

from ..protocol.access_token import SCOPE_ADMIN
from .endpoints import fetch_status

if TYPE_CHECKING:
    from collections.abc import Callable

    from .http_client import Given

INTERVAL_SECONDS: Final = 0.5
"""Pause between two questions for the progress."""

_STATUS_SECONDS: Final = 5.0
"""Time for an answer; without one the bar stands still."""

T = TypeVar("T")


def with_progress(url: str, given: Given, work: Callable[[], T]) -> T:
    """Do blocking work, and show meanwhile how many map outputs have moved.

    The bar goes to standard error, and only if that is a terminal.

    Args:
        url: The HTTP port of the TaskManager that moves them.
        given: The credential; each question gets a token of its own.
        work: Returns when they have moved.

    Raises:
        Exception: The error of the work.
    """
    if not sys.stderr.isatty():
        return work()
    results: list[T] = []
    failures: list[BaseException] = []
    ended = threading.Event()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            failures.append(error)
        ended.set()

    threading.Thread(target=run, name="sluice-drain", daemon=True).start()
    _show(url, given, ended)
    if failures:
        raise failures[0]
    return results[0]


def _show(url: str, given: Given, ended: threading.Event) -> None:
    """Show the progress until the work has ended."""
    bar = None
    while not ended.wait(INTERVAL_SECONDS):
        try:
            _, status = fetch_status(url, given.token(SCOPE_ADMIN), _STATUS_SECONDS)
        except click.ClickException:
            continue  # the work says what is wrong
        total = sum(each.committed_map_outputs for each in status.partitions)
        if bar is None and total:
            bar = click.progressbar(length=total, label="moving map outputs", file=sys.stderr)
            bar.render_progress()
        if bar is not None:
            bar.length = max(total, status.copies.moved)
            bar.update(max(0, status.copies.moved - bar.pos))
    if bar is not None:
        bar.render_finish()
