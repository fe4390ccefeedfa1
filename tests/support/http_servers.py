"""HTTP servers for commands that run in the test's own thread, and a terminal to run them in."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from contextlib import AbstractContextManager

ROOT = Path(__file__).parents[2]
START_TIMEOUT_SECONDS = 60


@contextlib.contextmanager
def serving(
    start: Callable[[], Awaitable[tuple[int, Callable[[], Awaitable[None]]]]],
) -> Iterator[int]:
    """Run ``start() -> (port, close)`` on an event loop in a thread of its own; yield the port."""
    ready = threading.Event()
    shared: dict[str, Any] = {}

    async def main() -> None:
        shared["loop"], shared["stop"] = asyncio.get_running_loop(), asyncio.Event()
        shared["port"], close = await start()
        ready.set()
        await shared["stop"].wait()
        await close()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert ready.wait(START_TIMEOUT_SECONDS)
        yield shared["port"]
    finally:
        shared["loop"].call_soon_threadsafe(shared["stop"].set)
        thread.join(START_TIMEOUT_SECONDS)


def page_serving(body: str, code: int = 200) -> AbstractContextManager[int]:
    """Answer every request alike."""

    async def start() -> tuple[int, Callable[[], Awaitable[None]]]:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(text=body, status=code)

        app = web.Application()
        app.add_routes([web.route("*", "/{path:.*}", answer)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner.addresses[0][1], runner.cleanup

    return serving(start)


def in_terminal(columns: int, *arguments: str) -> str:
    """Run the console script in a terminal and return what it shows."""
    leader, follower = pty.openpty()
    environment = {name: text for name, text in os.environ.items() if name != "COLUMNS"}
    script = Path(sys.executable).with_name("sluice")
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 25, columns, 0, 0))
    process = subprocess.Popen(
        [script, *arguments], stdin=follower, stdout=follower, cwd=ROOT, env=environment
    )
    os.close(follower)
    shown = b""
    # A terminal that nobody has open any more ends with an error.
    with contextlib.suppress(OSError):
        while data := os.read(leader, 65536):
            shown += data
    os.close(leader)
    assert process.wait(60) == 0
    return shown.decode().replace("\r\n", "\n")
