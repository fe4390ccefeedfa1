"""``sluice drain`` and ``undrain``: take a TaskManager out of service, and back into it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from ..protocol.access_token import SCOPE_ADMIN
from ..shuffle.taskmanager.status.status import InvalidStatus
from .drain_progress import with_progress
from .finite_range import FiniteRange
from .http_client import TIMEOUT_SECONDS, Given, default_url, fetch_json, http_url, proof_options
from .printing import print_json
from .reports import DrainReport, UndrainReport

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T", DrainReport, UndrainReport)


@click.command(short_help="Stop accepting map outputs.")
@click.argument("url", default=default_url)
@click.option(
    "--wait",
    "wait_seconds",
    type=FiniteRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds to wait until nothing is written or read.",
)
@click.option("--migrate", is_flag=True, help="Move all map outputs to other TaskManagers.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
@proof_options
def drain(
    url: str,
    wait_seconds: float,
    migrate: bool,
    as_json: bool,
    secret_file: Path | None,
    token_file: Path | None,
) -> None:
    """Stop accepting map outputs at the TaskManager whose HTTP port is at URL.

    New map outputs go to other TaskManagers. Map outputs that were begun are finished, and readers
    are served until the TaskManager is stopped. Exit code 1 if transfers still run after the wait.

    With --migrate all map outputs move to other TaskManagers, and drivers send readers there, so
    that the host can be removed. Exit code 1 if some stay, with their number and the reason, or if
    a directory has not answered since the start of the TaskManager. A terminal shows the progress.

    A TaskManager with a cluster secret requires an access token; with the secret at hand, this
    command makes one for itself. One without a secret is drained by its own user or root, with
    unix:PATH of its http_socket_path as URL.
    """
    url = http_url(url)
    given = Given(secret_file, token_file)
    token = given.token(SCOPE_ADMIN)
    path = f"/api/v1/drain?wait_seconds={wait_seconds:g}{'&migrate=true' if migrate else ''}"

    def begin() -> object:
        return fetch_json(url, path, "POST", wait_seconds + TIMEOUT_SECONDS, token=token)

    try:
        answer = with_progress(url, given, begin) if migrate else begin()
    except InvalidStatus as error:
        raise click.ClickException(f"{url} does not drain: {error}") from None
    if as_json and isinstance(answer, dict):
        print_json(_report(answer, DrainReport))
    if not isinstance(answer, dict) or answer.get("busy") is not False:
        raise click.ClickException(
            f"the TaskManager drains, but transfers are still under way after {wait_seconds:g} s; "
            f"see: sluice status {url}"
        )
    if migrate and answer.get("staying"):
        raise click.ClickException(
            f"{answer['moved']} map outputs have moved, and {answer['staying']} stay, because no "
            f"other TaskManager accepts and confirms them: {answer.get('reason')}"
        )
    if migrate and answer.get("unread"):
        raise click.ClickException(
            f"{answer['moved']} map outputs have moved, but more may be in "
            f"{', '.join(answer['unread'])}, which has not answered since the start. They move "
            f"when it answers; see: sluice status {url}"
        )
    if as_json:
        return
    if migrate:
        click.echo(
            f"drained: {answer.get('moved')} map outputs have moved, nothing is written or read"
        )
    else:
        click.echo("drained: nothing is written or read")


def _report(answer: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise click.ClickException(f"the answer is not that of a TaskManager: {error}") from None


@click.command(short_help="Accept map outputs again after a drain.")
@click.argument("url", default=default_url)
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
@proof_options
def undrain(url: str, as_json: bool, secret_file: Path | None, token_file: Path | None) -> None:
    """Accept map outputs again at the TaskManager whose HTTP port is at URL.

    This reverts `sluice drain` and needs the same token. It does not cancel a stop: the exit code
    is 1 then.
    """
    url = http_url(url)
    token = Given(secret_file, token_file).token(SCOPE_ADMIN)
    try:
        answer = fetch_json(url, "/api/v1/undrain", "POST", token=token)
    except InvalidStatus as error:
        raise click.ClickException(f"{url} does not accept new work: {error}") from None
    if as_json and isinstance(answer, dict):
        print_json(_report(answer, UndrainReport))
    state = answer.get("state") if isinstance(answer, dict) else None
    if state != "ready":
        raise click.ClickException(f"the TaskManager refuses new work: its state is {state}")
    if not as_json:
        click.echo("the TaskManager accepts new map outputs")
