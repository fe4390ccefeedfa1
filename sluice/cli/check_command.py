"""``sluice check``: the state of TaskManagers as one line and an exit code, for monitoring."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from ..protocol.access_token import SCOPE_STATUS
from ..transport.settings import approximate_size
from .endpoints import EndpointAnswer, fetch_statuses
from .finite_range import FiniteRange, require_finite
from .http_client import TIMEOUT_SECONDS, Given, default_url, http_url, proof_options
from .printing import one_line, print_json
from .reports import CheckFinding, CheckMeasure, CheckReport, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from ..shuffle.taskmanager.status.status import TaskManagerStatus

EXIT_CODES: Final[dict[Severity, int]] = {"ok": 0, "warning": 1, "critical": 2, "unknown": 3}
"""The exit codes of a Nagios plugin."""

_ORDER: Final[tuple[Severity, ...]] = ("critical", "unknown", "warning", "ok")
_DAY_SECONDS: Final = 86400.0
_SHOWN_FINDINGS: Final = 3


class CheckLimits(NamedTuple):
    """Where a warning begins, and where a critical state does.

    Attributes:
        storage_percent: Used part of a storage directory.
        lag_seconds: Worst lag of the event loop in the last minute.
        certificate_days: Days until the TLS certificate expires.
        allow_anonymous: Whether anonymous access is as it should be.
    """

    storage_percent: tuple[float, float] = (85.0, 95.0)
    lag_seconds: tuple[float, float] = (1.0, 5.0)
    certificate_days: tuple[float, float] = (14.0, 3.0)
    allow_anonymous: bool = False


class _PluginCommand(click.Command):
    """A command whose failures are a line on standard output and exit code 3, as Nagios wants it.

    To a monitor, the exit code 2 of wrong usage would be critical.
    """

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Read the arguments."""
        with _unknown():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _unknown():
            return super().invoke(ctx)


@contextlib.contextmanager
def _unknown() -> Iterator[None]:
    try:
        yield
    except (click.exceptions.Exit, click.Abort):
        raise
    except Exception as error:  # noqa: BLE001 - each is unknown
        # A traceback has the exit code 1, which is a warning to a monitor.
        text = (
            error.format_message()
            if isinstance(error, click.ClickException)
            else f"{type(error).__name__}: {error}"
        )
        click.echo(f"SLUICE UNKNOWN - {one_line(text).replace('|', '/')}")
        raise click.exceptions.Exit(EXIT_CODES["unknown"]) from None


def _two_numbers(ctx: click.Context, parameter: click.Parameter, value: str) -> tuple[float, float]:
    """Read where a warning begins, and where a critical state does."""
    first, _, second = value.partition(",")
    try:
        warning, critical = float(first), float(second)
    except ValueError:
        raise click.BadParameter(
            f'"{one_line(value)}" is not two numbers: write WARNING,CRITICAL, such as 85,95',
            ctx,
            parameter,
        ) from None
    require_finite([warning, critical], parameter, ctx)
    grows = parameter.name != "certificate"  # the days until it expires decrease
    if critical < warning if grows else critical > warning:
        side = "below" if grows else "above"
        raise click.BadParameter(
            f"the critical limit {critical:g} is {side} the warning limit {warning:g}: write "
            "WARNING,CRITICAL",
            ctx,
            parameter,
        )
    return warning, critical


def _limit_option(
    name: str, default: str, text: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        name,
        callback=_two_numbers,
        default=default,
        show_default=True,
        metavar="WARNING,CRITICAL",
        help=text,
    )


