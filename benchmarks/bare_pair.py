"""The baseline of bench-exchange: two processes that move bytes over TCP with uvloop alone."""

import asyncio
import gc
import mmap
import os
import sys
import tempfile
import time

SEGMENT_SIZE_BYTES = 32 * 1024


class BareSender(asyncio.Protocol):
    """Sends the number of bytes that its first received line names, as fast as it can.

    Args:
        data: Bytes to send, again and again; a multiple of the segment size.
    """

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._next = 0
        self._left = 0
        self._writable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the watermarks of Sluice's own connections."""
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._transport.set_write_buffer_limits(2 * SEGMENT_SIZE_BYTES, SEGMENT_SIZE_BYTES + 1)

    def data_received(self, data: bytes) -> None:
        """Take the request: a number of bytes."""
        self._left = int(data)
        self._send()

    def pause_writing(self) -> None:
        """Wait."""
        self._writable = False

    def resume_writing(self) -> None:
        """Go on."""
        self._writable = True
        self._send()

    def _send(self) -> None:
        while self._writable and self._left > 0:
            end = self._next + SEGMENT_SIZE_BYTES
            self._transport.write(self._data[self._next : end])
            self._next = end if end < len(self._data) else 0
            self._left -= SEGMENT_SIZE_BYTES


class BareReceiver(asyncio.BufferedProtocol):
    """Counts the bytes that it receives into one segment."""

    def __init__(self, expected_bytes: int) -> None:
        self._segment = memoryview(bytearray(SEGMENT_SIZE_BYTES))
        self._left = expected_bytes
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Receive into the same segment again and again."""
        return self._segment

    def buffer_updated(self, nbytes: int) -> None:
        """Count."""
        self._left -= nbytes
        if self._left <= 0 and not self.done.done():
            self.done.set_result(None)


async def serve_bare(size: int) -> None:
    """Run the bare sender; it prints its port and ends with its standard input.

    Args:
        size: Bytes of data to send, again and again; a multiple of the segment size.
    """
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        file.truncate(size)
        with mmap.mmap(file.fileno(), size) as mapping, memoryview(mapping) as data:
            for start in range(0, size, SEGMENT_SIZE_BYTES):
                data[start : start + SEGMENT_SIZE_BYTES] = os.urandom(SEGMENT_SIZE_BYTES)
            server = await loop.create_server(lambda: BareSender(data), "127.0.0.1", 0)
            print("bare", server.sockets[0].getsockname()[1], flush=True)
            await loop.run_in_executor(None, sys.stdin.read)
            server.close()
            gc.collect()  # slices of the mapping


async def read_bare(port: int, total: int) -> float:
    """Read ``total`` bytes from the bare sender; return seconds."""
    loop = asyncio.get_running_loop()
    transport, receiver = await loop.create_connection(
        lambda: BareReceiver(total), "127.0.0.1", port
    )
    began = time.perf_counter()
    transport.write(str(total).encode())
    await receiver.done
    elapsed = time.perf_counter() - began
    transport.close()
    return elapsed
