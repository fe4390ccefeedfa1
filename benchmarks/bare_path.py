"""The bare counterpart of ``path_cpu``: bytes through four processes and three sockets.

A source writes segments to a Unix socket, one process forwards them to TCP, another one from there
to a Unix socket again, and a sink counts them: the hops of a buffer from a client through two
TaskManagers to another client. Each receives into segments of its own and writes from there, as a
TaskManager does; there are no messages, no credit, no checksums.

With ``NOTICE_BYTES`` on the Unix sockets in place of each segment, the path has the work that would
remain if clients and TaskManagers shared memory: the segments go over TCP only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Final

import uvloop

from benchmarks.line_process import LineProcess, line_process, next_command, say

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

SEGMENT_SIZE_BYTES: Final = 32 * 1024
RING_SEGMENTS: Final = 16
"""Segments of a process. Reading stops when two wait to be written, so none is overwritten; only
the segments of several notices at a time may be, and their bytes do not matter."""
NOTICE_BYTES: Final = 64
HOST: Final = "127.0.0.1"


class Writer(asyncio.Protocol):
    """The writing end of a socket.

    Args:
        unit_bytes: Bytes of one write: a segment, or a notice of it.
    """

    def __init__(self, unit_bytes: int) -> None:
        self._unit_bytes = unit_bytes
        self.transport: asyncio.Transport | None = None
        self.writable = asyncio.Event()
        self.writable.set()
        self.source: asyncio.Transport | None = None
        """Stops reading while this one cannot write."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the watermarks that a TaskManager has for segments: two of them may wait."""
        self.transport = transport  # type: ignore[assignment]
        self.transport.set_write_buffer_limits(2 * self._unit_bytes, self._unit_bytes + 1)  # type: ignore[union-attr]

    def pause_writing(self) -> None:
        """Wait."""
        self.writable.clear()
        if self.source is not None:
            self.source.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        self.writable.set()
        if self.source is not None:
            self.source.resume_reading()


