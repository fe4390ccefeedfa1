r"""Measures the network between two hosts: throughput of both directions, and round trips.

The connecting side sends a request of 16 bytes: the magic ``sluicebn``, a letter (``P`` echo
messages, ``S`` take bytes, ``R`` send bytes), 5 zero bytes, and the seconds as u16. After ``S`` it
shuts its side down, and gets the number of bytes that arrived as u64, all big endian.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Final

from .latencies import latency
from .reports import NetworkBenchReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_SECONDS: Final = 60
"""Longest time for which one side keeps the other one busy."""

MAX_STREAMS: Final = 64
MESSAGE_BYTES: Final = 64
MAX_ROUND_TRIPS: Final = 10_000
IDLE_SECONDS: Final = 5.0
"""Time in which the other side must move."""

_REQUEST: Final = struct.Struct(">8sc5xH")
_COUNT: Final = struct.Struct(">Q")
_MAGIC: Final = b"sluicebn"
_PIECE_BYTES: Final = 256 * 1024


class BadAnswer(Exception):
    """The other side is not the command of this module, or has gone."""


# ---- the side that is asked ----------------------------------------------------------------------


class BenchServer:
    """Answers measurements, at most ``MAX_STREAMS`` connections at a time.

    Args:
        host: Address to listen on.
        port: Port; 0: any free one.

    Raises:
        OSError: The address cannot be used.
    """

    def __init__(self, host: str, port: int) -> None:
        self._listener = socket.create_server((host, port), backlog=MAX_STREAMS)
        self._places = threading.BoundedSemaphore(MAX_STREAMS)
        self.port: int = self._listener.getsockname()[1]

    def serve(self, seconds: float) -> None:
        """Answer once for a time, or until :meth:`close`; then release the address. Blocks."""
        deadline = time.monotonic() + seconds
        # An OSError: the time is up, or it is shut down.
        with self._listener, contextlib.suppress(OSError):
            while (left := deadline - time.monotonic()) > 0:
                self._listener.settimeout(left)
                connection, _ = self._listener.accept()
                if self._places.acquire(blocking=False):
                    arguments = (connection,)
                    threading.Thread(target=self._answer, args=arguments, daemon=True).start()
                else:
                    connection.close()

    def close(self) -> None:
        """Let :meth:`serve` end, from any thread; idempotent.

        The descriptor stays open until then: closed under a call in another thread, its number
        could name another file.
        """
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)

    def _answer(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(IDLE_SECONDS)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                magic, kind, seconds = _REQUEST.unpack(_receive(connection, _REQUEST.size))
                deadline = time.monotonic() + min(seconds, MAX_SECONDS)
                if magic != _MAGIC:
                    return
                if kind == b"P":
                    while time.monotonic() < deadline + IDLE_SECONDS:
                        connection.sendall(_receive(connection, MESSAGE_BYTES))
                elif kind == b"S":
                    count = _discard(connection, deadline + IDLE_SECONDS)
                    connection.sendall(_COUNT.pack(count))
                elif kind == b"R":
                    _send(connection, deadline)
        except (OSError, BadAnswer):
            pass  # the other side reports it
        finally:
            self._places.release()


# ---- the side that asks --------------------------------------------------------------------------


def measure(host: str, port: int, streams: int, seconds: float) -> NetworkBenchReport:
    """Measure the way to a server. Blocks for a little more than twice ``seconds``.

    Args:
        host: Where it runs.
        port: Where it listens.
        streams: Connections at a time, 1 to ``MAX_STREAMS``.
        seconds: Time of each direction, at most ``MAX_SECONDS``.

    Raises:
        OSError: It cannot be reached.
        BadAnswer: Another program answers there.
    """
    began = time.perf_counter()
    with _connected(host, port, b"P", seconds) as connection:
        connect_seconds = time.perf_counter() - began
        trips = list(_round_trips(connection, seconds))
    sent = _together(lambda: _sent(host, port, seconds), streams)
    received = _together(lambda: _received(host, port, seconds), streams)
    return NetworkBenchReport(
        f"{host}:{port}", streams, seconds, sent, received, connect_seconds, latency(trips)
    )


def _round_trips(connection: socket.socket, seconds: float) -> Iterator[float]:
    message = b"\0" * MESSAGE_BYTES
    deadline = time.monotonic() + seconds
    for _ in range(MAX_ROUND_TRIPS):
        before = time.perf_counter()
        connection.sendall(message)
        _receive(connection, MESSAGE_BYTES)
        yield time.perf_counter() - before
        if time.monotonic() > deadline:
            return


def _sent(host: str, port: int, seconds: float) -> float:
    """Return the bytes per second that arrived at the other side."""
    with _connected(host, port, b"S", seconds) as connection:
        began = time.perf_counter()
        _send(connection, time.monotonic() + seconds)
        connection.shutdown(socket.SHUT_WR)
        (count,) = _COUNT.unpack(_receive(connection, _COUNT.size))
        return float(count / max(time.perf_counter() - began, 1e-9))


def _received(host: str, port: int, seconds: float) -> float:
    with _connected(host, port, b"R", seconds) as connection:
        began = time.perf_counter()
        count = _discard(connection, time.monotonic() + seconds + IDLE_SECONDS)
        return count / max(time.perf_counter() - began, 1e-9)


def _together(measured: Callable[[], float], streams: int) -> float:
    """Run a measurement on several connections at the same time; return the sum."""
    rates: list[float] = []
    failures: list[Exception] = []

    def run() -> None:
        try:
            rates.append(measured())
        except (OSError, BadAnswer) as error:
            failures.append(error)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:  # each of its calls has a deadline
        thread.join()
    if failures:
        raise failures[0]
    return sum(rates)


@contextlib.contextmanager
def _connected(host: str, port: int, kind: bytes, seconds: float) -> Iterator[socket.socket]:
    with socket.create_connection((host, port), IDLE_SECONDS) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(_REQUEST.pack(_MAGIC, kind, max(1, round(seconds))))
        yield connection


# ---- both sides ----------------------------------------------------------------------------------


def _receive(connection: socket.socket, length: int) -> bytes:
    """Receive exactly so many bytes.

    Raises:
        BadAnswer: The other side has ended.
    """
    found = b""
    while len(found) < length:
        piece = connection.recv(length - len(found))
        if not piece:
            raise BadAnswer("the other side closed the connection")
        found += piece
    return found


def _send(connection: socket.socket, deadline: float) -> None:
    data = b"\0" * _PIECE_BYTES
    while time.monotonic() < deadline:
        connection.sendall(data)


def _discard(connection: socket.socket, deadline: float) -> int:
    """Receive until the other side ends, or until a deadline; return the number of bytes."""
    buffer = bytearray(_PIECE_BYTES)
    count = 0
    while time.monotonic() < deadline and (received := connection.recv_into(buffer)):
        count += received
    return count
