"""``sluice doctor``: one line for each thing that a TaskManager or a job needs."""

from __future__ import annotations

import os
import textwrap
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ..protocol.access_token import SCOPE_STATUS
from ..shuffle.taskmanager.config.taskmanager_config import (
    CONFIG_FILE_VARIABLE,
    ConfigError,
    load,
)
from ..shuffle.taskmanager.processes import shares
from ..transport.address import Address
from ..transport.member_address import DNS
from . import doctor_endpoints, doctor_host, doctor_members
from .deadline_calls import call_all
from .endpoints import fetch_statuses
from .http_client import Given, first_secret_file, http_url, proof_options
from .printing import print_json, terminal_width
from .reports import DoctorCheck, DoctorReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ..shuffle.taskmanager.config.taskmanager_config import TaskManagerConfig

CHECK_SECONDS: Final = 45.0
"""Time for each group of checks: Java gets 20 s, a TaskManager 10 s."""

_COLORS: Final = {"ok": "green", "problem": "red", "skipped": "yellow"}


@click.command(short_help="Check this host and its TaskManagers.")
@click.argument("urls", nargs=-1, metavar="[URL]...")
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    envvar=CONFIG_FILE_VARIABLE,
    help=f"Configuration of the TaskManager; also by {CONFIG_FILE_VARIABLE}.",
)
@click.option(
    "--endpoints",
    default="",
    metavar="LIST",
    help="Comma list of data ports (HOST:PORT, unix:/PATH), as in spark.sluice.endpoints.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@proof_options
def doctor(
    urls: tuple[str, ...],
    config_file: Path | None,
    endpoints: str,
    as_json: bool,
    secret_file: Path | None,
    token_file: Path | None,
) -> None:
    """Check what a TaskManager and a Spark job need on this host, one line each with its remedy.

    Checked are Java and Spark, the configuration, ports, directories and /dev/shm, limits,
    certificates and secrets. The HTTP ports at URL... are asked whether they are ready, and their
    clocks are compared with that of this host. Data ports are those of --endpoints and of the
    setting taskmanagers, whose names are resolved; SLUICE_CREDENTIAL_FILE names the token to use.

    Exit code 1 if there is a problem. Nothing is changed.
    """
    asked = [http_url(url) for url in dict.fromkeys(urls)]
    found = examine(asked, config_file, endpoints, Given(secret_file, token_file))
    if as_json:
        print_json(found)
    else:
        for each in found.checks:
            click.echo(_line(each, terminal_width()))
    if found.problems:
        click.get_current_context().exit(1)


def examine(
    urls: list[str], config_file: Path | None, endpoints: str, given: Given
) -> DoctorReport:
    """Make all checks.

    Args:
        urls: URLs of HTTP ports.
        config_file: Configuration of the TaskManager of this host; None: defaults and environment.
        endpoints: Comma list of data ports.
        given: The credential for the HTTP ports.
    """
    now = time.time()
    config, config_checks = _configuration(config_file)
    groups: list[Callable[[], Iterable[DoctorCheck]]] = [partial(doctor_host.spark, os.environ)]
    typed = [each.strip() for each in endpoints.split(",") if each.strip()]
    if config is not None:
        groups += [
            partial(_ports, config),
            partial(doctor_host.data_directories, config),
            partial(doctor_host.memory_directory, config),
            partial(doctor_host.limits, config),
            partial(doctor_host.certificates, config, now),
            partial(doctor_host.secrets, config, given.secret_file or first_secret_file()),
            partial(doctor_members.named_members, config),
        ]
        typed += [each for each in config.cluster.taskmanagers if not each.startswith(DNS)]
    addresses = [each for each in dict.fromkeys(typed) if doctor_host.as_address(each)]
    uses_tls = config is not None and config.transport.tls_enabled
    groups += [
        partial(_http_ports, urls, given, config, now),
        partial(doctor_endpoints.data_ports, addresses, os.environ, tls=uses_tls),
    ]
    found = call_all([partial(_group, each) for each in groups], CHECK_SECONDS)
    checks = [*config_checks, *_mistyped(typed)]
    for group, lines in zip(groups, found, strict=True):
        checks += _late(group) if lines is None else lines
    problems = sum(each.result == "problem" for each in checks)
    return DoctorReport(problems, tuple(checks))


def _configuration(path: Path | None) -> tuple[TaskManagerConfig | None, list[DoctorCheck]]:
    try:
        config = load(path, os.environ, {}, shares.address_problems)
    except ConfigError as error:
        return None, [
            doctor_host.problem("configuration", str(each), "Correct the key, then run this again")
            for each in error.problems
        ]
    return config, [doctor_host.ok("configuration", str(path or "defaults and environment"))]


def _mistyped(typed: Iterable[str]) -> Iterator[DoctorCheck]:
    for each in typed:
        if doctor_host.as_address(each) is None:
            yield doctor_host.problem(
                "endpoint", f'"{each}" is not an address', "Write HOST:PORT or unix:/PATH"
            )


def _group(checks: Callable[[], Iterable[DoctorCheck]]) -> list[DoctorCheck]:
    """Make the checks of a group; an error that nobody expects is a problem, not a traceback."""
    found: list[DoctorCheck] = []
    try:
        for each in checks():
            found.append(each)  # noqa: PERF402 - those before an error count
    except click.ClickException as error:
        found.append(doctor_host.problem("access token", error.message, "Give --secret-file"))
    except Exception as error:  # noqa: BLE001
        text = f"{type(error).__name__}: {error}"
        found.append(doctor_host.problem("doctor", text, "Report this as a bug of sluice doctor"))
    return found


def _late(group: Callable[[], Iterable[DoctorCheck]]) -> list[DoctorCheck]:
    function = group.func if isinstance(group, partial) else group
    name = getattr(function, "__name__", "check").strip("_").replace("_", " ")
    text = f"it did not end within {CHECK_SECONDS:g} s"
    return [doctor_host.problem(name, text, "Look for a disk or a name server that hangs")]


def _http_ports(
    urls: list[str], given: Given, config: TaskManagerConfig | None, now: float
) -> Iterator[DoctorCheck]:
    secrets = () if config is None else config.auth.cluster_secret_files
    token = given.token(SCOPE_STATUS, next(iter(secrets), None)) if urls else ""
    return doctor_endpoints.http_ports(urls, token, now)


def _ports(config: TaskManagerConfig) -> Iterator[DoctorCheck]:
    for used in doctor_host.used_ports(config):
        is_ours = False
        if used.error is not None and used.setting == "http_port":
            (answer,) = fetch_statuses([http_url(str(Address(used.host, used.port)))], "")
            is_ours = answer.status is not None or answer.is_refused
        elif used.error is not None:
            lines = doctor_endpoints.data_ports(
                [str(Address(used.host, used.port))], {}, tls=config.transport.tls_enabled
            )
            is_ours = all(line.result == "ok" for line in lines)
        yield doctor_host.port_line(used, is_ours=is_ours)


def _line(check: DoctorCheck, width: int | None) -> str:
    head = click.style(f"{check.result:<8}", fg=_COLORS[check.result])
    text = f"{check.name}: {check.text}" + (f". {check.remedy}" if check.remedy else "")
    if width is None:
        return f"{head} {text}"
    body = textwrap.wrap(text, max(20, width - 9), break_long_words=False, break_on_hyphens=False)
    return f"{head} " + "\n         ".join(body)
