"""An event loop on virtual time, and the processes whose work it runs.

The loop has no selector. While a handle is ready it runs; otherwise time moves on to the next
timer. Each handle belongs to the process of its context, and is dropped once that is dead: so a
process can be killed at any await.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from contextvars import Context, ContextVar, copy_context
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

    def __init__(self, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
        super().__init__(loop=loop)
        self._serial = next(_serials)

    def __hash__(self) -> int:
        return self._serial


class SimulatedTask(asyncio.Task[T]):
    """A task whose hash does not depend on its address, and which knows its process."""

    def __init__(self, *args: Any, **named: Any) -> None:
        self._serial = next(_serials)
        self.process = PROCESS.get()
        super().__init__(*args, **named)

    def __hash__(self) -> int:
        return self._serial


class Stuck(Exception):
    """No callback is left, and the simulation has not ended."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop without selector, socket or thread.

    Attributes:
        network: Connects its processes.
        strands: Run its blocking calls.
    """

    network: Network
    strands: Strands

    def __init__(self) -> None:
        super().__init__()
        self._now = FIRST_SECOND
        self._clock_resolution = 1e-9
        self.handles_run = 0

    def time(self) -> float:
        return self._now

    def wall_clock(self) -> float:
        """Return the wall clock of the current process's host, in seconds since 1970."""
        process = PROCESS.get()
        return WALL_CLOCK + self._now + (0.0 if process is None else process.clock_offset)

    def create_future(self) -> asyncio.Future[Any]:
        return SimulatedFuture(loop=self)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

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

    def _process_events(self, event_list: object) -> None:
        """Do nothing: there is no selector."""

    def _write_to_self(self) -> None:
        """Do nothing: there is no selector to wake."""

    def _run_once(self) -> None:
        """Run the ready handles; if none is, move on to the next timer."""
        internals: Any = self
        ready, scheduled = internals._ready, internals._scheduled
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        if not ready:
            if not scheduled:
                raise Stuck("no timer, no event")
            self._now = max(self._now, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self._now:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(PROCESS)
            if process is not None and not process.is_alive:
                process.buried.append(handle)
                continue
            self._now += HANDLE_SECONDS
            self.handles_run += 1
            handle._run()
        handle = None  # refers to what it ran


def _settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
