"""Asks the HTTP port of a TaskManager, for the commands that do so.

With a cluster secret on the TaskManager, such a command proves itself by an access token: one that
it is given, or one that it makes of the secret and that is of use for a minute only.
"""

from __future__ import annotations

import functools
import http.client
import io
import json
import os
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
import msgspec

from ..protocol.access_token import make_access_token
from ..protocol.errors import SluiceError
from ..shuffle.taskmanager.status.status import InvalidStatus
from ..transport.access import read_secret

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_HTTP_PORT: Final = 7338
DEFAULT_URL: Final = f"http://127.0.0.1:{DEFAULT_HTTP_PORT}"
TIMEOUT_SECONDS: Final = 10.0
UNIX: Final = "unix:"
SOCKET_VARIABLE: Final = "SLUICE_HTTP_SOCKET_PATH"
SECRET_FILES_VARIABLE: Final = "SLUICE_CLUSTER_SECRET_FILES"  # noqa: S105
TOKEN_VARIABLE: Final = "SLUICE_ACCESS_TOKEN"  # noqa: S105
TOKEN_SECONDS: Final = 60
"""Time for which a token that a command makes is good."""

MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024
"""Longest answer that a command reads: a status with a million channels."""

_PIECE_BYTES: Final = 64 * 1024
_MAX_TOKEN_BYTES: Final = 4096
_MAX_ERROR_BYTES: Final = 4096
_MAX_ERROR_CHARACTERS: Final = 500


class NoAnswer(click.ClickException):
    """No TaskManager answers at a URL.

    Args:
        url: The URL.
        reason: Why, without the URL and the remedy.
    """

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(
            f"no TaskManager answers at {url}: {reason}. "
            "Give the URL of its HTTP port, or start one with: sluice taskmanager"
        )
        self.reason = reason


class AccessRefused(click.ClickException):
    """A TaskManager answers, and refuses the request."""


class HttpAnswer(NamedTuple):
    """An answer of an HTTP port.

    Attributes:
        body: Its bytes.
        date: Its ``Date`` header: the clock of the server, in whole seconds.
    """

    body: bytes
    date: str


class Given(NamedTuple):
    """Files from which a command takes its credential."""

    secret_file: Path | None
    token_file: Path | None

    def token(self, scope: str, configured: Path | None = None) -> str:
        """Return an access token; empty if there is nothing to prove.

        Args:
            scope: What the token allows.
            configured: The secret file of a configuration, used if no other credential is given. It
                is the TaskManager's: if it cannot be read here, there is nothing to prove.

        Raises:
            click.ClickException: A file cannot be read or holds no secret.
        """
        if self.token_file is not None:
            return _read_token(self.token_file)
        given = os.environ.get(TOKEN_VARIABLE, "").strip()
        if given and self.secret_file is None:
            return given
        own = self.secret_file or first_secret_file()
        path = own or configured
        if path is None:
            return ""
        try:
            made = make_access_token(read_secret(path), scope, int(time.time()) + TOKEN_SECONDS)
        except SluiceError as error:
            if own is None:
                return ""
            raise click.ClickException(str(error)) from None
        return made.to_text()


