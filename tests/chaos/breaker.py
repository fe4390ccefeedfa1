"""Does to executors, TaskManagers and links what a schedule says, and mends it again."""

from __future__ import annotations

import heapq
import itertools
import os
import random
import signal
import threading
import time
from typing import TYPE_CHECKING

from tests.chaos.blame import Trouble
from tests.chaos.damage import flip_in_arena, flip_in_journal
from tests.chaos.links import Link
from tests.chaos.schedule import Action, Kind
from tests.support.executors import executors_below
from tests.support.metrics import scrape_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from tests.chaos.links import Links
    from tests.chaos.timeline import Timeline
    from tests.support.daemon import Daemon
    from tests.support.daemons import Daemons
    from tests.support.jumping_clock import ClockError
    from tests.support.loop_disk import LoopDisk

MEND_TIMEOUT_SECONDS = 120.0
COPYING_SECONDS = 10.0
"""How long a fault waits for a copy that is being made."""
LOOK_AGAIN_SECONDS = 0.01
CLOCK_JUMPS_SECONDS = (-1800.0, 1800.0)
"""Less than the time for which the access tokens of this program are valid."""


class Breaker:
    """A thread that works off a schedule; a context manager that mends everything at its end.

    Args:
        actions: The schedule, its beginning is when the context is entered.
        seed: Chooses among several executors of a host.
        cluster_directory: Of the Spark cluster, whose executors are the victims.
        daemons: The TaskManagers.
        links: The proxies before them.
        timeline: Is told of everything.
        disks: The disk of each host's TaskManager that can be filled.
        clocks: The error of the clock of each host's TaskManager.
    """

    def __init__(
        self,
        actions: Sequence[Action],
        seed: int,
        cluster_directory: Path,
        daemons: Daemons,
        links: Links,
        timeline: Timeline,
        disks: Mapping[str, LoopDisk],
        clocks: Mapping[str, ClockError],
    ) -> None:
        self._cluster_directory = cluster_directory
        self._daemons = {daemon.host: daemon for daemon in daemons}
        self._links = links
        self._timeline = timeline
        self._disks = disks
        self._clocks = clocks
        self._chance = random.Random(seed)
        self._order = itertools.count()
        self._due = [
            (action.at_seconds, next(self._order), self._beginning(action)) for action in actions
        ]
        self._trouble_ends: float | None = None
        """When the fault of a TaskManager or its links is mended; None when there is none."""
        self._mending: dict[int, Callable[[], None]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="breaker", daemon=True)
        self.troubles: list[Trouble] = []
        """Of TaskManagers and their links, so far."""
        self.after_trouble: Callable[[], None] = lambda: None
        """Called when a trouble of a TaskManager is over, before the next one may begin."""
        self.error: BaseException | None = None
        """Why the thread ended early; None if all is well."""

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join(MEND_TIMEOUT_SECONDS)
        for mend in list(self._mending.values()):
            mend()

    @property
    def at_work(self) -> bool:
        """Whether there is more to come."""
        return self._thread.is_alive()

    def wait(self, timeout_seconds: float) -> None:
        """Wait until everything has happened and is mended.

        Raises:
            TimeoutError: It is still at work.
        """
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            raise TimeoutError(f"the breaker is at work after {timeout_seconds:g} s")

    def _work(self) -> None:
        heapq.heapify(self._due)
        try:
            while self._due:
                at, _, act = heapq.heappop(self._due)
                if self._stopping.wait(max(self._started + at - time.monotonic(), 0.0)):
                    return
                act()
        except BaseException as error:
            self.error = error
            raise

    def _beginning(self, action: Action) -> Callable[[], None]:
        def begin() -> None:
            if not action.kind.of_executor and self._trouble_ends is not None:
                # What came before took longer than planned: no two at the same time.
                heapq.heappush(self._due, (self._trouble_ends, next(self._order), begin))
                return
            self._timeline.note("chaos", str(action))
            trouble = self._trouble(action.host, action.kind)
            mend = self._break(action)
            if mend is None:
                trouble.ended = time.time()
                return
            number = next(self._order)

            def end() -> None:
                self._mending.pop(number)
                mend()
                trouble.ended = time.time()
                self._timeline.note("chaos", f"{action.host}: over: {action.kind.value}")
                if not action.kind.of_executor:
                    self.after_trouble()
                    self._trouble_ends = None

            self._mending[number] = end
            # From now on, not as planned: what breaks slowly would be mended at once.
            due = time.monotonic() - self._started + action.seconds
            if not action.kind.of_executor:
                self._trouble_ends = due
            heapq.heappush(self._due, (due, number, end))

        return begin

    def _trouble(self, host: str, kind: Kind) -> Trouble:
        trouble = Trouble(host, time.time(), what=kind.value, lasting=kind.lasting)
        if not kind.of_executor:
            self.troubles.append(trouble)
        return trouble

    def _break(self, action: Action) -> Callable[[], None] | None:
        """Do it; return what mends it."""
        daemon, links = self._daemons[action.host], self._links
        peers, clients = Link(action.host, "peers"), Link(action.host, "clients")
        match action.kind:
            case Kind.KILL_EXECUTOR:
                self._signal_executor(action.host, signal.SIGKILL)
                return None
            case Kind.PAUSE_EXECUTOR:
                pid = self._signal_executor(action.host, signal.SIGSTOP)
                return lambda: _signal(pid, signal.SIGCONT)
            case Kind.KILL_TASKMANAGER:
                daemon.kill()
                return lambda: self._start(daemon)
            case Kind.KILL_COPYING:
                self._await_copying(daemon)
                daemon.kill()
                return lambda: self._start(daemon)
            case Kind.STOP_TASKMANAGER:
                daemon.stop()
                return lambda: self._start(daemon)
            case Kind.PAUSE_TASKMANAGER:
                daemon.pause()
                return daemon.resume
            case Kind.REMOVE_DIRECTORY:
                daemon.remove_data_directory()
                return daemon.mend_data_directory
            case Kind.FILL_DISK:
                disk = self._disks[action.host]
                mib = disk.fill() // 2**20
                self._timeline.note("chaos", f"{action.host}: {mib} MiB are taken")
                return disk.make_room
            case Kind.JUMP_CLOCK:
                clock = self._clocks[action.host]
                clock.seconds = self._chance.choice(CLOCK_JUMPS_SECONDS)
                self._timeline.note("chaos", f"{action.host}: {clock.seconds:+g} s")
                return lambda: setattr(clock, "seconds", 0.0)
            case Kind.FLIP_ARENA:
                flipped = sum(flip_in_arena(arena, self._chance) for arena in daemon.arenas)
                self._timeline.note("chaos", f"{action.host}: {flipped} bits have changed")
                return None
            case Kind.FLIP_JOURNAL:
                daemon.kill()
                flipped = sum(flip_in_journal(path, self._chance) for path in daemon.journals)
                self._timeline.note("chaos", f"{action.host}: {flipped} bits have changed")
                return lambda: self._start(daemon)
            case Kind.LOSE_HOST:
                daemon.kill()
                self._kill_executors(action.host)
                daemon.lose_data()
                return lambda: self._start(daemon)
            case Kind.MIGRATE:
                # Nothing is lost: the others have it all, and what is left here nobody misses.
                daemon.drain(migrate=True)
                daemon.stop()
                daemon.lose_data()
                return lambda: self._start(daemon)
            case Kind.ROLLING_RESTART:
                self._roll(daemon)
                return lambda: self._roll_others(action)
            case Kind.RESET_PEERS:
                links.reset(peers)
                return None
            case Kind.RESET_CLIENTS:
                links.reset(clients)
                return None
            case Kind.CUT_PEERS:
                links.cut(peers)
                return lambda: links.heal(peers)
            case Kind.CUT_CLIENTS:
                links.cut(clients)
                return lambda: links.heal(clients)
            case Kind.STALL_PEERS:
                links.stall(peers)
                return lambda: links.heal(peers)
            case Kind.STALL_CLIENTS:
                links.stall(clients)
                return lambda: links.heal(clients)
            case Kind.SLOW_PEERS:
                links.slow(peers)
                return lambda: links.heal(peers)

    def _await_copying(self, daemon: Daemon) -> None:
        """Wait until the TaskManager has copies to make; go on if no job lets it make any."""
        deadline = time.monotonic() + COPYING_SECONDS
        while not _copies_waiting(daemon):
            if self._stopping.wait(LOOK_AGAIN_SECONDS) or time.monotonic() > deadline:
                self._timeline.note("chaos", f"{daemon.host}: no copy is being made")
                return

    def _start(self, daemon: Daemon) -> None:
        daemon.start()
        adopted = daemon.status().counters.map_outputs_adopted
        self._timeline.note("chaos", f"{daemon.host}: adopted {adopted} map outputs")

    def _roll(self, daemon: Daemon) -> None:
        """Restart a TaskManager as an upgrade does."""
        daemon.stop()
        daemon.start()
        adopted = daemon.status().counters.map_outputs_adopted
        self._timeline.note("chaos", f"{daemon.host}: adopted {adopted} map outputs")

    def _roll_others(self, action: Action) -> None:
        for host, daemon in self._daemons.items():
            if host != action.host:
                trouble = self._trouble(host, action.kind)
                self._roll(daemon)
                trouble.ended = time.time()

    def _kill_executors(self, host: str) -> None:
        for executor in executors_below(self._cluster_directory):
            if executor.host == host:
                _signal(executor.pid, signal.SIGKILL)

    def _signal_executor(self, host: str, number: signal.Signals) -> int:
        """Signal one executor of a host; return its pid, 0 if there is none."""
        there = [each for each in executors_below(self._cluster_directory) if each.host == host]
        if not there:
            self._timeline.note("chaos", f"{host}: there is no executor")
            return 0
        victim = self._chance.choice(there)
        self._timeline.note("chaos", f"{host}: it is executor {victim.executor_id}")
        _signal(victim.pid, number)
        return victim.pid


def _copies_waiting(daemon: Daemon) -> float:
    samples = scrape_samples([daemon.metrics_url])
    return sum(value for name, _, value in samples if name == "sluice_copies_waiting")


def _signal(pid: int, number: signal.Signals) -> None:
    if pid:
        try:
            os.kill(pid, number)
        except ProcessLookupError:  # it has ended meanwhile, killed by a later fault
            return
