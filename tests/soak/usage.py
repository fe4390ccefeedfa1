"""Samples descriptors and memory of processes, and their attempts to connect to members."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType
    from typing import Self

SAMPLE_SECONDS = 2.0
MIB = 2**20

MAX_DESCRIPTORS = 600
MAX_DIALS_A_MINUTE = 120.0
"""Limit for each TaskManager: one member at a time is away, and is dialed every few seconds."""
SAMPLES_OF_GROWTH = 60
"""Fewer samples of a process say nothing about growth: it still warms up."""
GROWTH, SPARE_DESCRIPTORS, SPARE_BYTES = 1.3, 40, 48 * MIB


@dataclass(slots=True)
class Usage:
    """The samples of one process."""

    name: str
    pid: int
    dials_of: Callable[[], int] | None = None
    descriptors: list[int] = field(default_factory=list)
    anonymous_bytes: list[int] = field(default_factory=list)
    dials: int = 0
    began: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    _start_ticks: str = field(init=False)

    def __post_init__(self) -> None:
        self._start_ticks = _start_ticks(self.pid)
        self.ended = self.began

    @property
    def minutes(self) -> float:
        """Minutes for which it was watched."""
        return (self.ended - self.began) / 60

    def sample(self) -> None:
        """Take a sample, unless the process has ended."""
        with contextlib.suppress(OSError):
            if _start_ticks(self.pid) != self._start_ticks:  # another process has its id
                return
            status = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")
            _, found, after = status.partition("RssAnon:")
            if not found:  # it has ended, and its parent has not noticed
                return
            anonymous = int(after.split()[0]) * 1024
            descriptors = sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())
            self.descriptors.append(descriptors)
            self.anonymous_bytes.append(anonymous)
            self.ended = time.monotonic()
            if self.dials_of is not None:
                self.dials = self.dials_of()

    def excess(self) -> Iterator[str]:
        """Yield a text for each number that grows or exceeds its limit."""
        if not self.descriptors:
            return
        if max(self.descriptors) > MAX_DESCRIPTORS:
            yield f"{self.name} has {max(self.descriptors)} descriptors, limit {MAX_DESCRIPTORS}"
        # A start with several members that are not there yet costs a few.
        allowed = MAX_DIALS_A_MINUTE * max(self.minutes, 1.0)
        if self.dials > allowed:
            yield f"{self.name} dialed {self.dials} times in {self.minutes:.1f} min"
        for what, samples, spare in (
            ("descriptors", self.descriptors, SPARE_DESCRIPTORS),
            ("bytes of memory", self.anonymous_bytes, SPARE_BYTES),
        ):
            if len(samples) >= SAMPLES_OF_GROWTH:
                third = len(samples) // 3
                before = statistics.median(samples[third : 2 * third])
                after = statistics.median(samples[2 * third :])
                if after > before * GROWTH + spare:
                    yield f"{self.name}: {what} grow from {before:.0f} to {after:.0f}"


def _start_ticks(pid: int) -> str:
    """Return when a process started: a later process may have the same id."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    return stat.rpartition(")")[2].split()[19]


class UsageSampler:
    """Samples processes until the end of the context."""

    def __init__(self) -> None:
        self.all: list[Usage] = []
        self.error: BaseException | None = None
        """Why the thread ended early; None if all is well."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="usage", daemon=True)

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
        self._thread.join()

    def watch(self, name: str, pid: int, dials_of: Callable[[], int] | None = None) -> None:
        """Sample a process from now on; it may have the name of an earlier one."""
        self.all.append(Usage(name, pid, dials_of))

    def _work(self) -> None:
        try:
            while not self._stopping.wait(SAMPLE_SECONDS):
                for usage in list(self.all):
                    usage.sample()
        except BaseException as error:
            self.error = error
            raise


def table(usages: Sequence[Usage]) -> Iterable[str]:
    """Yield the lines of a table with a row for each name."""
    yield (
        f"{'process':<14}{'runs':>5}{'minutes':>9}"
        f"{'descriptors: first':>20}{'max':>6}{'last':>6}"
        f"{'memory MiB: first':>19}{'max':>7}{'last':>7}{'dials':>7}{'a minute':>10}"
    )
    for name in dict.fromkeys(each.name for each in usages):
        runs = [each for each in usages if each.name == name and each.descriptors]
        if not runs:
            continue
        minutes = sum(each.minutes for each in runs)
        opened = [count for each in runs for count in each.descriptors]
        memory = [size / MIB for each in runs for size in each.anonymous_bytes]
        is_dialing = runs[0].dials_of is not None
        dials = sum(each.dials for each in runs)
        rate = f"{dials / max(minutes, 1 / 60):.1f}" if is_dialing else "-"
        yield (
            f"{name:<14}{len(runs):>5}{minutes:>9.1f}"
            f"{opened[0]:>20}{max(opened):>6}{opened[-1]:>6}"
            f"{memory[0]:>19.0f}{max(memory):>7.0f}{memory[-1]:>7.0f}"
            f"{dials if is_dialing else '-':>7}{rate:>10}"
        )
