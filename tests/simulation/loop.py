"""An event loop on virtual time, and the processes whose work it runs.

The loop has no selector. While a handle is ready it runs; otherwise time moves on to the next
timer. Each handle belongs to the process of its context, and is dropped once that is dead: so a
process can be killed at any await.

The threads of :mod:`.strands` run the loop, one at a time.
"""

from __future__ import annotations

import _thread
import asyncio
import itertools
import sys
from collections import deque
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.network import Network
    from tests.simulation.strands import Strands

T = TypeVar("T")

FIRST_SECOND: Final = 1000.0
"""Virtual time at which a simulation begins, in seconds."""

HANDLE_SECONDS: Final = 5e-6
"""Virtual time that one handle takes."""

WALL_CLOCK: Final = 1_800_000_000.0
"""Wall clock at the virtual time zero, in seconds since 1970."""

_serials = itertools.count(1)


class Process:
    """One simulated operating system process.

    Args:
        name: Name for the trace.
        host: Address of its host.
    """

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.is_alive = True
        self.clock_offset = 0.0
        """Seconds that the host's wall clock has jumped."""
        self.boot_id = ""
        """Id of the start of its host, which a power cut changes."""
        self.descriptors: dict[int, None] = {}
        """Files that it has open."""
        self.deaths: list[asyncio.Future[None]] = []
        """Completed when it ends."""
        self.buried: list[object] = []
        """Objects of killed processes: none of their ``finally`` clauses may run."""
        self.context: Context = copy_context()
        self.context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        return self.name


PROCESS: Final[ContextVar[Process | None]] = ContextVar("PROCESS", default=None)


class SimulatedFuture(asyncio.Future[T]):
    """A future whose hash does not depend on its address."""

    __slots__ = ("_serial",)

    _serial: int
    """Set when it is hashed first."""

    def __hash__(self) -> int:
        try:
            return self._serial
        except AttributeError:
            self._serial = next(_serials)
            return self._serial


class SimulatedTask(asyncio.Task[T]):
    """A task whose hash does not depend on its address, and which knows its process."""

    def __init__(self, *args: Any, **named: Any) -> None:
        self._serial = next(_serials)
        self.process = PROCESS.get()
        super().__init__(*args, **named)

    def __hash__(self) -> int:
        return self._serial


class SimulatedHandle(asyncio.Handle):
    """A call that waits for its turn or its time, without what only debugging needs."""

    __slots__ = ("_when",)

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: SimulatedLoop,
        context: Context | None,
        when: float,
    ) -> None:
        self._context = copy_context() if context is None else context
        self._callback: Any = callback
        self._args: Any = args
        self._loop = loop
        self._cancelled = False
        self._repr = self._source_traceback = None
        self._when = when

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None

    def when(self) -> float:
        """Return the time of a timer."""
        return self._when


class Stuck(Exception):
    """No callback is left, and the simulation has not ended."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop without selector and socket.

    Attributes:
        network: Connects its processes.
        strands: Run its blocking calls.
    """

    network: Network
    strands: Strands

    def __init__(self) -> None:
        super().__init__()
        self._now = FIRST_SECOND
        self._queue: deque[SimulatedHandle] = deque()
        """Handles that are ready."""
        self._timers: list[tuple[float, int, SimulatedHandle]] = []
        """A heap of the others; of two with the same time the older one is first."""
        self._timer_serials = itertools.count()
        self._turn = 0
        """Handles that run before the next look at the timers."""
        self._ended = _thread.allocate_lock()
        self._failure: BaseException | None = None
        self.handles_run = 0

    def run_forever(self) -> None:
        """Let threads run the loop until :meth:`stop`; raise the error that ends it."""
        self._ended.acquire()
        _thread.start_new_thread(self.lead, ())
        self._ended.acquire()
        if self._failure is not None:
            raise self._failure

    def lead(self) -> None:
        """Run handles in this thread, until the end or until another thread leads."""
        asyncio._set_running_loop(self)
        sys.set_asyncgen_hooks(
            firstiter=self._asyncgen_firstiter_hook,  # type: ignore[attr-defined]
            finalizer=self._asyncgen_finalizer_hook,  # type: ignore[attr-defined]
        )
        internals: Any = self
        try:
            while not internals._stopping:
                self._run_once()
        except BaseException as error:  # noqa: BLE001 - run_forever raises it
            self._failure = error
        self._ended.release()

    def time(self) -> float:
        return self._now

    def wall_clock(self) -> float:
        """Return the wall clock of the current process's host, in seconds since 1970."""
        process = PROCESS.get()
        return WALL_CLOCK + self._now + (0.0 if process is None else process.clock_offset)

    def create_future(self) -> asyncio.Future[Any]:
        return SimulatedFuture(loop=self)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = SimulatedHandle(callback, args, self, context, 0.0)
        self._queue.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> SimulatedHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> SimulatedHandle:
        handle = SimulatedHandle(callback, args, self, context, when)
        heappush(self._timers, (when, next(self._timer_serials), handle))
        return handle

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run a blocking call in a strand."""
        future: asyncio.Future[T] = self.create_future()

        def call() -> None:
            try:
                result = func(*args)
            except BaseException as error:  # noqa: BLE001 - the waiter raises it
                self.call_soon(_settle, future, None, error)
            else:
                self.call_soon(_settle, future, result, None)

        self.strands.start(call)
        return future

    async def getaddrinfo(  # type: ignore[override]
        self, host: str, port: int, **_: Any
    ) -> list[tuple[Any, ...]]:
        """Return the address itself: hosts have no names."""
        return await self.network.addresses(host, port)

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str, port: int, **_: Any
    ) -> tuple[Any, Any]:
        """Connect over the simulated network."""
        return await self.network.connect(protocol_factory, host, port)

    async def connect_accepted_socket(
        self, protocol_factory: Callable[[], Any], sock: Any, **_: Any
    ) -> tuple[Any, Any]:
        """Give an accepted connection its protocol."""
        return await self.network.begin(protocol_factory, sock)

    def add_reader(  # type: ignore[override]
        self, fd: Any, callback: Callable[..., object], *args: Any
    ) -> None:
        """Watch a listening socket."""
        fd.watch(callback)

    def remove_reader(self, fd: Any) -> bool:
        return bool(fd.watch(None))

    def bury(self, process: Process) -> None:
        """Keep all tasks of a process that is killed, so that they never continue."""
        process.is_alive = False
        process.buried += [
            task for task in asyncio.all_tasks(self) if getattr(task, "process", None) is process
        ]

    def _run_once(self) -> None:
        """Run a ready handle; if none is ready, move on to the next timer."""
        ready = self._queue
        if not self._turn:
            timers = self._timers
            while timers and timers[0][2]._cancelled:
                heappop(timers)
            if not ready:
                if not timers:
                    raise Stuck("no timer, no event")
                self._now = max(self._now, timers[0][0])
            while timers and timers[0][0] <= self._now:
                ready.append(heappop(timers)[2])
            self._turn = len(ready)
        self._turn -= 1
        handle = ready.popleft()
        if handle._cancelled:
            return
        process = handle._context.get(PROCESS)
        if process is not None and not process.is_alive:
            process.buried.append(handle)
            return
        self._now += HANDLE_SECONDS
        self.handles_run += 1
        try:
            handle._context.run(handle._callback, *handle._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - the handler gets it, as in asyncio
            message = f"exception in the callback {handle._callback!r}"
            self.call_exception_handler({"message": message, "exception": error, "handle": handle})


def _settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
