"""Lets TaskManagers join, leave, restart and change addresses, one after the other."""

from __future__ import annotations

import contextlib
import random
import shutil
import threading
import time
from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING

from tests.chaos.blame import Trouble
from tests.chaos.copies import await_copies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import Self

    from tests.chaos.timeline import Timeline
    from tests.soak.usage import UsageSampler
    from tests.support.daemon import Daemon
    from tests.support.named_cluster import NamedCluster

LEAST, MOST = 3, 5
"""Members at a time."""
PAUSE_SECONDS = (1.0, 4.0)
AWAY_SECONDS = (0.2, 3.0)
HOSTS = [f"127.77.0.{number}" for number in range(11, 21)]
END_SECONDS = 240.0


class Change(Enum):
    """A change of the members; the value is its name in the time line."""

    JOIN = "a TaskManager joins"
    LEAVE = "drain with migration and leave for good"
    RESTART = "kill -9 and start again"
    MOVE = "kill -9 and start again at another address"


class Churn:
    """A thread that changes the members until the end of the context.

    Args:
        seed: Decides what changes.
        cluster: The TaskManagers.
        publish: Called with the hosts of the members when they change.
        timeline: Is told of everything.
        sampler: Watches each process.
        has_copies: Whether map outputs have copies, which are awaited after each loss.
        first_host: The address that the first one keeps, and never leaves; empty: none.
    """

    def __init__(
        self,
        seed: int,
        cluster: NamedCluster,
        publish: Callable[[list[str]], None],
        timeline: Timeline,
        sampler: UsageSampler,
        *,
        has_copies: bool,
        first_host: str,
    ) -> None:
        self.members: list[Daemon] = []
        self.troubles: list[Trouble] = []
        self.counts: Counter[Change] = Counter()
        self.error: BaseException | None = None
        self._chance = random.Random(seed)
        self._cluster = cluster
        self._publish = publish
        self._timeline = timeline
        self._sampler = sampler
        self._has_copies = has_copies
        self._first_host = first_host
        self._names: dict[Daemon, str] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="churn", daemon=True)

    def start_members(self) -> None:
        """Start the first TaskManagers; call it before the context is entered."""
        for _ in range(LEAST):
            self._join()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join(END_SECONDS)

    @property
    def at_work(self) -> bool:
        """Whether it has not failed."""
        return self._thread.is_alive()

    def _work(self) -> None:
        kinds: list[Change] = []
        try:
            while not self._stopping.wait(self._chance.uniform(*PAUSE_SECONDS)):
                if not kinds:
                    kinds = self._chance.sample(list(Change), len(Change))
                change = kinds.pop()
                if change is Change.JOIN and len(self.members) >= MOST:
                    change = Change.LEAVE
                if change is Change.LEAVE and len(self.members) <= LEAST:
                    change = Change.JOIN
                self.counts[change] += 1
                self._change(change)
        except BaseException as error:
            self.error = error
            raise

    def _change(self, change: Change) -> None:
        if change is Change.JOIN:
            daemon = self._join()
            self._timeline.note("churn", f"{self._names[daemon]} joins at {daemon.host}")
            return
        daemon = self._victim(change)
        host = daemon.host
        self._timeline.note("churn", f"{self._names[daemon]} at {host}: {change.value}")
        with self._trouble(host, change):
            match change:
                case Change.LEAVE:
                    self._leave(daemon)
                case Change.RESTART:
                    daemon.kill()
                    time.sleep(self._chance.uniform(*AWAY_SECONDS))
                    daemon.start()
                case Change.MOVE:
                    daemon.kill()
                    time.sleep(self._chance.uniform(*AWAY_SECONDS))
                    self._cluster.move(daemon, self._free_host())
                    self._timeline.note("churn", f"{self._names[daemon]} is at {daemon.host}")
            if change is not Change.LEAVE:
                self._watch(daemon)
            self._publish([each.host for each in self.members])
            if self._has_copies:
                await_copies([each.metrics_url for each in self.members])
                self._timeline.note("churn", "all map outputs have their copies")

    def _join(self) -> Daemon:
        daemon = self._cluster.add(self._free_host())
        self._names[daemon] = f"tm-{len(self._names)}"
        self.members.append(daemon)
        self._watch(daemon)
        self._publish([each.host for each in self.members])
        return daemon

    def _leave(self, daemon: Daemon) -> None:
        daemon.drain(migrate=True)
        copies = daemon.status().copies
        self._timeline.note("churn", f"{copies.moved} map outputs moved, {copies.staying} stay")
        if copies.staying:
            raise AssertionError(f"{copies.staying} map outputs stay: {copies.reason}")
        self.members.remove(daemon)
        self._publish([each.host for each in self.members])
        daemon.end()
        shutil.rmtree(daemon.directory)

    def _watch(self, daemon: Daemon) -> None:
        def dials() -> int:
            return daemon.status().cluster.dials

        self._sampler.watch(self._names[daemon], daemon.pid, dials)

    def _victim(self, change: Change) -> Daemon:
        is_fixed = self._first_host and change is not Change.RESTART
        return self._chance.choice(self.members[1:] if is_fixed else self.members)

    def _free_host(self) -> str:
        if self._first_host and not self.members:
            return self._first_host
        used = {each.host for each in self.members}
        return self._chance.choice([each for each in HOSTS if each not in used])

    @contextlib.contextmanager
    def _trouble(self, host: str, change: Change) -> Iterator[None]:
        trouble = Trouble(host, time.time(), what=change.value)
        self.troubles.append(trouble)
        yield
        trouble.ended = time.time()
