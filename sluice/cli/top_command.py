"""``sluice top``: what waits, what moves and what holds memory, refreshed in place."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from typing import TYPE_CHECKING, Final

import click
import msgspec

from ..protocol.access_token import SCOPE_STATUS
from ..shuffle.taskmanager.status.table import Table
from ..transport.settings import approximate_size
from .endpoints import fetch_statuses
from .finite_range import FiniteRange
from .http_client import TIMEOUT_SECONDS, Given, default_url, http_url, proof_options
from .printing import one_line, print_tables
from .top_rows import ORDERS, SortBy, report

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.console import RenderableType

    from ..shuffle.taskmanager.status.status import TaskManagerStatus
    from .reports import TopReport, TopRow

_KEYS: Final[dict[str, SortBy]] = {"w": "wait", "r": "rate", "m": "memory"}
_QUIT: Final = "q\x03\x04"
_HEAD_LINES: Final = 5
"""Lines of the screen that are not rows."""
_NAMES: Final = "kind application shuffle number wait for rate memory taskmanager"
_NUMERIC: Final = "shuffle number wait rate memory"


class _Watched:
    """The TaskManagers and their last statuses."""

    def __init__(self, urls: list[str], given: Given, sort_by: SortBy, most_rows: int) -> None:
        self._urls = urls
        self._given = given
        self._most_rows = most_rows
        self._before: dict[str, TaskManagerStatus] = {}
        self.sort_by = sort_by

    def refresh(self) -> TopReport:
        """Ask all of them, and compare with the last time."""
        # A token that a command makes is good for a minute only, so each time has its own.
        token = self._given.token(SCOPE_STATUS)
        answers = fetch_statuses(self._urls, token, TIMEOUT_SECONDS)
        found = report(self._before, answers, self.sort_by)
        self._before = {each.url: each.status for each in answers if each.status is not None}
        return msgspec.structs.replace(found, rows=found.rows[: self._most_rows])


@click.command(short_help="Watch TaskManagers, as top does.")
@click.argument("urls", nargs=-1, metavar="[URL]...")
@click.option(
    "--sort",
    "sort_by",
    type=click.Choice(list(ORDERS)),
    default="wait",
    show_default=True,
    help="What comes first.",
)
@click.option(
    "--interval",
    type=FiniteRange(min=0.2, max=3600),
    default=2.0,
    show_default=True,
    help="Seconds between two refreshes.",
)
@click.option(
    "--count",
    type=click.IntRange(min=1),
    help="Refreshes; by default without end in a terminal, and one in a pipe.",
)
@click.option(
    "--rows",
    type=click.IntRange(1, 10000),
    default=200,
    show_default=True,
    help="Maximum number of rows.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON document for each refresh.")
@proof_options
def top(  # noqa: PLR0913 - one parameter for each option
    urls: tuple[str, ...],
    sort_by: SortBy,
    interval: float,
    count: int | None,
    rows: int,
    as_json: bool,
    secret_file: Path | None,
    token_file: Path | None,
) -> None:
    """Watch gates, pipelined partitions and stored shuffles of the TaskManagers at URL...

    Shown are how much of the time each waits and for what, its rate, and the memory that it holds.
    The keys w, r and m sort by wait, rate and memory, q quits. In a pipe or with --json it prints
    one refresh after an interval, or --count of them.

    The live view needs the package rich: pip install 'sluice-shuffle[top]'.
    """
    asked = [http_url(url) for url in dict.fromkeys(urls or (default_url(),))]
    watched = _Watched(asked, Given(secret_file, token_file), sort_by, rows)
    first = watched.refresh()
    if len(first.unreachable) == len(asked):
        reasons = "; ".join(f"{url}: {one_line(why)}" for url, why in first.unreachable.items())
        raise click.ClickException(f"no TaskManager answers: {reasons}")
    if as_json or not sys.stdout.isatty():
        _print(watched, interval, count or 1, as_json=as_json)
    else:
        _show_live(watched, interval, count, first)


def _print(watched: _Watched, interval: float, count: int, *, as_json: bool) -> None:
    for _ in range(count):
        time.sleep(interval)  # the interval over which rates are taken
        found = watched.refresh()
        if as_json:
            click.echo(json.dumps(msgspec.to_builtins(found)))
            continue
        for line in _head(found):
            click.echo(line)
        table = Table("", _NAMES, _NUMERIC)
        for row in found.rows:
            table.add(*_cells(row))
        print_tables([table])


def _head(found: TopReport) -> Iterator[str]:
    used, total = found.memory_used_bytes, found.memory_total_bytes
    yield (
        f"{found.asked - len(found.unreachable)} of {found.asked} TaskManagers, "
        f"in {_rate(found.bytes_in_per_second)}, out {_rate(found.bytes_out_per_second)}, "
        f"memory {approximate_size(used)} of {approximate_size(total)}, "
        f"event loop {found.max_lag_seconds * 1000:.0f} ms late"
    )
    for url, reason in found.unreachable.items():
        yield f"unreachable: {url}: {one_line(reason)}"


def _rate(bytes_per_second: float) -> str:
    return f"{approximate_size(round(bytes_per_second))}/s"


def _cells(row: TopRow) -> tuple[str, ...]:
    return (
        row.kind,
        one_line(row.application_id),
        str(row.shuffle_id),
        str(row.number),
        f"{100 * row.wait:.0f} %",
        row.waits_for or "-",
        _rate(row.bytes_per_second),
        approximate_size(row.memory_bytes),
        row.url.removeprefix("http://"),
    )


def _show_live(watched: _Watched, interval: float, count: int | None, first: TopReport) -> None:
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        raise click.ClickException(
            "the live view needs the package rich: pip install 'sluice-shuffle[top]', or use "
            "--json or a pipe"
        ) from None
    console = Console()  # it obeys NO_COLOR
    found = first
    with (
        _single_keys() as reads_keys,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        left = count
        while left is None or left > 0:
            live.update(_screen(found, watched.sort_by, console.size.height), refresh=True)
            for key in _keys(interval, reads_keys=reads_keys):
                if key in _QUIT:
                    return
                watched.sort_by = _KEYS.get(key, watched.sort_by)
            found = watched.refresh()
            left = None if left is None else left - 1


def _screen(found: TopReport, sort_by: SortBy, height: int) -> RenderableType:
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(box=None, pad_edge=False, expand=True, header_style="bold")
    numeric = _NUMERIC.split()
    for name in _NAMES.split():
        mark = "▾" if name == sort_by else ""
        table.add_column(
            name + mark,
            justify="right" if name in numeric else "left",
            no_wrap=True,
            overflow="ellipsis",
        )
    head = [
        Text(line, style="bold" if not number else "red")
        for number, line in enumerate(_head(found))
    ]
    room = max(1, height - _HEAD_LINES - len(head))
    for row in found.rows[:room]:
        table.add_row(
            *map(escape, _cells(row)), style="yellow" if row.waits_for == "reader" else None
        )
    hidden = len(found.rows) - room
    more = f"{hidden} more rows.  " if hidden > 0 else ""
    keys = Text(f"{more}sort: w wait, r rate, m memory.  q quits", style="dim")
    return Group(*head, Text(""), table, Text(""), keys)


@contextlib.contextmanager
def _single_keys() -> Iterator[bool]:
    """Let the terminal hand over each key at once; yield whether it is one."""
    if not sys.stdin.isatty():
        yield False
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield True
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _keys(seconds: float, *, reads_keys: bool) -> str:
    """Wait for an interval, or until keys are pressed; return them."""
    if not reads_keys:
        time.sleep(seconds)  # the interval of the refreshes
        return ""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return os.read(sys.stdin.fileno(), 64).decode("ascii", "replace") if ready else ""
