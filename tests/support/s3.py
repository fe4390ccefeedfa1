"""A real S3 server on loopback, and a proxy in front of it that throttles, fails and delays.

``make s3-server`` builds the server. A test takes the fixture ``s3``, which is left out without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import secrets
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

SERVER = Path(__file__).parents[2] / "build/s3-server/versitygw"
ACCESS_KEY = "sluice-test-key"
SECRET_KEY = "sluice-test-secret-which-no-log-shows"
START_SECONDS = 20.0

Credentials = dict[str, str]
CREDENTIALS: Credentials = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "AWS_REGION": "us-east-1",
}


_ports: set[int] = set()


def is_connection(fd: int) -> bool:
    """Whether a descriptor is a connection to a server of the tests.

    ``obstore`` closes them in threads of its own, some of them when they have been idle for long.
    """
    try:
        with socket.socket(fileno=os.dup(fd)) as peer:
            return bool(peer.getpeername()[1] in _ports)
    except (OSError, IndexError):
        return False


@dataclass
class S3Server:
    """A running server; buckets are directories of ``root``."""

    root: Path
    port: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def bucket(self) -> str:
        """Make a bucket; return its name."""
        name = f"sluice-{secrets.token_hex(6)}"
        (self.root / name).mkdir()
        return name

    def objects(self, bucket: str) -> list[str]:
        """Return the names of all objects, parts of uploads under way included."""
        top = self.root / bucket
        return sorted(str(path.relative_to(top)) for path in top.rglob("*") if path.is_file())


@contextlib.contextmanager
def s3_server(directory: Path) -> Iterator[S3Server]:
    """Run a server that stores below a directory."""
    root, sidecar = directory / "root", directory / "sidecar"
    root.mkdir(parents=True)
    sidecar.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [
            str(SERVER),
            *("--port", f"127.0.0.1:{port}"),
            *("--access", ACCESS_KEY, "--secret", SECRET_KEY),
            *("--quiet", "--keep-alive", "posix", "--sidecar", str(sidecar), str(root)),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(directory)},
    )
    try:
        _wait_until_it_listens(process, port)
        _ports.add(port)
        yield S3Server(root, port)
    finally:
        process.terminate()
        process.wait()


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, "the S3 server has ended"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)  # nothing tells that it listens
    raise AssertionError("the S3 server does not listen")


@dataclass
class S3Proxy:
    """Passes requests on, unless a rule answers them.

    Attributes:
        rule: Called with method and path of each request; a status answers it in place of the
            server, None passes it on.
        delay_seconds: Pause before each request.
        requests: What came, by method.
    """

    endpoint: str = ""
    rule: Callable[[str, str], int | None] = lambda method, path: None
    delay_seconds: float = 0.0
    requests: list[tuple[str, str]] = field(default_factory=list)

    def count(self, method: str) -> int:
        return sum(each == method for each, _ in self.requests)


_THROTTLED = "<Error><Code>SlowDown</Code><Message>Please reduce your rate</Message></Error>"
_FAILED = "<Error><Code>InternalError</Code><Message>secret={secret}</Message></Error>"


@contextlib.asynccontextmanager
async def s3_proxy(server: S3Server) -> AsyncIterator[S3Proxy]:
    """Run a proxy in front of a server."""
    proxy = S3Proxy()

    async def handle(request: web.Request) -> web.StreamResponse:
        proxy.requests.append((request.method, request.path))
        if proxy.delay_seconds:
            await asyncio.sleep(proxy.delay_seconds)
        status = proxy.rule(request.method, request.path)
        if status is not None:
            text = _THROTTLED if status == 503 else _FAILED.format(secret=SECRET_KEY)
            return web.Response(status=status, text=text, content_type="application/xml")
        headers = {name: value for name, value in request.headers.items() if name != "Connection"}
        async with session.request(
            request.method,
            server.endpoint + request.raw_path,
            headers=headers,
            data=io.BytesIO(await request.read()),
            skip_auto_headers=("Content-Type", "User-Agent", "Accept", "Accept-Encoding"),
            allow_redirects=False,
        ) as answer:
            body = await answer.read()
            kept = {
                name: value
                for name, value in answer.headers.items()
                if name not in ("Transfer-Encoding", "Content-Length", "Connection")
            }
            if request.method == "HEAD":
                kept["Content-Length"] = answer.headers.get("Content-Length", "0")
            return web.Response(status=answer.status, headers=kept, body=body or None)

    application = web.Application(client_max_size=1 << 30)
    application.router.add_route("*", "/{path:.*}", handle)
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        runner = web.AppRunner(
            application, access_log=None, shutdown_timeout=0.1, handler_cancellation=True
        )
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            proxy.endpoint = f"http://{host}:{port}"
            yield proxy
        finally:
            await runner.cleanup()
