"""A progress bar for commands of developers, if somebody looks at it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")


@contextlib.contextmanager
def progress_bar(
    total: int, label: str, console: Console | None = None
) -> Iterator[Callable[[], None]]:
    """Show a bar below the output, only if the output is a terminal.

    The bar is drawn when a step ends and when something is printed, and goes away at the end. It
    has no thread: a benchmark that counts processor time must not pay for it.

    Args:
        total: Number of steps.
        label: What the steps are, such as ``"rounds"``.
        console: The one on which the command prints; None: standard output.

    Yields:
        What to call after each step.
    """
    console = Console() if console is None else console
    # FORCE_COLOR makes rich call a pipe a terminal.
    if not console.file.isatty() or console.is_dumb_terminal:
        yield lambda: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bar = Progress(
        *columns, TimeElapsedColumn(), console=console, auto_refresh=False, transient=True
    )
    with bar:
        task = bar.add_task(label, total=total)

        def advance() -> None:
            bar.advance(task)
            bar.refresh()

        bar.refresh()
        yield advance


def with_bar(steps: Sequence[T], label: str, console: Console | None = None) -> Iterator[T]:
    """Yield the steps, and show meanwhile how many have ended.

    Args:
        steps: The steps.
        label: What they are.
        console: As for :func:`progress_bar`.
    """
    with progress_bar(len(steps), label, console) as advance:
        for each in steps:
            yield each
            advance()
