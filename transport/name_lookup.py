"""Looks up the addresses of hosts without blocking the event loop on the name service.

The loops look up names in their own threads and wait for these threads when they close. So a
stopping TaskManager would wait for a name service that does not answer, long after its deadlines.
uvloop has four such threads: four stuck lookups would also delay all others.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from typing import TYPE_CHECKING, TypeAlias

from .loop import mark_retrieved

if TYPE_CHECKING:
    from collections.abc import Callable

SocketAddress: TypeAlias = tuple[str, int]

MAX_LOOKUPS = 256
"""Most concurrent lookups, each in a thread; clients choose the names."""

_under_way: dict[tuple[asyncio.AbstractEventLoop, str, int], asyncio.Future[list[SocketAddress]]]
_under_way = {}


async def look_up(host: str, port: int) -> list[SocketAddress]:
    """Return the addresses of a host, in the order in which to try them.

    Concurrent calls for the same host share one lookup, so a name service that does not answer
    costs one thread for each name. Cancellation stops waiting; the thread ends by itself.

    Args:
        host: A name or an address; an address is returned unchanged and at once.
        port: Becomes part of each result.

    Raises:
        OSError: The name is unknown, or, for a while, too many other lookups are running
            (``socket.gaierror``).
    """
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return [(host, port)]
    loop = asyncio.get_running_loop()
    key = (loop, host, port)
    future = _under_way.get(key)
    if future is None:
        if len(_under_way) >= MAX_LOOKUPS:
            raise socket.gaierror(
                socket.EAI_AGAIN,
                f"{len(_under_way)} other names are waiting for the name service",
            )
        future = _under_way[key] = loop.create_future()
        future.add_done_callback(mark_retrieved)
        threading.Thread(
            target=_ask, args=(loop, future, host, port), name=f"look up {host}", daemon=True
        ).start()
    return list(await asyncio.shield(future))


def after_look_up(host: str, port: int, callback: Callable[[], object]) -> None:
    """Call a function when no lookup of a host runs: at once, or when its thread ends."""
    future = _under_way.get((asyncio.get_running_loop(), host, port))
    if future is None:
        callback()
    else:
        future.add_done_callback(lambda _: callback())


def _ask(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[list[SocketAddress]],
    host: str,
    port: int,
) -> None:
    """Ask the name service. Runs in its own thread."""
    found: list[SocketAddress] | OSError
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        found = list(dict.fromkeys((str(info[4][0]), port) for info in infos))
    except (OSError, UnicodeError) as error:  # UnicodeError: not a valid host name
        found = error if isinstance(error, OSError) else socket.gaierror(str(error))
    # First, so that a caller that has the answer and asks again does not get it a second time.
    _under_way.pop((loop, host, port), None)
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(_settle, future, found)


def _settle(
    future: asyncio.Future[list[SocketAddress]], found: list[SocketAddress] | OSError
) -> None:
    if isinstance(found, OSError):
        future.set_exception(found)
    else:
        future.set_result(found)
