"""The ``sluice`` command line.

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration. An expected failure is one line on
standard error, never a traceback. Packages above this one add commands by the entry-point group
``sluice.commands``; they are imported when they are used.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Final

import click
from click import shell_completion

from ...protocol.access_token import SCOPE_ADMIN, SCOPE_STATUS
from ...protocol.errors import SluiceError
from . import host_limits, secret_commands
from .config import (
    CONFIG_FILE_VARIABLE,
    ConfigError,
    TaskManagerConfig,
    foreign_variables,
    load,
)
from .http_client import (
    DEFAULT_URL,
    TIMEOUT_SECONDS,
    Given,
    fetch_json,
    http_url,
    proof_options,
)
from .key_options import SectionedCommand, key_options
from .watch.status import InvalidStatus, TaskManagerStatus
from .watch.table import ANONYMOUS, render, render_application

_log = logging.getLogger(__name__)

PROGRAM: Final = "sluice"
COMMANDS_GROUP: Final = "sluice.commands"
FAILURE: Final = 1
BAD_CONFIGURATION: Final = 2
LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _OpenGroup(click.Group):
    """A group that also offers the commands that installed packages register."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_registered()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        entry = _registered().get(cmd_name)
        if own is not None or entry is None:
            return own
        try:
            command = entry.load()
        except (ImportError, AttributeError) as error:
            return _broken(cmd_name, f"{entry.value} cannot be loaded: {error}")
        if not isinstance(command, click.Command):
            return _broken(cmd_name, f"{entry.value} is not a command")
        return command


def _registered() -> dict[str, importlib.metadata.EntryPoint]:
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=COMMANDS_GROUP)}


def _broken(name: str, reason: str) -> click.Command:
    """Stand in for a command that cannot be loaded, so that the others still work."""

    def fail() -> None:
        raise click.ClickException(f"{name} is not available: {reason}")

    return click.Command(
        name,
        callback=fail,
        short_help="(not available)",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )


@click.group(cls=_OpenGroup)
@click.version_option(package_name="sluice-shuffle", prog_name=PROGRAM)
def main() -> None:
    """A networked shuffle service for Spark."""


main.add_command(secret_commands.secret)
main.add_command(secret_commands.token)


@main.command(cls=SectionedCommand)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    envvar=CONFIG_FILE_VARIABLE,
    help=f"TOML file; also by {CONFIG_FILE_VARIABLE}.",
)
@key_options
def taskmanager(config_file: Path | None, **flags: str | None) -> None:
    """Run a TaskManager until SIGTERM or SIGINT.

    Every key can be given in the file, as an environment variable (SLUICE_DATA_PORT) and as a
    flag (--data-port); a flag wins over the environment, the environment over the file.
    """
    try:
        config = load(config_file, os.environ, flags, _problems_here)
    except ConfigError as error:
        for problem in error.problems:
            click.echo(f"sluice: configuration: {problem}", err=True)
        sys.exit(BAD_CONFIGURATION)
    logging.basicConfig(level=config.log_level.upper(), format=LOG_FORMAT, stream=sys.stderr)
    foreign = foreign_variables(os.environ)
    if foreign:
        _log.info(
            "Variables of Docker Compose or Kubernetes are passed over: %s", ", ".join(foreign)
        )

    config = host_limits.fit(config)

    from . import service

    try:
        exit_code = service.run(config, lambda: load(config_file, os.environ, flags))
    except SluiceError as error:
        click.echo(f"sluice: {error}", err=True)
        sys.exit(FAILURE)
    sys.exit(exit_code)


def _problems_here(config: TaskManagerConfig) -> list[host_limits.HostProblem]:
    return host_limits.problems(config, host_limits.gather(config))


