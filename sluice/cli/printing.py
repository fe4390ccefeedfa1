"""How commands print: tables as wide as the terminal, JSON, colors only in a terminal."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import click
import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..shuffle.taskmanager.status.table import Table

Part = tuple[str, "Sequence[str]"]
"""A title, which may be empty, and the lines below it."""


def terminal_width() -> int | None:
    """Return the columns of the terminal; None in a pipe, where lines may have any length."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_parts(parts: Iterable[Part]) -> None:
    """Print parts, with a blank line before each title."""
    for title, lines in parts:
        if title:
            click.echo(f"\n{click.style(title, bold=True)}")
        click.echo("\n".join(lines))


def print_tables(tables: Iterable[Table]) -> None:
    """Print the tables that have rows."""
    width = terminal_width()
    print_parts((each.title, list(each.lines(width))) for each in tables if each.row_count)


def print_json(document: object) -> None:
    """Print a struct, or what JSON can hold, indented."""
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def one_line(text: str) -> str:
    """Return a text that stays on its line and cannot steer the terminal."""
    shown = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(shown.split())
