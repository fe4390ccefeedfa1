"""What ``sluice doctor`` checks at TaskManagers: whether they answer, their clocks and states."""

from __future__ import annotations

import email.utils
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from ..protocol.errors import SluiceError
from ..shuffle.client.credentials import client_credential
from ..shuffle.taskmanager.status.status import InvalidStatus
from ..spark_integration.endpoint_check import failure_of_each
from .deadline_calls import call_all
from .doctor_host import expiry, ok, problem, refused, skipped
from .endpoints import LATE_SECONDS, fetch_statuses
from .http_client import TIMEOUT_SECONDS, fetch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .endpoints import EndpointAnswer
    from .reports import DoctorCheck

MAX_CLOCK_SECONDS: Final = 5.0
"""Largest difference of two clocks that is not a problem. Tokens expire by these clocks."""

_APPLICATION: Final = "sluice doctor"


def http_ports(urls: Sequence[str], token: str, now: float) -> Iterator[DoctorCheck]:
    """Check HTTP ports: reachability, readiness, certificate, clock.

    Args:
        urls: Their URLs.
        token: An access token; empty: none.
        now: The time, in seconds since 1970.
    """
    if not urls:
        yield skipped("HTTP ports", "none is given: name their URLs to check them and their clocks")
        return
    for answer in fetch_statuses(urls, token):
        yield from _http_port(answer, now)
    calls = [partial(_clock_difference, url) for url in urls]
    for url, seconds in zip(urls, call_all(calls, TIMEOUT_SECONDS + LATE_SECONDS), strict=True):
        if isinstance(seconds, float):
            yield _clock(url, seconds)


def _http_port(answer: EndpointAnswer, now: float) -> Iterator[DoctorCheck]:
    name, status = f"HTTP {answer.url}", answer.status
    if status is None and answer.is_refused:
        yield problem(
            name,
            f"it answers, but not this token: {answer.problem}",
            "Give --secret-file or --token-file",
        )
    elif status is None:
        yield problem(
            name, answer.problem, "Start it (sluice taskmanager), or correct the URL or a firewall"
        )
    elif status.not_ready_because is not None:
        yield problem(name, f"it takes no work: {status.not_ready_because}", "Read its log")
    else:
        yield ok(name, f"TaskManager {status.taskmanager_id} {status.version} is ready")
    if status is not None and status.tls_certificate_expires_at is not None:
        yield expiry("certificate", status.tls_certificate_expires_at, now, f"of {answer.url}")


def _clock_difference(url: str) -> float | str:
    """Return the seconds by which the clock of a server is ahead, or why they are not known."""
    began = time.time()
    try:
        date = fetch(url, "/healthz").date
    except (click.ClickException, InvalidStatus) as error:
        return str(error)
    middle = (began + time.time()) / 2
    try:
        # The header has whole seconds: half of one is lost on average.
        return email.utils.parsedate_to_datetime(date).timestamp() + 0.5 - middle
    except ValueError:
        return "it has no clock"


def _clock(url: str, seconds: float) -> DoctorCheck:
    name = f"clock of {url}"
    if abs(seconds) <= MAX_CLOCK_SECONDS:
        return ok(name, f"within {MAX_CLOCK_SECONDS:g} s of the clock of this host")
    side = "ahead of" if seconds > 0 else "behind"
    return problem(
        name,
        f"it is {abs(seconds):.0f} s {side} the clock of this host (limit {MAX_CLOCK_SECONDS:g} s)",
        "Synchronize both clocks (NTP): tokens and certificates expire by them",
    )


def data_ports(
    addresses: Sequence[str], environment: Mapping[str, str], *, tls: bool
) -> Iterator[DoctorCheck]:
    """Check that TaskManagers answer at data ports and accept an application.

    Args:
        addresses: HOST:PORT, or unix:/PATH.
        environment: Names the credential of an application, if there is one.
        tls: Whether they speak TLS.
    """
    if not addresses:
        yield skipped("data ports", "none is given: name them with --endpoints")
        return
    try:
        credential = client_credential(None, _APPLICATION, environment)
    except SluiceError as error:
        yield refused("credential", error)
        return
    found = failure_of_each(addresses, credential, tls=tls)
    for address, failure in zip(addresses, found, strict=True):
        name = f"data {address}"
        if failure is None:
            yield ok(name, "it accepts connections" if tls else "it accepts an application")
        elif failure.refused and credential is None:
            yield ok(name, "it answers, and wants a credential of applications")
        elif failure.refused:
            yield problem(
                name,
                failure.reason,
                "Make a token with the secret of its cluster: sluice token create --out FILE",
            )
        else:
            yield problem(
                name,
                failure.reason,
                "Start it (sluice taskmanager), or correct the address or a firewall",
            )
