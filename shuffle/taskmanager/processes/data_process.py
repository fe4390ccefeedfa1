"""One data process, as its supervisor sees it: it is started, asked, and started again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import structs

from ....protocol.errors import SluiceError
from ....transport.loop import start_task
from ..process.control import Answer, Request, encode, receive, send
from ..process.controlled import DataProcessPlace
from ..process.signals import FAILURE
from ..status.status import TaskManagerStatus
from .combined_status import combine, remains

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS: Final = 0.5
"""Pause before a process that has ended is started again. It doubles while runs are shorter than
LONGEST_PAUSE_SECONDS."""

LONGEST_PAUSE_SECONDS: Final = 30.0
"""Longest pause. A process that ran longer is started again at once."""

START_SECONDS: Final = 600.0
"""Time for a start, in which journals are read. After it the process is killed."""

WATCH_SECONDS: Final = 10.0
"""Pause between two requests that show whether a process answers, and their deadline."""

SILENT_SECONDS: Final = 60.0
"""A process is killed if a request times out this long after the first one that did."""


class DataProcessEnded(SluiceError):
    """A data process has ended, so it does not answer."""


class DataProcess:
    """A data process, from :meth:`start` to :meth:`ended`.

    Args:
        process: Its index.
        processes: How many there are.
        command: The command of this TaskManager, to which the place is appended.
        config: Returns the configuration of all processes, as JSON.
        on_ready: Called with it each time that it begins to serve.
    """

    def __init__(
        self,
        process: int,
        processes: int,
        command: Sequence[str],
        config: Callable[[], str],
        on_ready: Callable[[DataProcess], None],
    ) -> None:
        self.index: Final = process
        self._processes = processes
        self._command = command
        self._config = config
        self._on_ready = on_ready
        self._popen: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._is_ending = False
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Answer]] = {}
        self._running: asyncio.Task[None] | None = None
        self._stops = asyncio.Event()
        self.first_start: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Completes when it serves for the first time, or fails."""
        self.starts = 0
        self.configured = ""
        """The configuration with which it was started last."""
        self.ready = asyncio.Event()
        """Set while it serves."""
        self._silent_since = 0.0
        self.status = TaskManagerStatus()
        """The last status that is known."""
        self.remains = TaskManagerStatus()
        """The totals of its runs that have ended."""
        self._exit_code = 0
        self._must_end_in_order = False
        self.last_exit = ""
        """How its last run ended."""

    @property
    def pid(self) -> int:
        """Its process id; 0 while it does not run."""
        return 0 if self._popen is None else self._popen.pid

    @property
    def is_silent(self) -> bool:
        """Whether it did not answer the last request in time."""
        return self._silent_since > 0

    @property
    def ended_in_order(self) -> bool:
        """Whether its exit code was 0, if it served when it was stopped."""
        return self._exit_code == 0 or not self._must_end_in_order

    def start(self) -> None:
        """Start the process, and again whenever it ends, until :meth:`stop`."""
        self._running = start_task(self._run())

    async def ask(self, request: Request, seconds: float) -> Answer:
        """Ask the process, and take over the status in its answer.

        Kills the process if requests have timed out for SILENT_SECONDS.

        Args:
            request: The request; its number is replaced.
            seconds: Deadline of the answer, after ``request.wait_seconds``.

        Raises:
            DataProcessEnded: It does not run, or ends before it answers.
            TimeoutError: It does not answer.
            SluiceError: The request failed.

        Cancellation: safe; the request stays sent.
        """
        writer = self._writer
        if writer is None:
            raise DataProcessEnded(f"Data process {self.index} does not run: {self.last_exit}")
        number = next(self._numbers)
        self._asked[number] = answer = asyncio.get_running_loop().create_future()
        try:
            send(writer, structs.replace(request, number=number))
            async with asyncio.timeout(request.wait_seconds + seconds):
                found: Answer = await answer
        except TimeoutError:
            self._note_silence()
            raise
        finally:
            del self._asked[number]
        self._silent_since = 0.0
        if found.error:
            raise SluiceError(f"Data process {self.index}: {found.error}")
        return found

    def _note_silence(self) -> None:
        now = time.monotonic()
        self._silent_since = self._silent_since or now
        if now - self._silent_since > SILENT_SECONDS:
            logger.error("data process %d does not answer: killing it", self.index)
            self._send_signal(signal.SIGKILL)

    def tell(self, request: Request) -> None:
        """Send a request whose answer nobody waits for."""
        if self._writer is not None:
            send(self._writer, request)

    def _send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self._popen is not None:
            with contextlib.suppress(ProcessLookupError):
                self._popen.send_signal(number)

    def stop(self) -> None:
        """Stop the process in order, and do not start it again."""
        self._stops.set()
        if self._writer is not None and self.ready.is_set():
            self._must_end_in_order = True
            send(self._writer, Request("stop"))
        elif not self._is_ending:  # it does not listen yet
            self._send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process, and do not start it again."""
        self._stops.set()
        self._send_signal(signal.SIGKILL)

    async def ended(self) -> None:
        """Wait for the end of the last run.

        Cancellation: kills the process.
        """
        if self._running is not None:
            await self._running

    async def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._stops.is_set():
            began = time.monotonic()
            try:
                self._exit_code = await self._run_once()
                self.last_exit = f"its exit code was {self._exit_code}"
            except Exception as error:  # noqa: BLE001 - the process must be started again
                self._exit_code = FAILURE
                self.last_exit = f"{type(error).__name__}: {error}"
            if self._stops.is_set():
                return
            if not self.first_start.done():
                self.first_start.set_exception(
                    DataProcessEnded(f"Data process {self.index} could not start: {self.last_exit}")
                )
                return
            if time.monotonic() - began > LONGEST_PAUSE_SECONDS:
                pause = 0.0
            logger.error(
                "data process %d has ended, %s: starting it again in %g s",
                self.index,
                self.last_exit,
                pause,
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stops.wait()
            pause = min(max(2 * pause, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)

    async def _run_once(self) -> int:
        """Start the process, receive its answers until it ends, and return its exit code."""
        own, its = socket.socketpair()
        with own:
            with its:
                self.configured = self._config()
                own.sendall(encode(Request("reload", config=self.configured)))
                place = DataProcessPlace(self.index, self._processes, its.fileno())
                popen = self._popen = await asyncio.create_subprocess_exec(
                    *self._command,
                    f"--data-process={place}",
                    stdin=subprocess.DEVNULL,
                    pass_fds=(its.fileno(),),
                    start_new_session=True,  # Ctrl-C is for the supervisor, which stops it
                )
            self.starts += 1
            self._is_ending = False
            if self._stops.is_set():  # meanwhile
                popen.kill()
            try:
                await self._receive(own)
                return await popen.wait()
            except BaseException:
                popen.kill()
                await popen.wait()
                raise
            finally:
                self._popen = None

    async def _receive(self, own: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=own)
        self._writer = writer
        watch = start_task(self._watch())
        try:
            while (answer := await receive(reader, Answer)) is not None:
                self.status = TaskManagerStatus.from_json(msgspec.json.decode(answer.status))
                asked = self._asked.get(answer.number)
                if asked is not None and not asked.done():
                    asked.set_result(answer)
        finally:
            self._end_run()
            writer.close()
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    def _end_run(self) -> None:
        """Record the end of a run: at once, so that no snapshot lacks its totals."""
        self._writer = None
        self._is_ending = True
        self.ready.clear()
        self._silent_since = 0.0
        self.remains = combine((self.remains, remains(self.status)))
        self.status = TaskManagerStatus(
            taskmanager_id=self.status.taskmanager_id,
            address=self.status.address,
            socket_path=self.status.socket_path,
        )
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(DataProcessEnded(f"Data process {self.index} has ended"))

    async def _watch(self) -> None:
        """Wait until the process serves: until then it does not answer. Then notice its silence."""
        try:
            await self.ask(Request(), START_SECONDS)
        except TimeoutError:
            logger.error(
                "data process %d has not started within %g s: killing it", self.index, START_SECONDS
            )
            self._send_signal(signal.SIGKILL)
            return
        self.ready.set()
        self._on_ready(self)
        if not self.first_start.done():
            self.first_start.set_result(None)
        while not self._stops.is_set():  # a process that hangs does not report it
            await asyncio.sleep(WATCH_SECONDS)  # the interval of the questions
            with contextlib.suppress(SluiceError, TimeoutError):
                await self.ask(Request(), WATCH_SECONDS)
