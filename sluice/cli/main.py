"""The ``sluice`` command line.

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration. An expected failure is one line on
standard error, never a traceback. A daemon imports only its own command; every other command is
imported when it is used.
"""

from __future__ import annotations

# First, because the other imports take time.
from ..shuffle.taskmanager.process import early_signals, late_collection  # noqa: F401

# isort: split
import importlib
import importlib.metadata
import io
import logging
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
from click import shell_completion

from ..protocol.errors import SluiceError
from ..shuffle.taskmanager.config.taskmanager_config import (
    CONFIG_FILE_VARIABLE,
    ConfigError,
    TaskManagerConfig,
    foreign_variables,
    load,
)
from ..shuffle.taskmanager.process import host_limits, output
from ..shuffle.taskmanager.status.status import data_path
from .key_options import SectionedCommand, key_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..shuffle.taskmanager.process.controlled import Supervised
    from ..shuffle.taskmanager.process.service_manager import ServiceManager

logger = logging.getLogger(__name__)

PROGRAM: Final = "sluice"
DISTRIBUTION: Final = "sluice-shuffle"
_MODULES: Final = {
    "bench": ".bench_command",
    "check": ".check_command",
    "doctor": ".doctor_command",
    "drain": ".drain_commands",
    "gather": ".gather_command",
    "inspect": ".inspect_command",
    "secret": ".secret_commands",
    "spark-conf": "..spark_integration.cli",
    "status": ".status_command",
    "submit": "..spark_integration.cli",
    "token": ".secret_commands",
    "top": ".top_command",
    "undrain": ".drain_commands",
}
"""Modules of the commands that are imported at their first use."""

FAILURE: Final = 1
BAD_CONFIGURATION: Final = 2


class _LazyGroup(click.Group):
    r"""A group that imports the commands of other modules when they are used.

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
        return sorted({*super().list_commands(ctx), *_MODULES})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module(_MODULES[cmd_name], __package__)
        found: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return found


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name=DISTRIBUTION, prog_name=PROGRAM)
def main() -> None:
    """A networked shuffle service for Spark."""


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print the versions as JSON.")
def version(as_json: bool) -> None:
    """Show the version of Sluice, its data path and its Python.

    The data path is compiled in the images and in a wheel for one version of Python, otherwise
    interpreted.
    """
    python = platform.python_version()
    number = importlib.metadata.version(DISTRIBUTION)
    if as_json:
        from .printing import print_json
        from .reports import VersionReport

        print_json(VersionReport(number, data_path(), python))
        return
    click.echo(f"{PROGRAM} {number}, data path {data_path()}, Python {python}")


@main.command(cls=SectionedCommand)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    envvar=CONFIG_FILE_VARIABLE,
    help=f"TOML file; also by {CONFIG_FILE_VARIABLE}.",
)
@click.option("--data-process", "place", hidden=True, help="Set by the supervisor.")
@key_options
def taskmanager(config_file: Path | None, place: str | None, **flags: str | None) -> None:
    """Run a TaskManager until SIGTERM or SIGINT.

    Every key can be given in the file, as an environment variable (SLUICE_DATA_PORT) and as a
    flag (--data-port); a flag wins over the environment, the environment over the file.
    """
    output.redirect()
    if place is not None:
        _run_data_process(place)
    try:
        config = load(config_file, os.environ, flags, _problems_here)
    except ConfigError as error:
        for problem in error.problems:
            click.echo(f"sluice: configuration: {problem}", err=True)
        sys.exit(BAD_CONFIGURATION)
    output.start_logging(config.log_level, config.log_format)
    foreign = foreign_variables(os.environ)
    if foreign:
        logger.info("Ignoring variables of Docker Compose or Kubernetes: %s", ", ".join(foreign))

    from ..shuffle.taskmanager.processes import shares

    def load_again() -> TaskManagerConfig:
        return load(config_file, os.environ, flags)

    processes = shares.process_count(config)
    manager = _service_manager()
    if processes > 1:
        from ..shuffle.taskmanager.processes import supervisor

        _exit_after(lambda: supervisor.run(config, processes, load_again, manager))
    _serve(config, load_again, manager=manager)


def _service_manager() -> ServiceManager | None:
    """Return the service manager that this process must notify, or None."""
    if "NOTIFY_SOCKET" not in os.environ:
        return None
    from ..shuffle.taskmanager.process.service_manager import ServiceManager

    return ServiceManager.take(os.environ)


def _run_data_process(text: str) -> NoReturn:
    """Run one of the data processes of a supervisor, which has started this program for it."""
    from ..shuffle.taskmanager.process.controlled import DataProcessPlace, Supervised
    from ..shuffle.taskmanager.processes.shares import share_of

    try:
        place = DataProcessPlace.parse(text)
        supervised = Supervised.begin(place.control)
    except (ValueError, OSError, EOFError) as error:
        raise click.UsageError(f"only a supervisor may set --data-process: {error}") from error
    config = supervised.config
    output.start_logging(config.log_level, config.log_format, place.process)

    def share() -> TaskManagerConfig:
        return share_of(supervised.config, place.process, place.processes)

    _serve(share(), share, supervised)


def _serve(
    config: TaskManagerConfig,
    load_again: Callable[[], TaskManagerConfig],
    supervised: Supervised | None = None,
    manager: ServiceManager | None = None,
) -> NoReturn:
    config = host_limits.fit(config)

    from ..shuffle.taskmanager.process import service

    late_collection.begin()
    _exit_after(lambda: service.run(config, load_again, supervised, manager))


def _exit_after(run: Callable[[], int]) -> NoReturn:
    try:
        exit_code = run()
    except SluiceError as error:
        click.echo(f"sluice: {error}", err=True)
        sys.exit(FAILURE)
    sys.exit(exit_code)


def _problems_here(config: TaskManagerConfig) -> list[tuple[str, str]]:
    from ..shuffle.taskmanager.processes import shares

    started = config.model_copy(update={"processes": shares.process_count(config)})
    found = host_limits.problems(started, host_limits.gather(config))
    return [*found, *shares.address_problems(config)]


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