@main.command(short_help="Show the state of a TaskManager.")
@click.argument("url", default=DEFAULT_URL)
@click.option("--json", "as_json", is_flag=True, help="Print the status as JSON.")
@click.option("--application", metavar="NAME", help="Show what one application holds.")
@proof_options
def status(
    url: str,
    as_json: bool,
    application: str | None,
    secret_file: Path | None,
    token_file: Path | None,
) -> None:
    """Show partitions, gates, pools and connections of the TaskManager whose HTTP port is at URL.

    URL may be given without http://; without any it is the default port of this host. In a pipe
    the columns stand at least two blanks apart and no line is cut or wrapped.

    A TaskManager with a cluster secret requires an access token; with the secret at hand, this
    command makes one for itself.
    """
    url = http_url(url)
    token = Given(secret_file, token_file).token(SCOPE_STATUS)
    try:
        document = fetch_json(url, "/api/v1/status", token=token)
        snapshot = TaskManagerStatus.from_json(document)
    except InvalidStatus as error:
        raise click.ClickException(
            f"{url} is not the HTTP port of a TaskManager: {error}"
        ) from None
    if as_json:
        click.echo(json.dumps(document, indent=2))
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if application is None:
        parts = list(render(snapshot, width))
    else:
        parts = list(render_application(snapshot, application, width))
    if not parts:
        raise click.ClickException(f"the TaskManager at {url} knows no application {application}")
    for title, lines in parts:
        if title:
            click.echo(f"\n{click.style(title, bold=True)}")
        elif snapshot.serves == "anonymous":
            lines = [_in_red(line) if line.startswith(ANONYMOUS[:9]) else line for line in lines]
        click.echo("\n".join(lines))


def _in_red(line: str) -> str:
    return click.style(line, fg="red", bold=True)


@main.command(short_help="Let a TaskManager take no new map outputs.")
@click.argument("url", default=DEFAULT_URL)
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds to wait until nothing is written or read any more.",
)
@click.option("--migrate", is_flag=True, help="Move all map outputs to other TaskManagers.")
@proof_options
def drain(
    url: str, wait_seconds: float, migrate: bool, secret_file: Path | None, token_file: Path | None
) -> None:
    """Let the TaskManager whose HTTP port is at URL take nothing new.

    New map outputs go to other TaskManagers. What is being written is finished, and readers are
    served until the TaskManager is stopped. Exit code 1 if something is still under way at the end.

    With --migrate all map outputs move to other TaskManagers, whose drivers send readers there, so
    that the host can go for good. Exit code 1 if some stay, with their number and the reason.

    A TaskManager with a cluster secret requires an access token; with the secret at hand, this
    command makes one for itself. One without a secret is drained from its own host only.
    """
    url = http_url(url)
    token = Given(secret_file, token_file).token(SCOPE_ADMIN)
    path = f"/api/v1/drain?wait_seconds={wait_seconds:g}{'&migrate=true' if migrate else ''}"
    try:
        answer = fetch_json(url, path, "POST", wait_seconds + TIMEOUT_SECONDS, token=token)
    except InvalidStatus as error:
        raise click.ClickException(f"{url} does not drain: {error}") from None
    if not isinstance(answer, dict) or answer.get("busy") is not False:
        raise click.ClickException(
            f"the TaskManager drains, but transfers are still under way after {wait_seconds:g} s; "
            f"look at it with: sluice status {url}"
        )
    if migrate and answer.get("staying"):
        raise click.ClickException(
            f"{answer['moved']} map outputs have moved, and {answer['staying']} stay, because no "
            f"other TaskManager takes them: {answer.get('reason')}"
        )
    if migrate:
        click.echo(
            f"drained: {answer.get('moved')} map outputs have moved, nothing is written or read"
        )
    else:
        click.echo("drained: nothing is written or read")


@main.command(short_help="Let a drained TaskManager take map outputs again.")
@click.argument("url", default=DEFAULT_URL)
@proof_options
def undrain(url: str, secret_file: Path | None, token_file: Path | None) -> None:
    """Let the TaskManager whose HTTP port is at URL take new map outputs again.

    It takes back `sluice drain`. A TaskManager that has been told to stop, stops all the same; exit
    code 1 then. Who may drain it may do this.
    """
    url = http_url(url)
    token = Given(secret_file, token_file).token(SCOPE_ADMIN)
    try:
        answer = fetch_json(url, "/api/v1/undrain", "POST", token=token)
    except InvalidStatus as error:
        raise click.ClickException(f"{url} does not take new work: {error}") from None
    state = answer.get("state") if isinstance(answer, dict) else None
    if state != "ready":
        raise click.ClickException(f"the TaskManager takes no new work: its state is {state}")
    click.echo("the TaskManager takes new map outputs")


@main.command(short_help="Print a completion script for a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that lets SHELL complete commands and options of sluice.

    \b
    bash: put into ~/.bashrc    eval "$(sluice completion bash)"
    zsh:  put into ~/.zshrc     eval "$(sluice completion zsh)"
    fish: run once              sluice completion fish > ~/.config/fish/completions/sluice.fish
    """  # noqa: D301 - click keeps the lines that follow a backspace
    script = shell_completion.get_completion_class(shell)
    if script is None:
        raise click.ClickException(f"this version of click does not complete for {shell}")
    click.echo(script(main, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE").source())