def proof_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of :class:`Given`."""
    command = click.option(
        "--token-file",
        type=click.Path(path_type=Path),
        help=f"An access token. Default: {TOKEN_VARIABLE}, which holds the token itself.",
    )(command)
    return click.option(
        "--secret-file",
        type=click.Path(path_type=Path),
        help=f"The cluster secret. Default: the first file of {SECRET_FILES_VARIABLE}.",
    )(command)


def first_secret_file() -> Path | None:
    """Return the first file that the environment names, if any."""
    first = os.environ.get(SECRET_FILES_VARIABLE, "").split(",")[0].strip()
    return Path(first).expanduser() if first else None


def default_url() -> str:
    """Return the Unix socket that the environment names, or the default port of this host."""
    path = os.environ.get(SOCKET_VARIABLE, "").strip()
    return UNIX + str(Path(path).expanduser()) if path not in ("", "none") else DEFAULT_URL


def http_url(typed: str) -> str:
    """Complete what a user typed: a URL, unix:PATH, HOST:PORT, or HOST with the default port."""
    if "://" in typed or typed.startswith(UNIX):
        return typed.rstrip("/")
    host = typed.rstrip("/")
    if host.count(":") > 1 and not host.startswith("["):  # an IPv6 address
        host = f"[{host}]"
    has_port = ":" in host.rpartition("]")[2]
    return f"http://{host}" if has_port else f"http://{host}:{DEFAULT_HTTP_PORT}"


def fetch_json(
    url: str,
    path: str,
    method: str = "GET",
    timeout_seconds: float = TIMEOUT_SECONDS,
    *,
    token: str = "",
    body: object = None,
) -> object:
    """Return the JSON of the server at ``url``, asked directly and never through a proxy.

    Args:
        url: The URL of the HTTP port, or unix:PATH.
        path: The path and query below it.
        method: Of the request.
        timeout_seconds: Time in which the whole answer must arrive.
        token: An access token; empty: none.
        body: Sent as JSON unless it is None.

    Raises:
        InvalidStatus: The server is no TaskManager, or its answer is an error.
        NoAnswer: No server answers in time.
        AccessRefused: It refuses the token.
        click.ClickException: The URL is not one.
    """
    answer = fetch(url, path, method, timeout_seconds, token=token, body=body)
    try:
        # Stricter than the json module: NaN and Infinity are not JSON.
        return msgspec.json.decode(answer.body)
    except msgspec.DecodeError:
        raise InvalidStatus("it did not answer JSON") from None
    except RecursionError:
        raise InvalidStatus("it answered JSON that is nested too deeply") from None


def fetch(
    url: str,
    path: str,
    method: str = "GET",
    timeout_seconds: float = TIMEOUT_SECONDS,
    *,
    token: str = "",
    body: object = None,
) -> HttpAnswer:
    """Return what the server at ``url`` answers; everything else is as for :func:`fetch_json`."""
    deadline = time.monotonic() + timeout_seconds
    handlers: list[urllib.request.BaseHandler] = [
        urllib.request.ProxyHandler({}),
        _HttpHandler(deadline),
        _HttpsHandler(deadline),
    ]
    base = url
    if url.startswith(UNIX):
        handlers[1] = _UnixHandler(deadline, url.removeprefix(UNIX))
        base = "http://localhost"
    opener = urllib.request.build_opener(*handlers)
    try:
        # Any URL is the user's own choice.
        request = urllib.request.Request(base + path, method=method)  # noqa: S310
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        if token:
            # Unredirected: a redirect to another server must not take the token along.
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        with opener.open(request, timeout=timeout_seconds) as answer:
            content = _body(answer)
            return HttpAnswer(content, answer.headers.get("Date", ""))
    except urllib.error.HTTPError as error:
        with error:
            if error.code in (401, 403):
                raise AccessRefused(_refusal(url, error, proves=bool(token))) from None
            reason = _reason(error)
        answered = f"it answered {error.code} {error.reason}"
        raise InvalidStatus(f"{answered}: {reason}" if reason else answered) from None
    except http.client.InvalidURL as error:
        raise click.ClickException(f"{url} is not a URL: {error}. Write HOST:PORT") from None
    except http.client.HTTPException:
        raise InvalidStatus(
            "it did not answer in HTTP, as a data port does not. The HTTP port is http_port of "
            "the TaskManager, 7338 by default"
        ) from None
    except _Late:
        reason = f"timed out: its answer was not complete within {timeout_seconds:g} s"
        raise NoAnswer(url, reason) from None
    except (OSError, ValueError) as error:
        raise NoAnswer(url, str(getattr(error, "reason", error))) from None


def _body(answer: http.client.HTTPResponse) -> bytes:
    body = bytearray()
    while piece := answer.read1(_PIECE_BYTES):
        body += piece
        if len(body) > MAX_ANSWER_BYTES:
            raise InvalidStatus(f"its answer is longer than {MAX_ANSWER_BYTES} bytes")
    if answer.length:
        raise http.client.IncompleteRead(bytes(body), answer.length)
    return bytes(body)


class _Late(TimeoutError):
    """An answer was not complete at its deadline."""


class _RawAnswer(io.RawIOBase):
    """The bytes of an answer until a deadline.

    The timeout of a socket is for each piece: a server that sends a byte now and then would hold a
    command up, also before the end of the headers.
    """

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self._socket, self._deadline = connected, deadline
        # It keeps the socket open, which urllib closes after the headers.
        self._file = connected.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise _Late
        self._socket.settimeout(left)
        try:
            return self._file.readinto(buffer)
        except TimeoutError:
            raise _Late from None

    def close(self) -> None:
        self._file.close()
        super().close()


class _Answer(http.client.HTTPResponse):
    """An answer whose headers and body must arrive before a deadline."""

    def __init__(self, sock: socket.socket, *arguments: Any, deadline: float, **extra: Any) -> None:
        super().__init__(sock, *arguments, **extra)
        self.fp.close()
        self.fp = io.BufferedReader(_RawAnswer(sock, deadline))


class _HasDeadline(urllib.request.AbstractHTTPHandler):
    """Opens connections whose answers have a deadline."""

    def __init__(self, deadline: float) -> None:
        super().__init__()
        self._answer = functools.partial(_Answer, deadline=deadline)

    def do_open(
        self, http_class: Callable[..., Any], req: urllib.request.Request, **arguments: Any
    ) -> http.client.HTTPResponse:
        """Send a request; return the answer after its headers."""

        def connection(*of: Any, **extra: Any) -> http.client.HTTPConnection:
            made: http.client.HTTPConnection = http_class(*of, **extra)
            made.response_class = self._answer  # type: ignore[assignment]
            return made

        return super().do_open(connection, req, **arguments)


class _HttpHandler(_HasDeadline, urllib.request.HTTPHandler):
    """Sends requests without TLS."""


class _HttpsHandler(_HasDeadline, urllib.request.HTTPSHandler):
    """Sends requests with TLS."""


class _UnixConnection(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, host: str, *, timeout: float | None = None, path: str) -> None:
        super().__init__(host, timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _UnixHandler(_HttpHandler):
    """Sends requests to a Unix socket."""

    def __init__(self, deadline: float, path: str) -> None:
        super().__init__(deadline)
        self._connection = functools.partial(_UnixConnection, path=path)

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req)


def _refusal(url: str, error: urllib.error.HTTPError, *, proves: bool) -> str:
    """Say why a request was refused, in one line."""
    if error.code == 401 and not proves:
        return (
            f"{url} requires an access token: give --secret-file or --token-file, or set "
            f"{TOKEN_VARIABLE} or {SECRET_FILES_VARIABLE}"
        )
    return f"{url} refuses this: {_reason(error) or f'{error.code} {error.reason}'}"


def _reason(error: urllib.error.HTTPError) -> str:
    """Return the reason in an answer that is an error, in one line; empty if it has none."""
    try:
        document: Any = msgspec.json.decode(error.read(_MAX_ERROR_BYTES))
        reason = str(document["error"])
    except (OSError, msgspec.DecodeError, RecursionError, KeyError, TypeError):
        return ""
    shown = "".join(character if character.isprintable() else "?" for character in reason)
    return shown[:_MAX_ERROR_CHARACTERS]


def _read_token(path: Path) -> str:
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            return file.read(_MAX_TOKEN_BYTES).strip()
    except OSError as error:
        raise click.ClickException(f"{path} cannot be read: {error.strerror}") from None
