"""One end of a simulated connection: the transport of asyncio, and the kernel below it."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextvars import Context

    from tests.simulation.loop import Process
    from tests.simulation.network import Network

KERNEL_BYTES: Final = 64 * 1024
"""Bytes that the kernels of both sides hold for one direction."""

_END: Final = b""
"""Arrives after the last bytes of a side."""


class _Socket:
    """The socket of a connection."""

    import socket as _socket

    family = _socket.AF_INET

    def __init__(self, name: tuple[str, int]) -> None:
        self._name = name

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def setsockopt(self, *_: object) -> None:
        """Ignore it."""


class SimulatedTransport(asyncio.Transport):
    """One end of a connection.

    Bytes that the kernel has not taken are kept as views, not as copies, as uvloop keeps them: a
    buffer that is used again too early changes what the other side gets.

    Args:
        network: Delays what it sends.
        process: The process that has it.
        name: Host and port of this end.
        peername: Host and port of the other end.
    """

    peer: SimulatedTransport

    def __init__(
        self, network: Network, process: Process, name: tuple[str, int], peername: tuple[str, int]
    ) -> None:
        super().__init__()
        self.process = process
        self.host, self.other_host = name[0], peername[0]
        self.peername = peername
        self._network = network
        self._loop = network.loop
        self._name = name
        self._context: Context = process.context
        self._protocol: Any = None
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._kernel_bytes = 0
        """Bytes on their way to the other side, and those that it has not read."""
        self._flight: deque[tuple[float, bytes]] = deque()
        self._is_flying = False
        self._last_arrival = 0.0
        self._received: deque[bytes] = deque()
        self._low, self._high = 16 * 1024, 64 * 1024
        self._is_paused = False
        self._is_reading = True
        self._read_due = False
        self._is_closing = False
        self._is_gone = False
        """Whether this end no longer exists: what arrives is answered by a reset."""
        self._end_sent = False
        self._silence: asyncio.Handle | None = None
        network.transports[self] = None

    def __hash__(self) -> int:
        return self._name[1] * 65536 + self.peername[1]

    def __eq__(self, other: object) -> bool:
        return self is other

    def start(self, protocol: Any, started: asyncio.Future[None]) -> None:
        """Begin to call a protocol."""
        self._protocol = protocol
        self._loop.call_soon(self._made, started)

    def _made(self, started: asyncio.Future[None]) -> None:
        if self._protocol is not None and not self._is_gone:
            self._protocol.connection_made(self)
            self._read_soon()
        if not started.done():
            started.set_result(None)

    # ---- asyncio.Transport -----------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_gone or self._end_sent or not len(data):
            return
        view = memoryview(data).cast("B")
        self._unsent.append(view)
        self._unsent_bytes += len(view)
        self._pump()
        self._maybe_pause()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        for data in list_of_data:
            self.write(data)

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None or low is None:
            raise ValueError("both limits are needed")
        self._low, self._high = low, high
        self._maybe_pause()

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self._is_reading = False
        if not self._unsent:
            self._send_end()
            self._loop.call_soon(self._lose, None, context=self._context)

    def abort(self) -> None:
        self._force(None)

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        if not self._is_closing:
            self._is_reading = True
            self._read_soon()

    def is_reading(self) -> bool:
        return self._is_reading

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "socket":
            return _Socket(self._name)
        return {"peername": self.peername, "sockname": self._name}.get(name, default)

    # ---- faults ----------------------------------------------------------------------------

    def reset(self, number: int = errno.ECONNRESET) -> None:
        """End this side with an error of the kernel."""
        self._loop.call_soon(
            self._force, OSError(number, os.strerror(number)), context=self._context
        )

    def forget(self) -> None:
        """Lose this end without a word: the other one stays half-open until it sends."""
        self._is_gone = True
        self.reset(errno.ECONNABORTED)
        self._probe_later()

    def watch_silence(self, seconds: float) -> None:
        """End this side after a time, unless the other host can be reached by then."""
        if self._silence is None:
            self._silence = self._loop.call_later(seconds, self._silent, context=self._context)

    def die(self, *, silently: bool) -> None:
        """Lose this end because its process is dead."""
        self._network.transports.pop(self, None)
        if self._is_gone:
            return
        if not silently:
            self._end_or_reset()
        self._is_gone = True
        self._probe_later()

    def resend(self) -> None:
        """Let bytes that could not pass move again."""
        if self._flight and not self._is_flying:
            self._fly()

    def drop_received(self) -> None:
        """Read what has arrived, and drop it."""
        while self._received:
            self.peer._acknowledged(len(self._received.popleft()))

    # ---- the kernel ------------------------------------------------------------------------

    def _pump(self) -> None:
        """Move bytes into the kernel, as far as it has room."""
        while self._unsent and self._kernel_bytes < KERNEL_BYTES:
            view = self._unsent.popleft()
            room = KERNEL_BYTES - self._kernel_bytes
            if len(view) > room:
                self._unsent.appendleft(view[room:])
                view = view[:room]
            self._unsent_bytes -= len(view)
            self._kernel_bytes += len(view)
            self._send(bytes(view))

    def _send(self, data: bytes) -> None:
        delay = self._network.delay(self.host, self.other_host)
        self._last_arrival = max(self._last_arrival, self._loop.time() + delay)
        self._flight.append((self._last_arrival, data))
        if not self._is_flying:
            self._fly()

    def _fly(self) -> None:
        self._is_flying = True
        self._loop.call_at(self._flight[0][0], self._arrive, context=self._network.context)

    def _arrive(self) -> None:
        """Deliver the first bytes under way. The kernel does it, whether the process lives."""
        self._is_flying = False
        if not self._network.passes(self.host, self.other_host):
            self._network.held[self] = None  # until the hosts can reach each other again
            return
        while self._flight and self._flight[0][0] <= self._loop.time():
            self.peer._take(self._flight.popleft()[1])
        if self._flight:
            self._fly()

    def _take(self, data: bytes) -> None:
        if self._is_gone:
            if data:
                self._answer_reset()
            return
        self._received.append(data)
        self._read_soon()

    def _answer_reset(self) -> None:
        """Tell the other side that this end does not exist."""
        other = self.peer
        if not other._is_gone and self._network.passes(self.host, self.other_host):
            delay = self._network.delay(self.host, self.other_host)
            error = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
            self._loop.call_later(delay, other._force, error, context=other._context)

    def _probe_later(self) -> None:
        """Let the other side's keepalive find out that this end does not exist."""
        seconds = self._network.silence_seconds()
        self._loop.call_later(seconds, self._probed, context=self._network.context)

    def _probed(self) -> None:
        if not self._network.passes(self.host, self.other_host):
            self._probe_later()
        else:
            self._answer_reset()

    def _end_or_reset(self) -> None:
        if self._received:
            self._answer_reset()
        else:
            self._send_end()

    def _send_end(self) -> None:
        if not self._end_sent:
            self._end_sent = True
            self._send(_END)

    def _acknowledged(self, count: int) -> None:
        """Note that the other side has read bytes."""
        self._kernel_bytes -= count
        if not self._is_gone and self._unsent:
            delay = self._network.delay(self.other_host, self.host)
            self._loop.call_later(delay, self._writable, context=self._context)

    def _writable(self) -> None:
        if self._is_gone:
            return
        self._pump()
        if self._is_paused and self._unsent_bytes <= self._low:
            self._is_paused = False
            self._protocol.resume_writing()
        if self._is_closing and not self._unsent and not self._end_sent:
            self._send_end()
            self._lose(None)

    def _maybe_pause(self) -> None:
        if not self._is_paused and self._unsent_bytes > self._high and self._protocol is not None:
            self._is_paused = True
            self._protocol.pause_writing()

    # ---- the protocol ----------------------------------------------------------------------

    def _read_soon(self) -> None:
        if self._received and self._is_reading and not self._read_due and self._protocol:
            self._read_due = True
            self._loop.call_soon(self._read, context=self._context)

    def _read(self) -> None:
        self._read_due = False
        if not self._received or not self._is_reading or self._is_gone:
            return
        data = self._received[0]
        if data == _END:
            self._received.clear()
            if not self._protocol.eof_received():
                self.close()
            return
        target = self._protocol.get_buffer(-1)
        count = min(len(target), len(data))
        target[:count] = data[:count]
        del target
        if count < len(data):
            self._received[0] = data[count:]
        else:
            self._received.popleft()
        self.peer._acknowledged(count)
        self._protocol.buffer_updated(count)
        self._read_soon()

    def _force(self, error: BaseException | None) -> None:
        """End this side at once; bytes that are not sent are lost."""
        if self._is_gone and self._protocol is None:
            return
        self._is_closing = True
        self._is_reading = False
        self._unsent.clear()
        self._unsent_bytes = 0
        if error is None:
            self._end_or_reset()
        self._is_gone = True
        self._loop.call_soon(self._lose, error, context=self._context)

    def _lose(self, error: BaseException | None) -> None:
        self._is_gone = True
        self._network.transports.pop(self, None)
        if self._silence is not None:
            self._silence.cancel()
        if self._received and error is None:
            self._answer_reset()
        self.drop_received()
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(error)

    def _silent(self) -> None:
        self._silence = None
        if not self._is_gone and self._network.is_apart(self.host, self.other_host):
            self._force(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))
            self._probe_later()
