"""``sluice spark-conf`` and ``sluice submit`` (entry points of the group ``sluice.commands``)."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from sluice.spark_integration.conf import SparkIntegrationError
from sluice.spark_integration.conf import spark_conf as make_spark_conf
from sluice.spark_integration.local_taskmanager import LocalTaskManager

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

FORWARDED_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_endpoints_option = click.option(
    "--endpoints",
    metavar="LIST",
    help="Comma list of HOST:PORT and unix:/PATH where TaskManagers listen.",
)


@click.command("spark-conf")
@_endpoints_option
@click.option("--spark-version", metavar="VERSION", help="Default: the installed PySpark's.")
@click.option("--jar", metavar="PATH", help="Path of the jar where Spark runs, if it is another.")
def spark_conf(endpoints: str | None, spark_version: str | None, jar: str | None) -> None:
    """Print the spark-submit options that turn Sluice on.

    Use: spark-submit $(sluice spark-conf --endpoints tm1:7337,tm2:7337) JOB.py
    """
    with _expected_failures():
        conf = make_spark_conf(endpoints, spark_version, jar)
    for option in _submit_options(conf):
        click.echo(option)


@click.command(
    "submit", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@_endpoints_option
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED)
def submit(endpoints: str | None, arguments: tuple[str, ...]) -> None:
    """Run spark-submit with Sluice: sluice submit [--endpoints LIST] -- [OPTIONS] JOB.py [ARGS].

    What comes after -- goes to spark-submit of the installed PySpark as it is. Without --endpoints
    a TaskManager is started for this run and stopped after it. The exit code is spark-submit's.
    """
    with _expected_failures(), contextlib.ExitStack() as stack:
        home = _spark_home()
        if endpoints is None:
            endpoints = stack.enter_context(LocalTaskManager()).endpoint
        options = shlex.split(" ".join(_submit_options(make_spark_conf(endpoints))))
        command = [str(home / "bin" / "spark-submit"), *options, *arguments]
        exit_code = _run(command, {**os.environ, "SPARK_HOME": str(home)})
    sys.exit(exit_code)


def _submit_options(conf: dict[str, str]) -> list[str]:
    """One option a line; ``spark.jars`` becomes --jars, which spark-submit merges with its own."""
    return [
        f"--jars {shlex.quote(value)}"
        if key == "spark.jars"
        else f"--conf {shlex.quote(f'{key}={value}')}"
        for key, value in conf.items()
    ]


def _spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SparkIntegrationError(
            "PySpark is not installed in this environment",
            value=sys.prefix,
            remedy="Install it with: pip install 'sluice[spark]'",
        )
    return Path(spec.origin).parent


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Run a command, pass signals on to it, and return its exit code (128 + n for signal n)."""
    process: subprocess.Popen[bytes] | None = None

    def forward(number: int, frame: FrameType | None) -> None:
        if process is not None and process.poll() is None:
            process.send_signal(number)

    previous = {number: signal.signal(number, forward) for number in FORWARDED_SIGNALS}
    try:
        process = subprocess.Popen(command, env=environment)
        exit_code = process.wait()
    except OSError as error:
        raise SparkIntegrationError(
            "spark-submit cannot be started",
            value=f"{command[0]}: {error.strerror}",
            remedy="Install PySpark again",
        ) from error
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return exit_code if exit_code >= 0 else 128 - exit_code


@contextlib.contextmanager
def _expected_failures() -> Iterator[None]:
    try:
        yield
    except SparkIntegrationError as error:
        raise click.ClickException(str(error)) from None
