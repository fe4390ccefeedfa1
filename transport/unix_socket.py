"""Listens on the Unix socket of a TaskManager and makes its file again if it is removed.

If another program removes the file (a cleaner of temporary files, the end of a login session, a
failed second start), the socket still listens, but clients on this host cannot find it.
"""

import asyncio
import contextlib
import errno
import logging
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ..protocol.errors import ErrorCode, SluiceError
from .acceptor import Acceptor, InNeed
from .trusted_path import require_trusted

logger = logging.getLogger(__name__)

CHECK_SECONDS: Final = 5.0
"""Interval between checks of the file; one takes a system call of microseconds."""


class UnixSocket:
    """Listens on a Unix socket from :meth:`start` to :meth:`stop_accepting`.

    Args:
        path: The socket file; missing directories above it are made. Its directory must be one in
            which other users cannot replace it.
        mode: Permissions of the file.
        factory: Makes the protocol of a connection.
        backlog: Connections that may wait in the kernel.
        in_need: What to do when the process is out of descriptors.
    """

    def __init__(
        self,
        path: Path,
        mode: int,
        factory: Callable[[], asyncio.BaseProtocol],
        backlog: int,
        in_need: InNeed,
    ) -> None:
        self._path = path
        self._mode = mode
        self._factory = factory
        self._backlog = backlog
        self._in_need = in_need
        self._acceptors: list[Acceptor] = []
        """The last one listens. The others are closed, but their connections may be starting."""
        self._made: tuple[int, int] | None = None
        """Device and inode of the file that this object made."""
        self._timer: asyncio.TimerHandle | None = None
        self._refusal = ""
        """The logged reason why the file could not be made again."""
        self.restorations = 0
        """How often the file was made again."""

    def start(self) -> None:
        """Make the file, listen, and watch the file.

        Raises:
            CONFIGURATION: Another process answers there, the file cannot be made, or another user
                could replace it.
        """
        try:
            self._listen()
        except OSError as error:
            raise SluiceError(
                f"Cannot listen on the Unix socket {self._path}",
                code=ErrorCode.CONFIGURATION,
                value=error.strerror or error,
                remedy="Stop the TaskManager that has it, or set transport.socket_path",
            ) from error
        self._watch()

    def stop_accepting(self) -> None:
        """Stop listening and remove the file; accepted connections stay open. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for acceptor in self._acceptors:
            acceptor.close()
        made, self._made = self._made, None
        remove_made(self._path, made)

    async def wait_started(self) -> None:
        """Wait until every accepted connection has its protocol.

        Call after :meth:`stop_accepting`. Cancellation: safe.
        """
        for acceptor in self._acceptors:
            await acceptor.wait_started()

    def _listen(self) -> None:
        path = self._path
        sock, made = bind_unix(path, self._mode)
        try:
            acceptor = Acceptor(
                sock, self._factory, self._backlog, f"the socket {path}", self._in_need
            )
        except BaseException:
            sock.close()
            remove_made(path, made)
            raise
        self._acceptors.append(acceptor)
        self._made = made

    def _watch(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._look)

    def _look(self) -> None:
        """Make the file again if it is missing or was replaced."""
        self._watch()
        with contextlib.suppress(OSError):  # making the file reports the error
            if _identity(self._path) == self._made:
                return
        before = self._acceptors[-1]
        try:
            self._listen()
        except OSError as error:
            reason = error.strerror or str(error)
            if reason != self._refusal:  # once, not every few seconds
                self._refusal = reason
                logger.error(
                    "the socket file %s was removed and cannot be made again: %s; clients on this "
                    "host cannot connect to it. The TaskManager tries again",
                    self._path,
                    reason,
                )
            return
        before.close()  # clients cannot find it
        *replaced, listening = self._acceptors
        self._acceptors = [*(each for each in replaced if each.is_starting), listening]
        self._refusal = ""
        self.restorations += 1
        logger.warning(
            "the socket file %s was removed by another program and was made again; exclude it from "
            "cleaners of temporary files, or set socket_path to a directory that they skip",
            self._path,
        )


def bind_unix(path: Path, mode: int) -> tuple[socket.socket, tuple[int, int]]:
    """Bind a Unix socket; missing directories above its file are made.

    Returns:
        The socket, and the file for :func:`remove_made`.

    Raises:
        OSError: A process answers there, the file cannot be made, or another user could replace it.
    """
    require_trusted(path.parent, 0o755)
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made: tuple[int, int] | None = None
    try:
        sock.bind(str(path))
        made = _identity(path)
        os.chmod(path, mode)
    except BaseException:
        sock.close()
        remove_made(path, made)
        raise
    return sock, made


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


def remove_made(path: Path, made: tuple[int, int] | None) -> None:
    """Remove the file that this process made, unless another process replaced it."""
    with contextlib.suppress(FileNotFoundError):
        if made is not None and _identity(path) == made:
            path.unlink()


def _remove_stale(path: Path) -> None:
    """Remove the socket file of a daemon that no longer runs.

    Raises:
        OSError: A process answers there, or the file is not a socket.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "a file that is not a socket is in the way")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a running one answers at once, or has a full backlog
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            logger.info("removing the socket file of a dead TaskManager: %s", path)
            path.unlink()
            return
        except BlockingIOError:
            pass
    raise OSError(errno.EADDRINUSE, "another TaskManager answers there")
