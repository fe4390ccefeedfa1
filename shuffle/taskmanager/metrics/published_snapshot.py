"""Snapshots that the data loop publishes, and the pages made from them.

The HTTP thread asks the data loop for a snapshot when somebody asks for a page. It asks seldom
enough to leave the data loop to its work: requests in between get the last snapshot, and each page
is made once for a snapshot, in the HTTP thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from msgspec import structs
from prometheus_client.exposition import choose_encoder

from ....transport.loop import start_task
from ..status.warnings import find_warnings
from . import application_metrics
from .metrics import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from prometheus_client import CollectorRegistry, Metric

    from ..status.status import TaskManagerState, TaskManagerStatus

    StatusSource: TypeAlias = Callable[[], TaskManagerStatus | Awaitable[TaskManagerStatus]]
    Taken: TypeAlias = TaskManagerStatus | Awaitable[TaskManagerStatus] | Exception

T = TypeVar("T")

BURST: Final = 20
"""Snapshots that may follow each other at once after a pause: a person's few requests each see the
state of their moment."""

REST_FOR_WORK: Final = 50
"""Time between snapshots, in multiples of the processor time that the data loop takes for one."""

PIECE_SECONDS: Final = 0.0002
"""Time for which a page is made before the data path gets a turn."""

REST_SECONDS: Final = 0.0005
"""Rest between two pieces: a thread that only lets go for an instant has the interpreter back
before the other one wakes up."""

MAX_FORMATS: Final = 6
"""Pages that are kept with a snapshot: metrics, with and without names, in one of two formats; and
the status, as JSON and as an event."""

_END_OF_OPENMETRICS: Final = b"# EOF\n"


class DataLoopSilent(Exception):
    """The data loop has not answered in time.

    Args:
        seconds: How long it has not.
        who: It, or the data process that is meant.
    """

    def __init__(self, seconds: float, who: str = "the data loop") -> None:
        super().__init__(f"{who} has not answered for {seconds:.1f} s")


class Page(NamedTuple):
    """A page as it is sent."""

    body: bytes
    content_type: str


@dataclass(slots=True)
class Published:
    """A snapshot with the pages made of it so far."""

    status: TaskManagerStatus
    pages: dict[str, Page] = field(default_factory=dict)


class Drained(NamedTuple):
    """The outcome of a request to drain.

    Attributes:
        state: The state of the TaskManager.
        busy: Whether it still writes, reads or moves anything.
        moved: Map outputs that are read elsewhere.
        staying: Map outputs that no other TaskManager takes.
        reason: Why they stay; empty if none does.
        unread: Directories that have not answered since the start: more map outputs may be there.
    """

    state: TaskManagerState
    busy: bool
    moved: int
    staying: int
    reason: str
    unread: list[str]


class PublishedSnapshot:
    """The data loop of a TaskManager, as its HTTP thread sees it.

    Made, and used but for :meth:`forget`, in the HTTP thread.

    Args:
        data_loop: The loop that runs the TaskManager.
        status: Makes a snapshot; called on the data loop.
        interval_seconds: Least time between two snapshots, over a few of them.
        answer_seconds: Time in which the data loop must answer.
    """

    def __init__(
        self,
        data_loop: asyncio.AbstractEventLoop,
        status: StatusSource,
        interval_seconds: float,
        answer_seconds: float,
    ) -> None:
        self._data_loop = data_loop
        self._loop = asyncio.get_running_loop()
        self._status = status
        self._interval_seconds = interval_seconds
        self._answer_seconds = answer_seconds
        self._last: Published | None = None
        self._asked: asyncio.Future[Published] | None = None
        self._collecting: asyncio.Task[None] | None = None
        self._asked_at = 0.0
        self._allowed_seconds = BURST * interval_seconds
        self._allowed_at = time.monotonic()

    async def latest(self) -> Published:
        """Return a snapshot of now, or the last one if there was one a moment ago.

        Raises:
            DataLoopSilent: The data loop does not answer.
        """
        if self._asked is None:
            if self._last is not None and not self._may_ask():
                return self._last
            self._ask()
        asked = self._asked
        if asked is None:
            raise DataLoopSilent(0.0)
        left = self._asked_at + self._answer_seconds - time.monotonic()
        if not asked.done():
            await asyncio.wait((asked,), timeout=max(0.0, left))
        if not asked.done():
            raise DataLoopSilent(time.monotonic() - self._asked_at)
        return asked.result()

    def forget(self) -> None:
        """Make the next request take a new snapshot."""
        self._last = None

    async def drain(self, drain: Callable[[], Awaitable[None]], wait_seconds: float) -> Drained:
        """Drain on the data loop, and wait for its end until a deadline.

        Raises:
            DataLoopSilent: The data loop does not answer.

        Cancellation: ends the wait, not the draining.
        """

        async def on_data_loop() -> Drained:
            busy = False
            try:
                async with asyncio.timeout(wait_seconds):
                    await drain()
            except TimeoutError:
                busy = True
            taken = self._status()
            status = await taken if isinstance(taken, Awaitable) else taken
            copies = status.copies
            unread = [each.directory for each in status.storage if each.unread]
            return Drained(status.state, busy, copies.moved, copies.staying, copies.reason, unread)

        drained = await self._answered(on_data_loop(), wait_seconds + self._answer_seconds)
        self.forget()
        return drained

    async def ask(self, question: Callable[[], Awaitable[T]]) -> T:
        """Ask the data loop something, and return the answer.

        Raises:
            DataLoopSilent: The data loop does not answer.
            SluiceError: The answer is an error.

        Cancellation: ends the work on the data loop, too.
        """

        async def on_data_loop() -> T:
            return await question()

        return await self._answered(on_data_loop(), self._answer_seconds)

    async def _answered(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Run a coroutine on the data loop, and return its result."""
        began = time.monotonic()
        try:
            answer = asyncio.run_coroutine_threadsafe(work, self._data_loop)
        except RuntimeError as ended:
            work.close()
            raise DataLoopSilent(0.0) from ended
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            raise DataLoopSilent(time.monotonic() - began) from None

    def _may_ask(self) -> bool:
        now = time.monotonic()
        most = BURST * self._interval_seconds
        self._allowed_seconds = min(self._allowed_seconds + now - self._allowed_at, most)
        self._allowed_at = now
        return self._allowed_seconds >= self._interval_seconds

    def _ask(self) -> None:
        asked = self._loop.create_future()
        try:
            self._data_loop.call_soon_threadsafe(self._take, asked)
        except RuntimeError:  # it has ended
            return
        self._asked, self._asked_at = asked, time.monotonic()

    def _take(self, asked: asyncio.Future[Published]) -> None:
        """Make a snapshot, on the data loop."""
        began = time.thread_time()  # on a busy machine others run meanwhile
        found: Taken
        try:
            found = self._status()
        except Exception as error:  # noqa: BLE001
            found = error
        seconds = time.thread_time() - began
        if isinstance(found, Awaitable):
            self._collecting = start_task(self._collect(asked, found))
        else:
            self._hand_over(asked, found, seconds)

    async def _collect(
        self, asked: asyncio.Future[Published], status: Awaitable[TaskManagerStatus]
    ) -> None:
        """Wait for the snapshots of data processes, on the loop of their supervisor."""
        found: TaskManagerStatus | Exception
        try:
            found = await status
        except Exception as error:  # noqa: BLE001
            found = error
        self._hand_over(asked, found, 0.0)

    def _hand_over(
        self, asked: asyncio.Future[Published], found: TaskManagerStatus | Exception, seconds: float
    ) -> None:
        with contextlib.suppress(RuntimeError):  # the HTTP thread has ended
            self._loop.call_soon_threadsafe(self._publish, asked, found, seconds)

    def _publish(
        self, asked: asyncio.Future[Published], found: TaskManagerStatus | Exception, seconds: float
    ) -> None:
        self._asked = None
        self._may_ask()
        self._allowed_seconds -= max(self._interval_seconds, seconds * REST_FOR_WORK)
        if isinstance(found, Exception):
            asked.set_exception(found)
            asked.exception()  # retrieved: the caller may have given up
            return
        warnings = find_warnings(found, time.time())
        self._last = Published(structs.replace(found, warnings=warnings))
        asked.set_result(self._last)


