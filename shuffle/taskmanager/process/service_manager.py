"""Reports the state of the process to systemd, as sd_notify(3) describes.

Loaded only if a service manager has set ``NOTIFY_SOCKET``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

logger = logging.getLogger(__name__)

SOCKET_VARIABLE: Final = "NOTIFY_SOCKET"
WATCHDOG_VARIABLE: Final = "WATCHDOG_USEC"
WATCHDOG_PID_VARIABLE: Final = "WATCHDOG_PID"

PINGS: Final = 3
"""Number of messages in the time after which systemd kills a silent process."""

PERIOD_SECONDS: Final = 5.0
"""Maximum time between two messages while the TaskManager drains."""

EXTENSION_SECONDS: Final = 30.0
"""Minimum time that systemd waits after each message while the TaskManager drains."""

MARGIN_SECONDS: Final = 5.0
"""Time for the process to end after its own deadline."""

_STATUS: Final = {
    "starting": "Starting: reading the journals",
    "ready": "Ready",
    "draining": "Draining: new map outputs are refused, readers are served",
    "stopped": "Stopped",
}


class ServiceManager:
    """Sends messages to systemd; none of them blocks.

    If the socket is full, a message is sent together with the next one.

    Args:
        address: The socket: a path, or a name in the abstract namespace that begins with ``@``.
        watchdog_seconds: Time after which systemd kills a silent process; None: never.
    """

    def __init__(self, address: str, watchdog_seconds: float | None = None) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        pause = PERIOD_SECONDS
        self._watched = watchdog_seconds is not None
        if watchdog_seconds is not None:
            pause = min(pause, watchdog_seconds / PINGS)
        self._pause_seconds = pause
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._unsent: dict[str, str] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._shown = ""

    @classmethod
    def take(cls, environment: MutableMapping[str, str]) -> ServiceManager | None:
        """Return the service manager of the environment, and remove its variables.

        Without them, child processes do not notify it.

        Returns:
            None: There is none, or its address is not a Unix socket.
        """
        address = environment.pop(SOCKET_VARIABLE, "")
        microseconds = environment.pop(WATCHDOG_VARIABLE, "")
        pid = environment.pop(WATCHDOG_PID_VARIABLE, "")
        if not address.startswith(("/", "@")) or len(address) == 1:
            if address:
                logger.warning("NOTIFY_SOCKET is not a Unix socket: systemd is not notified")
            return None
        seconds = None
        if pid in ("", str(os.getpid())) and microseconds.isdecimal() and int(microseconds):
            seconds = int(microseconds) / 1e6
        return cls(address, seconds)

    def ready(self, state: Callable[[], str]) -> None:
        """Report that the service has started, then its state and that the loop runs.

        A loop that hangs sends nothing, so systemd restarts the service.

        Args:
            state: Returns the state of the TaskManager.
        """
        self.notify(READY="1")
        self._tick(asyncio.get_running_loop(), state)

    def stopping(self, seconds: float) -> None:
        """Report that the service stops, and ends after ``seconds`` at the latest.

        systemd does not kill it earlier, even if ``TimeoutStopSec`` is shorter.
        """
        self.notify(STOPPING="1", EXTEND_TIMEOUT_USEC=_microseconds(seconds + MARGIN_SECONDS))

    def close(self) -> None:
        """Send nothing more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        self._socket.close()

    def notify(self, **fields: str) -> None:
        """Send variables, as sd_notify(3) lists them."""
        self._unsent |= fields
        message = "\n".join(f"{name}={value}" for name, value in self._unsent.items())
        try:
            self._socket.sendto(message.encode(), self._address)
        except BlockingIOError:
            return
        except OSError as error:
            logger.debug("cannot notify the service manager: %s", error)
        self._unsent.clear()

    def _tick(self, loop: asyncio.AbstractEventLoop, state: Callable[[], str]) -> None:
        fields = {"WATCHDOG": "1"} if self._watched else {}
        now = state()
        if now != self._shown:
            self._shown = now
            fields["STATUS"] = _STATUS.get(now, now)
        if now == "draining":
            fields["EXTEND_TIMEOUT_USEC"] = _microseconds(EXTENSION_SECONDS)
        if fields:
            self.notify(**fields)
        self._timer = loop.call_later(self._pause_seconds, self._tick, loop, state)


def _microseconds(seconds: float) -> str:
    return str(int(seconds * 1e6))
