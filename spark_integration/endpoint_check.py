"""Checks before Spark starts that a TaskManager accepts the driver.

Unix sockets and loopback addresses reach a different TaskManager on each host, so the driver asks
the executors whether they reach one. Only if the driver decides alone is the application refused.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import threading
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from ..protocol.errors import ErrorCode, SluiceError
from ..protocol.limits import MAGIC, VERSION
from ..protocol.schema import FLOW_CREDIT, ROLE_CONSUMER, Hello, HelloAck, Message
from ..shuffle.client.credentials import client_credential, read_credential_file
from ..transport.config import TransportConfig
from ..transport.connector import connect
from ..transport.errors import ConnectFailed
from .endpoint_forms import expand
from .errors import SparkIntegrationError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping, Sequence
    from pathlib import Path

    from ..protocol.framing import PayloadMemory
    from ..protocol.identity import Credential
    from ..transport.address import Address
    from ..transport.connection import Connection

logger = logging.getLogger(__name__)

T = TypeVar("T")

TIMEOUT_SECONDS: Final = 5.0
"""The default of spark.sluice.io.connectTimeout."""
DEFAULT_ENDPOINTS: Final = "127.0.0.1:7337"
"""The plugin's default."""

ENDPOINTS: Final = "spark.sluice.endpoints"
TOKEN_FILE: Final = "spark.sluice.auth.tokenFile"  # noqa: S105 - the name of a setting
TOKEN: Final = "spark.sluice.auth.token"  # noqa: S105 - the name of a setting

_THREAD: Final = "sluice-endpoint-check"
_APPLICATION: Final = "endpoint check"
_OF_EACH_HOST: Final = ("localhost", "127.", "::1")
_REFUSALS: Final = frozenset(
    {
        ErrorCode.AUTHENTICATION_FAILED,
        ErrorCode.AUTHENTICATION_REQUIRED,
        ErrorCode.CREDENTIAL_EXPIRED,
        ErrorCode.NOT_PERMITTED,
    }
)


_connection_logger: Final = logging.getLogger("sluice.transport.connection")


class Failure(NamedTuple):
    """Why an endpoint cannot be used."""

    endpoint: str
    reason: str
    refused: bool
    """Whether a TaskManager answered but refused the credential."""


def require_reachable(settings: Mapping[str, str]) -> None:
    """Check that a TaskManager answers an application with these settings.

    If shuffles may fall back to Spark, a failure is logged as a warning. If only the executors can
    decide, a refused credential is logged as a warning, and other failures are ignored.

    Raises:
        SparkIntegrationError: No endpoint can be used, and the driver decides alone.
    """
    if _is(settings, "spark.sluice.enabled", "false") or _is_elsewhere(settings):
        return
    failures = failures_of(settings)
    if not failures:
        return
    error = _error(failures, settings)
    if _is(settings, "spark.sluice.fallback.policy", "spark"):
        logger.warning("%s. Until then shuffles are Spark's own", error)
    elif _decides_here(settings):
        raise error
    elif any(failure.refused for failure in failures):
        logger.warning("%s", error)


def failures_of(settings: Mapping[str, str]) -> list[Failure]:
    """Return why none of the endpoints can be used, or nothing if one can.

    Raises:
        SparkIntegrationError: The credential cannot be read.
    """
    credential = _credential(settings)
    uses_tls = _is(settings, "spark.sluice.ssl.enabled", "true") or (
        "spark.sluice.ssl.enabled" not in settings
        and _is(settings, "spark.ssl.rpc.enabled", "true")
    )
    endpoints = _endpoints(settings)
    found = _in_thread(_first_success(endpoints, credential, tls=uses_tls))
    return _all_late(endpoints) if found is None else found


def failure_of_each(
    endpoints: Sequence[str], credential: Credential | None, *, tls: bool
) -> list[Failure | None]:
    """Return why each endpoint cannot be used; None for those that can.

    Args:
        endpoints: HOST:PORT, dns:NAME[:PORT] or unix:/PATH.
        credential: Of an application; None: none.
        tls: Whether the TaskManagers speak TLS. Then an endpoint only has to accept a connection.
    """
    found = _in_thread(_check_each(endpoints, credential, tls=tls))
    return [*_all_late(endpoints)] if found is None else found


def _all_late(endpoints: Iterable[str]) -> list[Failure]:
    return [Failure(each, "no answer in time", refused=False) for each in endpoints]


def _in_thread(work: Coroutine[object, object, T]) -> T | None:
    """Run the checks; return None if they do not end in time."""
    found: T | None = None

    def check() -> None:
        nonlocal found
        found = asyncio.run(work)

    # In its own thread: a notebook runs an event loop in this one, and a resolver may hang longer
    # than the timeout.
    thread = threading.Thread(target=check, name=_THREAD, daemon=True)
    _connection_logger.addFilter(_is_of_another_thread)
    try:
        thread.start()
        thread.join(2 * TIMEOUT_SECONDS)
    finally:
        _connection_logger.removeFilter(_is_of_another_thread)
    return found


async def _check_each(
    endpoints: Sequence[str], credential: Credential | None, *, tls: bool
) -> list[Failure | None]:
    return await asyncio.gather(*(_check(each, credential, tls=tls) for each in endpoints))


async def _first_success(
    endpoints: list[str], credential: Credential | None, *, tls: bool
) -> list[Failure]:
    checks = [asyncio.create_task(_check(each, credential, tls=tls)) for each in endpoints]
    failures = []
    try:
        for done in asyncio.as_completed(checks):
            failure = await done
            if failure is None:
                return []
            failures.append(failure)
    finally:
        for check in checks:
            check.cancel()
        await asyncio.gather(*checks, return_exceptions=True)
    return failures


