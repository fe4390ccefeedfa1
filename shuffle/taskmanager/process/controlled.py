"""The data process's end of the socket to its supervisor."""

from __future__ import annotations

import asyncio
import ctypes
import json
import signal
import socket
from typing import TYPE_CHECKING, Final, NamedTuple

from ....protocol.errors import SluiceError
from ....transport.loop import start_task
from ..config.taskmanager_config import TaskManagerConfig
from .control import Answer, Request, receive, receive_first, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..store.shuffle_page import ShufflePage
    from ..taskmanager import TaskManager

_PR_SET_PDEATHSIG: Final = 1


class DataProcessPlace(NamedTuple):
    """The place of a data process among those of its TaskManager.

    Attributes:
        process: Its index.
        processes: How many there are.
        control: Descriptor of the socket to the supervisor.
    """

    process: int
    processes: int
    control: int

    def __str__(self) -> str:
        return f"{self.process}/{self.processes}:{self.control}"

    @classmethod
    def parse(cls, text: str) -> DataProcessPlace:
        """Read the form of ``str()``.

        Raises:
            ValueError: It is another text.
        """
        process, _, rest = text.partition("/")
        processes, _, control = rest.partition(":")
        place = cls(int(process), int(processes), int(control))
        if not 0 <= place.process < place.processes:
            raise ValueError(f"there is no process {process} of {processes}")
        return place


class Supervised:
    """The data process's side of its supervisor.

    Args:
        sock: The socket to the supervisor.
        config: The configuration of all processes.
    """

    def __init__(self, sock: socket.socket, config: TaskManagerConfig) -> None:
        self._sock = sock
        self.config = config
        """The last configuration of all processes."""

    @classmethod
    def begin(cls, control: int) -> Supervised:
        """Receive the configuration from a supervisor, whose end is the end of this process, too.

        Raises:
            OSError: The descriptor is not a socket.
            EOFError: The supervisor is gone.
        """
        _end_with_parent()
        sock = socket.socket(fileno=control)
        return cls(sock, _config(receive_first(sock).config))

    async def serve(
        self,
        taskmanager: TaskManager,
        stop: Callable[[], None],
        reload: Callable[[], None],
        change: Callable[[], None],
    ) -> None:
        """Answer the supervisor until it is gone.

        Args:
            taskmanager: The TaskManager of this process, which has started.
            stop: Begins the stop of this process; idempotent.
            reload: Begins to load files and :attr:`config` again.
            change: Takes over what may change of :attr:`config`.

        Cancellation: closes the socket; drains that were asked for go on.
        """
        reader, writer = await asyncio.open_unix_connection(sock=self._sock)
        answering: set[asyncio.Task[None]] = set()
        try:
            while (request := await receive(reader, Request)) is not None:
                if request.what == "stop":
                    stop()
                elif request.what == "reload":
                    if request.config:
                        self.config = _config(request.config)
                    reload()
                elif request.what == "change":
                    self.config = _config(request.config)
                    change()
                task = start_task(_answer(taskmanager, request, writer))
                answering.add(task)
                task.add_done_callback(answering.discard)
        finally:
            writer.close()
            for task in answering:
                task.cancel()
            await asyncio.gather(*answering, return_exceptions=True)


async def _answer(taskmanager: TaskManager, request: Request, writer: asyncio.StreamWriter) -> None:
    busy, failed = False, ""
    page: ShufflePage | tuple[str, ...] = ()
    try:
        if request.what == "drain":
            async with asyncio.timeout(request.wait_seconds):
                await taskmanager.drain(migrate=request.migrate)
        elif request.what == "undrain":
            await taskmanager.undrain()
        elif request.what == "shuffle" and request.shuffle is not None:
            page = await _page(taskmanager, request.shuffle)
    except TimeoutError:
        busy = True
    except (SluiceError, OSError) as error:
        failed = str(error)
    send(writer, Answer.of(request, taskmanager.status(), busy=busy, error=failed, page=page))


async def _page(
    taskmanager: TaskManager, query: tuple[str, int, int, int]
) -> ShufflePage | tuple[str, ...]:
    """Return a page of a shuffle, or the applications of its name here if it is not one."""
    from ..store.shuffle_page import ShuffleQuery, UnknownShuffle

    try:
        return await taskmanager.inspect(ShuffleQuery(*query))
    except UnknownShuffle as error:
        return error.found


def _config(text: str) -> TaskManagerConfig:
    # Not validated as JSON, which takes no paths of the validators that expand them.
    return TaskManagerConfig.model_validate(json.loads(text))


def _end_with_parent() -> None:
    """Let the kernel kill this process when the supervisor ends, on Linux.

    A process that starts, or whose loop hangs, does not see the end of the socket. Committed data
    is safe.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