@click.command(cls=_PluginCommand, short_help="Check TaskManagers, for monitoring.")
@click.argument("urls", nargs=-1, metavar="[URL]...")
@_limit_option("--storage", "85,95", "Used percent of a directory of the disk tier.")
@_limit_option("--lag", "1,5", "Seconds of event loop lag.")
@_limit_option("--certificate", "14,3", "Days until the TLS certificate expires.")
@click.option("--allow-anonymous", is_flag=True, help="Do not warn of anonymous access.")
@click.option(
    "--timeout",
    type=FiniteRange(min=0, min_open=True, max=600),
    default=TIMEOUT_SECONDS,
    show_default=True,
    help="Seconds in which each must answer.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@proof_options
def check(  # noqa: PLR0913 - one parameter for each option
    urls: tuple[str, ...],
    storage: tuple[float, float],
    lag: tuple[float, float],
    certificate: tuple[float, float],
    allow_anonymous: bool,
    timeout: float,
    as_json: bool,
    secret_file: Path | None,
    token_file: Path | None,
) -> None:
    """Check the TaskManagers whose HTTP ports are at URL..., as a Nagios plugin does.

    Prints one line with performance data. Exit code 0: all is well, 1: a warning, 2: critical, 3:
    unknown, such as a wrong option or a refused access token.

    Critical: a TaskManager does not answer or takes no work. Warning: it drains, a directory is out
    of use, map outputs lack copies, or access is anonymous. The options set the other limits.
    """
    token = Given(secret_file, token_file).token(SCOPE_STATUS)
    asked = [http_url(url) for url in urls or (default_url(),)]
    answers = fetch_statuses(asked, token, timeout)
    report = judge(answers, CheckLimits(storage, lag, certificate, allow_anonymous), time.time())
    if as_json:
        print_json(report)
    else:
        click.echo(line(report))
    click.get_current_context().exit(EXIT_CODES[report.severity])


def judge(answers: Sequence[EndpointAnswer], limits: CheckLimits, now: float) -> CheckReport:
    """Return what is wrong with TaskManagers.

    Args:
        answers: Their statuses.
        limits: Where warnings begin.
        now: The time, in seconds since 1970.
    """
    findings = [found for each in answers for found in _findings(each, limits, now)]
    findings.sort(key=lambda found: _ORDER.index(found.severity))
    good = [each.status for each in answers if each.status is not None]
    ready = sum(status.takes_work for status in good)
    severity: Severity = findings[0].severity if findings else "ok"
    summary = f"{ready} of {len(answers)} TaskManagers ready"
    if findings:
        shown = [f"{each.url}: {each.text}" for each in findings[:_SHOWN_FINDINGS]]
        more = len(findings) - len(shown)
        summary += "; " + "; ".join(shown) + (f"; and {more} more" if more else "")
    measures = tuple(_measures(good, ready, limits))
    return CheckReport(severity, one_line(summary), tuple(findings), measures)


def line(report: CheckReport) -> str:
    """Return a report as the line of a Nagios plugin."""
    data = " ".join(
        f"{each.name}={_number(each.value)}{each.unit};{_limit(each.warning)};"
        f"{_limit(each.critical)}".rstrip(";")
        for each in report.measures
    )
    # What follows the bar is data for the monitor, so the text must not have one.
    text = report.summary.replace("|", "/")
    return f"SLUICE {report.severity.upper()} - {text} | {data}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:g}"


def _limit(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _findings(answer: EndpointAnswer, limits: CheckLimits, now: float) -> Iterator[CheckFinding]:
    url, status = answer.url, answer.status
    if status is None:
        severity: Severity = "unknown" if answer.is_refused or answer.is_foreign else "critical"
        text = one_line(answer.problem)
        yield CheckFinding(severity, url, text if answer.is_refused else f"no status: {text}")
        return
    reason = status.not_ready_because
    if status.state == "draining":
        yield CheckFinding("warning", url, "it drains")
    elif reason is not None:
        yield CheckFinding("critical", url, f"it takes no work: {one_line(reason)}")
    for tier in status.storage:
        name = f"{tier.tier} {one_line(tier.directory)}"
        if not tier.healthy:
            yield CheckFinding("warning", url, f"{name} is out of use: {one_line(tier.reason)}")
            continue
        if tier.tier != "disk":  # a full memory tier is normal, and data goes to the disk
            continue
        used = _used_percent(tier.used_bytes, tier.free_bytes)
        yield from _above(
            url, used, limits.storage_percent,
            f"{name} is {used:.0f} % full, {approximate_size(tier.free_bytes)} are free",
        )  # fmt: skip
    lag = status.event_loop.max_lag_seconds
    yield from _above(url, lag, limits.lag_seconds, f"the event loop was {lag:.1f} s late")
    if status.copies.short or status.copies.staying:
        count = status.copies.short or status.copies.staying
        what = "lack copies" if status.copies.short else "cannot be moved"
        yield CheckFinding("warning", url, f"{count} map outputs {what}")
    if status.tls_certificate_expires_at is not None:
        days = (status.tls_certificate_expires_at - now) / _DAY_SECONDS
        first, second = limits.certificate_days
        text = f"the TLS certificate expires in {days:.1f} days"
        yield from _above(url, -days, (-first, -second), text if days > 0 else f"{text}: expired")
    if status.allows_anonymous and not limits.allow_anonymous:
        yield CheckFinding("warning", url, "everyone who reaches a port can read and remove data")


def _above(
    url: str, value: float, limits: tuple[float, float], text: str
) -> Iterator[CheckFinding]:
    warning, critical = limits
    if value > critical:
        yield CheckFinding("critical", url, f"{text} (limit {abs(critical):g})")
    elif value > warning:
        yield CheckFinding("warning", url, f"{text} (limit {abs(warning):g})")


def _used_percent(used_bytes: int, free_bytes: int) -> float:
    size_bytes = used_bytes + free_bytes
    # Another program may have filled the disk before any data was stored.
    return 100.0 * used_bytes / size_bytes if size_bytes else 100.0


def _measures(
    good: Sequence[TaskManagerStatus], ready: int, limits: CheckLimits
) -> Iterator[CheckMeasure]:
    tiers = [tier for status in good for tier in status.storage if tier.healthy]
    disks = [
        _used_percent(each.used_bytes, each.free_bytes) for each in tiers if each.tier == "disk"
    ]
    fullest = max(disks, default=0.0)
    lag = max((status.event_loop.max_lag_seconds for status in good), default=0.0)
    yield CheckMeasure("ready", ready, "")
    yield CheckMeasure("storage_fullest", round(fullest, 2), "%", *limits.storage_percent)
    yield CheckMeasure("event_loop_lag", round(lag, 6), "s", *limits.lag_seconds)
    yield CheckMeasure("stored", sum(each.used_bytes for each in tiers), "B")
    yield CheckMeasure("connections", sum(len(status.connections) for status in good), "")
    yield CheckMeasure("gates", sum(len(status.gates) for status in good), "")
    yield CheckMeasure("copies_short", sum(status.copies.short for status in good), "")