class Receiver(asyncio.BufferedProtocol):
    """The reading end: forwards to a writer, or counts.

    Args:
        to: The writer.
        taken_bytes: Bytes to take before each write; 0 forwards bytes as they come.
        given_bytes: Bytes of each of these writes.
    """

    def __init__(self, to: Writer | None, taken_bytes: int = 0, given_bytes: int = 0) -> None:
        self._to = to
        self._taken_bytes = taken_bytes
        self._given_bytes = given_bytes
        memory = memoryview(bytearray(RING_SEGMENTS * SEGMENT_SIZE_BYTES))
        self._ring = [
            memory[start : start + SEGMENT_SIZE_BYTES]
            for start in range(0, len(memory), SEGMENT_SIZE_BYTES)
        ]
        self._next = 0
        self._received = 0
        self._wanted = 0
        self._all: asyncio.Event = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let the writer pause this end."""
        if self._to is not None:
            self._to.source = transport  # type: ignore[assignment]

    def get_buffer(self, sizehint: int) -> memoryview:
        """Receive into the next segment."""
        return self._ring[self._next]

    def buffer_updated(self, nbytes: int) -> None:
        """Forward it, or count it."""
        self._received += nbytes
        if self._to is not None:
            if self._taken_bytes == self._given_bytes:
                self._forward(nbytes)
            else:
                while self._received >= self._taken_bytes:
                    self._received -= self._taken_bytes
                    self._forward(self._given_bytes)
            return
        if 0 < self._wanted <= self._received:
            self._received -= self._wanted
            self._wanted = 0
            self._all.set()

    def _forward(self, length: int) -> None:
        if self._to is not None and self._to.transport is not None:
            self._to.transport.write(self._ring[self._next][:length])
        self._next = (self._next + 1) % RING_SEGMENTS

    async def receive(self, count: int) -> None:
        """Wait until so many bytes have come."""
        self._wanted = count
        self._all.clear()
        self.buffer_updated(0)
        await self._all.wait()


async def run_source(path: str, unix_bytes: int) -> None:
    """Write as many segments as each command says, or notices of them."""
    loop = asyncio.get_running_loop()
    transport, writer = await loop.create_unix_connection(lambda: Writer(unix_bytes), path)
    data = memoryview(os.urandom(unix_bytes))
    say("ready")
    while (count := await next_command()) is not None:
        for _ in range(count // SEGMENT_SIZE_BYTES):
            transport.write(data)
            if not writer.writable.is_set():
                await writer.writable.wait()
        say("written")
    transport.close()


async def run_first(path: str, unix_bytes: int, port: int) -> None:
    """Forward from a Unix socket to TCP."""
    loop = asyncio.get_running_loop()
    _, writer = await loop.create_connection(lambda: Writer(SEGMENT_SIZE_BYTES), HOST, port)
    await loop.create_unix_server(lambda: Receiver(writer, unix_bytes, SEGMENT_SIZE_BYTES), path)
    say("ready")
    await next_command()


async def run_second(path: str, unix_bytes: int) -> None:
    """Forward from TCP to a Unix socket."""
    loop = asyncio.get_running_loop()
    _, writer = await loop.create_unix_connection(lambda: Writer(unix_bytes), path)
    server = await loop.create_server(
        lambda: Receiver(writer, SEGMENT_SIZE_BYTES, unix_bytes), HOST, 0
    )
    say(server.sockets[0].getsockname()[1])
    await next_command()


async def run_sink(path: str, unix_bytes: int) -> None:
    """Count bytes or notices; answer when as many have come as the command says."""
    receiver = Receiver(None)
    await asyncio.get_running_loop().create_unix_server(lambda: receiver, path)
    say("ready")
    while (count := await next_command()) is not None:
        await receiver.receive(count // SEGMENT_SIZE_BYTES * unix_bytes)
        say("received")


class BarePath:
    """The four processes, in the order of the bytes."""

    def __init__(self, processes: list[LineProcess]) -> None:
        self.pids = [process.pid for process in processes]
        self._source, self._sink = processes[0], processes[-1]

    async def move(self, count: int) -> None:
        """Move bytes from one end to the other."""
        self._sink.tell(count)
        self._source.tell(count)
        await self._source.answer()
        await self._sink.answer()


@contextlib.asynccontextmanager
async def bare_path(
    directory: Path, unix_bytes: int = SEGMENT_SIZE_BYTES
) -> AsyncIterator[BarePath]:
    """Run the path; it is taken down from its source on.

    Args:
        directory: Directory of the sockets.
        unix_bytes: Bytes over the Unix sockets for each segment: the segment, or ``NOTICE_BYTES``.
    """
    into, out = (str(directory / f"bare-{end}-{unix_bytes}") for end in ("in", "out"))
    with contextlib.ExitStack() as stack:

        async def run(*arguments: str) -> tuple[LineProcess, object]:
            process = stack.enter_context(line_process("-m", "benchmarks.bare_path", *arguments))
            return process, await process.answer()

        size = str(unix_bytes)
        sink, _ = await run("sink", out, size)
        second, port = await run("second", out, size)
        first, _ = await run("first", into, size, str(port))
        source, _ = await run("source", into, size)
        yield BarePath([source, first, second, sink])


def main() -> None:
    """Run one of the processes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("role", choices=("source", "first", "second", "sink"))
    parser.add_argument("path")
    parser.add_argument("unix_bytes", type=int)
    parser.add_argument("port", type=int, nargs="?", default=0)
    arguments = parser.parse_args()
    if arguments.role == "first":
        uvloop.run(run_first(arguments.path, arguments.unix_bytes, arguments.port))
        return
    run = {"source": run_source, "second": run_second, "sink": run_sink}[arguments.role]
    uvloop.run(run(arguments.path, arguments.unix_bytes))


if __name__ == "__main__":
    main()