async def _check(endpoint: str, credential: Credential | None, *, tls: bool) -> Failure | None:
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            addresses = await expand(endpoint)
        if len(addresses) > 1:
            failures = await _first_success([*map(str, addresses)], credential, tls=tls)
            return failures[0]._replace(endpoint=endpoint) if failures else None
        if tls and addresses[0].port:
            await _dial(addresses[0])  # The certificates may be in formats of the JVM.
        else:
            await _greet(addresses[0], credential)
    except (SluiceError, OSError) as error:  # TimeoutError is an OSError
        code = error.code if isinstance(error, SluiceError) else None
        return Failure(endpoint, _reason(error), code in _REFUSALS)
    return None


def _reason(error: SluiceError | OSError) -> str:
    cause = error.__cause__ if isinstance(error, ConnectFailed) else error
    if isinstance(cause, TimeoutError):
        return f"no answer within {TIMEOUT_SECONDS:.0f} s"
    if isinstance(cause, socket.gaierror):
        return cause.strerror or str(cause)
    if isinstance(cause, OSError) and cause.errno:
        return os.strerror(cause.errno)
    # Only the first sentence: a remedy for any client follows in the TaskManager's message.
    return error.message.partition(". ")[0] if isinstance(error, SluiceError) else str(error)


async def _dial(address: Address) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        _, writer = await asyncio.open_connection(address.host, address.port)
        writer.close()


async def _greet(address: Address, credential: Credential | None) -> None:
    """Shake hands and close.

    Raises:
        SluiceError: No TaskManager answers there, or it refuses the credential.
    """
    config = TransportConfig(
        connect_timeout_seconds=TIMEOUT_SECONDS,
        handshake_timeout_seconds=TIMEOUT_SECONDS,
        connect_retries=0,
    )
    name = f"endpoint check {os.getpid()}"
    hello = Hello(
        MAGIC, VERSION, VERSION, ROLE_CONSUMER, _APPLICATION, b"", 0, FLOW_CREDIT, 0, name
    )
    connection, _ = await connect(address, hello, _Listener, config, 0, credential)
    connection.close()


class _Listener:
    """Expects nothing after the handshake."""

    def __init__(self, connection: Connection, greeting: Hello | HelloAck) -> None:
        pass

    def payload_buffer(self, message: Message, length: int) -> PayloadMemory:
        return None

    def message_received(self, message: Message, payload_length: int) -> None:
        pass

    def writable(self) -> None:
        pass

    def connection_lost(self, error: SluiceError) -> None:
        pass


def _is_of_another_thread(record: logging.LogRecord) -> bool:
    """Return whether another thread logs; the check reports its own failures."""
    return record.threadName != _THREAD


def _error(failures: list[Failure], settings: Mapping[str, str]) -> SparkIntegrationError:
    refused = [failure for failure in failures if failure.refused]
    reasons = "; ".join(f"{failure.endpoint}: {failure.reason}" for failure in refused or failures)
    if refused:
        return SparkIntegrationError(
            "The TaskManagers refuse this application",
            value=reasons,
            remedy=f"Make a token with the secret of their cluster (sluice token create --out "
            f"FILE) and set {_given_by(settings) or TOKEN_FILE}",
        )
    return SparkIntegrationError(
        "No TaskManager answers",
        value=reasons,
        remedy=f"Correct {ENDPOINTS} (HOST:PORT of the data port, 7337 by default, "
        "dns:NAME or unix:/PATH), or start a TaskManager there: sluice taskmanager",
    )


def _given_by(settings: Mapping[str, str]) -> str:
    """Return the setting or variable that will give the driver its credential."""
    for key in (TOKEN_FILE, TOKEN):
        if settings.get(key, "").strip():
            return key
    for variable in ("SLUICE_CREDENTIAL", "SLUICE_CREDENTIAL_FILE"):
        if os.environ.get(variable, "").strip():
            return variable
    return ""


def _credential(settings: Mapping[str, str]) -> Credential | None:
    """Return the credential that the driver will have.

    Raises:
        SparkIntegrationError: It cannot be read.
    """
    origin = _given_by(settings)
    text = settings.get(TOKEN, "").strip() or None
    application = f"{_APPLICATION} {secrets.token_hex(4)}"
    try:
        if origin == TOKEN_FILE:
            text = read_credential_file(_path(settings[TOKEN_FILE].strip()))
        return client_credential(text, application, os.environ)
    except SluiceError as error:
        raise SparkIntegrationError(
            f"{origin} has no credential that can be used",
            value=error.value or error.message,
            remedy=f"Correct {origin}: sluice token create --out FILE makes a token",
        ) from None


def _path(text: str) -> Path:
    from pathlib import Path

    return Path(text)


def _endpoints(settings: Mapping[str, str]) -> list[str]:
    text = settings.get(ENDPOINTS, "").strip() or DEFAULT_ENDPOINTS
    host = socket.gethostname()
    return [each.strip().replace("{host}", host) for each in text.split(",") if each.strip()]


def _decides_here(settings: Mapping[str, str]) -> bool:
    """Return whether the driver decides alone that no TaskManager is reachable."""
    if "{host}" in settings.get(ENDPOINTS, ""):
        return False
    master = settings.get("spark.remote") or os.environ.get("SPARK_REMOTE")
    master = master or settings.get("spark.master") or os.environ.get("MASTER") or "local"
    if master == "local" or master.startswith("local["):
        return True
    return not any(each.startswith(("unix:", *_OF_EACH_HOST)) for each in _endpoints(settings))


def _is_elsewhere(settings: Mapping[str, str]) -> bool:
    """Return whether the driver will run on another host."""
    return _is(settings, "spark.submit.deployMode", "cluster")


def _is(settings: Mapping[str, str], key: str, value: str) -> bool:
    return settings.get(key, "").strip().lower() == value
