"""Asks the HTTP ports of many TaskManagers at once, each with a deadline."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from ..shuffle.taskmanager.status.status import InvalidStatus, TaskManagerStatus
from .deadline_calls import call_all
from .http_client import TIMEOUT_SECONDS, AccessRefused, NoAnswer, fetch_json

if TYPE_CHECKING:
    from collections.abc import Sequence

STATUS_PATH: Final = "/api/v1/status"
LATE_SECONDS: Final = 1.0
"""Time that a request may take beyond its timeout, to resolve a name and to connect."""


class NotTaskManager(click.ClickException):
    """Another server than a TaskManager answers.

    Args:
        message: The error.
        reason: Without the URL.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class EndpointAnswer(NamedTuple):
    """The answer of one HTTP port.

    Attributes:
        url: Its URL.
        status: The status; None if there is none.
        document: The status as JSON.
        problem: Why there is no status; empty if there is one.
        is_refused: Whether a TaskManager answered, and refused the access token.
        is_foreign: Whether something else answered.
    """

    url: str
    status: TaskManagerStatus | None = None
    document: object = None
    problem: str = ""
    is_refused: bool = False
    is_foreign: bool = False


def fetch_status(
    url: str, token: str, timeout_seconds: float = TIMEOUT_SECONDS
) -> tuple[object, TaskManagerStatus]:
    """Return the status of a TaskManager, as JSON and as a struct.

    Raises:
        click.ClickException: There is no status, for the reason in the message.
    """
    try:
        document = fetch_json(url, STATUS_PATH, timeout_seconds=timeout_seconds, token=token)
        return document, TaskManagerStatus.from_json(document)
    except InvalidStatus as error:
        raise NotTaskManager(
            f"{url} is not the HTTP port of a TaskManager: {error}", str(error)
        ) from None


def fetch_statuses(
    urls: Sequence[str], token: str, timeout_seconds: float = TIMEOUT_SECONDS
) -> list[EndpointAnswer]:
    """Ask many TaskManagers at the same time.

    Args:
        urls: URLs of HTTP ports. A repeated one is asked once.
        token: An access token for all of them; empty: none.
        timeout_seconds: Time in which each must answer.

    Returns:
        An answer for each URL, in their order.
    """
    asked = list(dict.fromkeys(urls))
    calls = [partial(_answer, url, token, timeout_seconds) for url in asked]
    answers = call_all(calls, timeout_seconds + LATE_SECONDS)
    late = f"no answer within {timeout_seconds:g} s"
    return [
        answer or EndpointAnswer(url, problem=late)
        for url, answer in zip(asked, answers, strict=True)
    ]


def _answer(url: str, token: str, timeout_seconds: float) -> EndpointAnswer:
    try:
        document, status = fetch_status(url, token, timeout_seconds)
    except (NoAnswer, NotTaskManager) as error:
        is_foreign = isinstance(error, NotTaskManager)
        return EndpointAnswer(url, problem=error.reason, is_foreign=is_foreign)
    except click.ClickException as error:
        refused = isinstance(error, AccessRefused)
        return EndpointAnswer(
            url, problem=error.message.removeprefix(f"{url} "), is_refused=refused
        )
    return EndpointAnswer(url, status, document)
