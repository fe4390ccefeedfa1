"""``sluice status``: one TaskManager in full, or several summed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from ..protocol.access_token import SCOPE_STATUS
from ..shuffle.taskmanager.processes.combined_status import combine
from ..shuffle.taskmanager.status.table import (
    ANONYMOUS,
    Table,
    render,
    render_application,
    render_sum,
)
from ..transport.settings import approximate_size
from .endpoints import EndpointAnswer, fetch_status, fetch_statuses
from .http_client import Given, default_url, http_url, proof_options
from .printing import one_line, print_json, print_parts, print_tables, terminal_width
from .reports import ClusterReport, EndpointReport

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..shuffle.taskmanager.status.status import TaskManagerStatus


@click.command(short_help="Show the state of TaskManagers.")
@click.argument("urls", nargs=-1, metavar="[URL]...")
@click.option("--json", "as_json", is_flag=True, help="Print the status as JSON.")
@click.option("--application", metavar="NAME", help="Show what one application holds.")
@proof_options
def status(
    urls: tuple[str, ...],
    as_json: bool,
    application: str | None,
    secret_file: Path | None,
    token_file: Path | None,
) -> None:
    """Show partitions, gates, pools and connections of the TaskManager whose HTTP port is at URL.

    With several URLs all are asked at once, each has one line, and the tables below are sums over
    all that answer. Exit code 1 if one does not.

    URL may be given without http://, or as unix:PATH; without any it is SLUICE_HTTP_SOCKET_PATH or
    the default port of this host. In a pipe columns are at least two blanks apart, and no line is
    cut or wrapped.

    A TaskManager with a cluster secret requires an access token; with the secret at hand, this
    command makes one for itself.
    """
    asked = [http_url(url) for url in urls or (default_url(),)]
    token = Given(secret_file, token_file).token(SCOPE_STATUS)
    if len(set(asked)) > 1:
        _show_several(fetch_statuses(asked, token), as_json, application)
        return
    url = asked[0]
    document, snapshot = fetch_status(url, token)
    if as_json:
        click.echo(json.dumps(document, indent=2))
        return
    width = terminal_width()
    if application is None:
        parts = list(render(snapshot, width))
    else:
        parts = list(render_application(snapshot, application, width))
    if not parts:
        raise click.ClickException(
            f"the TaskManager at {url} does not know the application {application}"
        )
    if snapshot.serves == "anonymous":
        parts = [(title, lines if title else _marked(lines)) for title, lines in parts]
    print_parts(parts)


def _marked(lines: Sequence[str]) -> list[str]:
    return [
        click.style(line, fg="red", bold=True) if line.startswith(ANONYMOUS[:9]) else line
        for line in lines
    ]


def _show_several(
    answers: Sequence[EndpointAnswer], as_json: bool, application: str | None
) -> None:
    """Show several TaskManagers; end with exit code 1 if one has not answered."""
    good = [each.status for each in answers if each.status is not None]
    whole = combine(good) if good else None
    if as_json:
        print_json(
            ClusterReport(
                tuple(
                    EndpointReport(each.url, each.status is not None, each.problem, each.document)
                    for each in answers
                ),
                whole,
            )
        )
    elif application is not None:
        parts = [] if whole is None else list(render_application(whole, application))
        if not parts and len(good) == len(answers):
            raise click.ClickException(
                f"none of the {len(answers)} TaskManagers knows the application {application}"
            )
        print_parts(parts)
    else:
        print_tables([_members(answers)])
        if whole is not None:
            print_parts(render_sum(whole, terminal_width()))
    missing = [each for each in answers if each.status is None]
    if missing:
        reasons = "; ".join(f"{each.url}: {one_line(each.problem)}" for each in missing)
        raise click.ClickException(
            f"{len(missing)} of {len(answers)} TaskManagers do not answer: {reasons}"
        )


def _members(answers: Sequence[EndpointAnswer]) -> Table:
    table = Table(
        "TaskManagers",
        "url state up stored free gates connections late",
        "up stored free gates connections late",
    )
    for each in answers:
        table.add(each.url.removeprefix("http://"), *_cells(each.status))
    return table


def _cells(found: TaskManagerStatus | None) -> Sequence[object]:
    if found is None:
        return ("unreachable", *["-"] * 6)
    disks = [tier for tier in found.storage if tier.healthy]
    return (
        found.state if found.takes_work else f"{found.state}, no work",
        f"{found.uptime_seconds:.0f} s",
        approximate_size(sum(tier.used_bytes for tier in disks)),
        approximate_size(sum(tier.free_bytes for tier in disks)),
        len(found.gates),
        len(found.connections),
        f"{found.event_loop.max_lag_seconds * 1000:.0f} ms",
    )
