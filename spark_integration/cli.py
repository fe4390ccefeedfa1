"""``sluice spark-conf`` and ``sluice submit``, which ``sluice.cli.main`` imports on first use."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import click

from . import kubernetes, spark_home
from .conf import spark_conf as make_spark_conf
from .conf import submit_conf
from .driver import connect_server
from .endpoint_check import DEFAULT_ENDPOINTS, ENDPOINTS, TOKEN, TOKEN_FILE, require_reachable
from .errors import SparkIntegrationError
from .local_taskmanager import LocalTaskManager
from .submit_command import SubmitCommand

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType

FORWARDED_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_OF_KUBERNETES: Final = (
    "token_secret",
    "ca_secret",
    "tls_secret",
    "pod_template",
    "local_dir_size",
)

_READ_BY_SHELLS: Final = re.compile(r"[\s'\"\\&;|<>()$`]")
"""Characters that the shell interprets in eval, or at which $(...) splits words."""

_endpoints_option = click.option(
    "--endpoints",
    metavar="LIST",
    help="Comma list of HOST:PORT, dns:NAME, unix:/PATH where TaskManagers listen.",
)


@click.command("spark-conf")
@_endpoints_option
@click.option("--spark-version", metavar="VERSION", help="Default: the installed PySpark's.")
@click.option("--jar", metavar="PATH", help="Path of the plugin's jar where Spark runs.")
@click.option("--jars", metavar="LIST", help="Your own jars, as for spark-submit.")
@click.option("--driver-class-path", metavar="PATH", help="As for spark-submit.")
@click.option("--properties-file", metavar="FILE", help="As for spark-submit.")
@click.option("--conf", "-c", metavar="KEY=VALUE", multiple=True, help="As for spark-submit.")
@click.option(
    "--kubernetes",
    "mode",
    type=click.Choice(kubernetes.MODES),
    help="For Kubernetes: the mode of the Helm chart.",
)
@click.option(
    "--token-secret", metavar="NAME", help="Kubernetes: Secret for the driver, with the key token."
)
@click.option("--ca-secret", metavar="NAME", help="Kubernetes: Secret with ca.crt, for TLS.")
@click.option(
    "--tls-secret", metavar="NAME", help="Kubernetes: Secret with ca.crt, tls.crt and tls.key."
)
@click.option("--pod-template", metavar="FILE", help="Kubernetes: pod template of executors.")
@click.option(
    "--local-dir-size", metavar="SIZE", help="Kubernetes: limit of the executors' local directory."
)
def spark_conf(
    endpoints: str | None,
    spark_version: str | None,
    jar: str | None,
    conf: tuple[str, ...],
    mode: str | None,
    **own_options: str | None,
) -> None:
    """Print the spark-submit options that turn Sluice on.

    Use: spark-submit $(sluice spark-conf --endpoints tm1:7337,tm2:7337) JOB.py

    They include the jars and plugins of spark-defaults.conf. Pass your own --jars to this command:
    it prints them with Sluice's. If you pass --jars to spark-submit instead, Sluice works only if
    all hosts have the plugin's jar at the same path. If a value has a blank:
    eval "spark-submit $(sluice spark-conf ...) JOB.py"

    With --kubernetes the jar is that of the image, local:///opt/sluice/sluice-spark.jar, unless
    --jar names another. docs/guide/kubernetes.md has examples and pod templates.
    """
    of_pods = {name: own_options.pop(name) for name in _OF_KUBERNETES}
    if mode is None and any(of_pods.values()):
        name = next(name for name, value in of_pods.items() if value)
        raise click.UsageError(f"--{name.replace('_', '-')} needs --kubernetes")
    options = [(f"--{name.replace('_', '-')}", text) for name, text in own_options.items() if text]
    options += [("--conf", text) for text in conf]
    command = SubmitCommand(tuple(options), ())
    with _expected_failures():
        pods: dict[str, str] = {}
        if mode is not None:
            endpoints = kubernetes.endpoint_list(mode, endpoints)
            jar = jar or kubernetes.JAR
            pods = kubernetes.pod_conf(kubernetes.PodOptions(mode, **of_pods))
        settings = make_spark_conf(endpoints, spark_version, jar)
        configuration = spark_home.conf_directory(os.environ)
        user = command.settings(configuration)
        merged = submit_conf(settings, user, spark_version) | pods
    words = [*_conf_words(merged), *command.without(merged)]
    for name, value in zip(words[::2], words[1::2], strict=True):
        _echo_as_given(f"{name} {shlex.quote(value) if _READ_BY_SHELLS.search(value) else value}")
    if any(map(_READ_BY_SHELLS.search, words)):
        click.echo(
            "sluice: a value has a character that the shell would interpret: write "
            'eval "spark-submit $(sluice spark-conf ...) JOB.py"',
            err=True,
        )
    if endpoints is None:
        of_user = user.get(ENDPOINTS)
        click.echo(
            f"sluice: without --endpoints, {ENDPOINTS} is "
            + (
                f"{of_user}, as your settings say"
                if of_user
                else f"{DEFAULT_ENDPOINTS}, the default"
            ),
            err=True,
        )


@click.command(
    "submit",
    short_help="Run spark-submit with Sluice.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@_endpoints_option
@click.option("--check/--no-check", default=True, help="Check --endpoints before Spark starts.")
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED)
def submit(endpoints: str | None, check: bool, arguments: tuple[str, ...]) -> None:
    """Run spark-submit with Sluice: sluice submit [--endpoints LIST] -- [OPTIONS] JOB.py [ARGS].

    The words after -- go to spark-submit of the installed PySpark, with Sluice's jars and plugins
    added to yours. The job runs in this Python unless PYSPARK_PYTHON or spark.pyspark.python names
    another. Without --endpoints, a TaskManager is started for this run and stopped afterwards. With
    --endpoints, they are checked before Spark starts. The exit code is spark-submit's.
    """
    command = SubmitCommand.parse(arguments)
    with _expected_failures(), contextlib.ExitStack() as stack:
        home = spark_home.installed_pyspark()
        configuration = spark_home.conf_directory(os.environ, home)
        user = command.settings(configuration)
        if endpoints is None:
            endpoints = command.conf().get(ENDPOINTS)
        settings = submit_conf(make_spark_conf(endpoints), user)
        spark_home.require_java(os.environ, configuration)
        server = connect_server(user)
        if server is not None:
            raise SparkIntegrationError(
                "The job is a client of a Spark Connect server, which has its own shuffle",
                value=server,
                remedy="Run spark-submit without Sluice, and start the server with: "
                "start-connect-server.sh $(sluice spark-conf)",
            )
        if endpoints is not None and check:
            require_reachable(user | settings)
        if endpoints is None:
            taskmanager = stack.enter_context(LocalTaskManager(authenticated=True))
            settings[ENDPOINTS] = taskmanager.endpoint
            settings[TOKEN_FILE] = str(taskmanager.token_file)
            if TOKEN in user:  # a token of another cluster
                settings[TOKEN] = ""
        options = [*_conf_words(settings), *command.without(settings)]
        exit_code = _run(
            [str(home / "bin" / "spark-submit"), *options, *command.job],
            {**os.environ, "SPARK_HOME": str(home), **_python(os.environ, user)},
        )
    sys.exit(exit_code)


def _echo_as_given(line: str) -> None:
    """Print a line for a shell, with the same bytes as in the arguments.

    Raises:
        click.ClickException: The encoding of the output does not have a character; an escape
            instead would change the value.
    """
    encoding = sys.stdout.encoding
    try:
        click.echo(line.encode(encoding, "surrogateescape"))
    except UnicodeEncodeError as error:
        raise click.ClickException(
            f"{line!a} cannot be printed in {encoding}: {error.reason}. Run the command with "
            "PYTHONIOENCODING=utf-8"
        ) from None


def _conf_words(settings: Mapping[str, str]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]


def _python(environment: Mapping[str, str], user: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make Spark run this Python, unless the user set one."""
    if environment.get("PYSPARK_PYTHON") or user.get("spark.pyspark.python"):
        return {}  # The driver's Python is the same.
    variables = {"PYSPARK_PYTHON": sys.executable}
    if not (environment.get("PYSPARK_DRIVER_PYTHON") or user.get("spark.pyspark.driver.python")):
        variables["PYSPARK_DRIVER_PYTHON"] = sys.executable
    return variables


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Run a command, forward signals, and return its exit code (128 + n for signal n)."""
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