class Pages:
    """Makes the pages of snapshots.

    Metrics are made family by family, and the data path has its turn in between. The status as JSON
    is made in one piece: 4 MB of it, 20,000 channels, take about 2 ms.

    Args:
        forgive: Called with the processor time of each piece. There are as few of them as there are
            snapshots, so requests need not be answered later because of them.
    """

    def __init__(self, forgive: Callable[[float], None]) -> None:
        self._forgive = forgive
        self._shown: TaskManagerStatus | None = None
        self._metrics = registry(self._status)
        self._applications = application_metrics.registry(self._status)
        self._making = asyncio.Lock()

    async def metrics(self, published: Published, accept: str) -> Page:
        """Return the metrics in the format that a scraper prefers."""
        return await self._page(published, accept, "", self._metrics)

    async def applications(self, published: Published, accept: str) -> Page:
        """Return the metrics by application in the format that a scraper prefers."""
        return await self._page(published, accept, "applications ", self._applications)

    async def status(self, published: Published) -> Page:
        """Return the whole status as JSON."""
        content_type = "application/json; charset=utf-8"
        async with self._making:
            page = published.pages.get(content_type)
            if page is None:
                turns = _Turns(self._forgive)
                page = Page(published.status.encode(), content_type)
                published.pages[content_type] = page
                await turns.next()
        return page

    async def event(self, published: Published) -> Page:
        """Return the whole status as a server-sent event."""
        content_type = "text/event-stream"
        status = await self.status(published)  # its JSON has no line break
        page = published.pages.get(content_type)
        if page is None:
            page = Page(b"event: status\ndata: " + status.body + b"\n\n", content_type)
            published.pages[content_type] = page
        return page

    async def _page(
        self, published: Published, accept: str, name: str, metrics: CollectorRegistry
    ) -> Page:
        encode, content_type = choose_encoder(accept)
        async with self._making:
            page = published.pages.get(name + content_type)
            if page is None:
                self._shown = published.status
                page = Page(await self._encoded(encode, metrics), content_type)
                if len(published.pages) < MAX_FORMATS:
                    published.pages[name + content_type] = page
        return page

    def _status(self) -> TaskManagerStatus:
        if self._shown is None:
            raise RuntimeError("no snapshot to make metrics of")
        return self._shown

    async def _encoded(self, encode: Callable[..., bytes], metrics: CollectorRegistry) -> bytes:
        pieces = []
        turns = _Turns(self._forgive)
        for family in metrics.collect():
            pieces.append(encode(_Collected(family)))
            await turns.next()
        if pieces and pieces[-1].endswith(_END_OF_OPENMETRICS):
            pieces = [piece.removesuffix(_END_OF_OPENMETRICS) for piece in pieces]
            pieces.append(_END_OF_OPENMETRICS)
        return b"".join(pieces)


class _Collected:
    """A registry of one family, which is what an encoder takes."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


class _Turns:
    """Yields to the data path and to other requests at intervals."""

    def __init__(self, forgive: Callable[[float], None]) -> None:
        self._forgive = forgive
        self._began = time.thread_time()

    async def next(self) -> None:
        worked = time.thread_time() - self._began
        if worked > PIECE_SECONDS:
            self._forgive(worked)
            await asyncio.sleep(REST_SECONDS)  # the time that others get
            self._began = time.thread_time()
