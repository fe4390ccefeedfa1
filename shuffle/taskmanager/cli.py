"""The ``sluice`` command line.

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration. An expected failure is one line on
standard error, never a traceback. A daemon imports only its own command. Other commands are
imported when they are used, also those that packages above this one add by the entry-point group
``sluice.commands``.
"""

from __future__ import annotations

from . import early_signals, late_collection  # noqa: F401 - first: the other imports take time

# isort: split
import importlib
import importlib.metadata
import io
import logging
import os
import platform
import sys
from pathlib import Path
from typing import Any, Final

import click
from click import shell_completion

from ...protocol.errors import SluiceError
from . import host_limits
from .config import (
    CONFIG_FILE_VARIABLE,
    ConfigError,
    TaskManagerConfig,
    foreign_variables,
    load,
)
from .key_options import SectionedCommand, key_options
from .process import output
from .watch.status import data_path

_log = logging.getLogger(__name__)

PROGRAM: Final = "sluice"
DISTRIBUTION: Final = "sluice-shuffle"
COMMANDS_GROUP: Final = "sluice.commands"
_MODULES: Final = {
    "drain": "status_commands",
    "secret": "secret_commands",
    "status": "status_commands",
    "token": "secret_commands",
    "undrain": "status_commands",
}
"""Modules beside this one that have commands, by the name of the command."""

FAILURE: Final = 1
BAD_CONFIGURATION: Final = 2


class _OpenGroup(click.Group):
    r"""A group with the commands of other modules and of installed packages.

    Its output never fails: a character that the terminal's encoding lacks is written as its escape,
    ``\u2192``. The variable NO_COLOR turns colors off, see https://no-color.org.
    """

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the command line."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        return super().main(*args, **extra)

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Make the context of a call."""
        if os.environ.get("NO_COLOR"):
            extra["color"] = False
        return super().make_context(info_name, args, parent, **extra)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_MODULES, *_registered()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        if cmd_name in _MODULES:
            module = importlib.import_module(f".{_MODULES[cmd_name]}", __package__)
            found: click.Command = getattr(module, cmd_name)
            return found
        entry = _registered().get(cmd_name)
        if entry is None:
            return None
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


@click.group(cls=_OpenGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name=DISTRIBUTION, prog_name=PROGRAM)
def main() -> None:
    """A networked shuffle service for Spark."""


@main.command()
def version() -> None:
    """Show the version of Sluice, its data path and its Python.

    The data path is compiled in the wheel, and interpreted where no wheel is installed.
    """
    python = platform.python_version()
    number = importlib.metadata.version(DISTRIBUTION)
    click.echo(f"{PROGRAM} {number}, data path {data_path()}, Python {python}")


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
    output.redirect()
    try:
        config = load(config_file, os.environ, flags, _problems_here)
    except ConfigError as error:
        for problem in error.problems:
            click.echo(f"sluice: configuration: {problem}", err=True)
        sys.exit(BAD_CONFIGURATION)
    output.start_logging(config.log_level)
    foreign = foreign_variables(os.environ)
    if foreign:
        _log.info(
            "Variables of Docker Compose or Kubernetes are passed over: %s", ", ".join(foreign)
        )

    config = host_limits.fit(config)

    from . import service

    late_collection.begin()
    try:
        exit_code = service.run(config, lambda: load(config_file, os.environ, flags))
    except SluiceError as error:
        click.echo(f"sluice: {error}", err=True)
        sys.exit(FAILURE)
    sys.exit(exit_code)


def _problems_here(config: TaskManagerConfig) -> list[host_limits.HostProblem]:
    return host_limits.problems(config, host_limits.gather(config))


@main.command(short_help="Print a completion script for a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that lets SHELL complete commands and options of sluice.

    \b
    bash: put into ~/.bashrc    eval "$(sluice completion bash)"
    zsh:  put into ~/.zshrc     eval "$(sluice completion zsh)"
    fish: run once              sluice completion fish > FILE
    where FILE is ~/.config/fish/completions/sluice.fish
    """  # noqa: D301 - click keeps the lines that follow a backspace
    script = shell_completion.get_completion_class(shell)
    if script is None:
        raise click.ClickException(f"this version of click does not complete for {shell}")
    click.echo(script(main, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE").source())
