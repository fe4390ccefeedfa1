"""The spilled runs of a subpartition that is kept, and their places in its stream."""

from bisect import bisect_left
from typing import Final, NamedTuple

from ..store.tiers.tier import Extent
from .spilled_run import SpilledRun
from .spilled_runs import SpilledRuns


class KeptRun(NamedTuple):
    """A run and its place.

    Attributes:
        number: Number of its first buffer.
        start_bytes: Spilled bytes before it.
        run: The run.
    """

    number: int
    start_bytes: int
    run: SpilledRun


class KeptRuns:
    """All spilled runs of a subpartition, in the order of the stream; none is removed.

    Args:
        runs: Makes the runs.
    """

    __slots__ = ("_kept", "_runs", "_total_bytes", "buffers", "is_outside_memory")

    def __init__(self, runs: SpilledRuns) -> None:
        self.buffers = 0
        """Buffers in the runs, and so the number of the first one behind them."""
        self.is_outside_memory = False
        """Whether a part is on a disk, or in the remote tier."""
        self._runs: Final = runs
        self._kept: list[KeptRun] = []
        self._total_bytes = 0

    def add(
        self, extent: Extent, offset: int, content: memoryview, data_type: int, *, begins_run: bool
    ) -> None:
        """Add a buffer.

        Args:
            extent: Has the bytes.
            offset: Position in the extent.
            content: The bytes in memory.
            data_type: Type of the bytes.
            begins_run: Whether a run must begin with it.
        """
        run = self._kept[-1].run if self._kept else None
        if run is None or begins_run or not run.takes(data_type, extent, offset):
            run = self._runs.make(data_type)
            self._kept.append(KeptRun(self.buffers, self._total_bytes, run))
        run.add(extent, offset, content)
        self.buffers += 1
        self._total_bytes += len(content)
        self.is_outside_memory |= not extent.in_memory

    def at(self, number: int) -> SpilledRun:
        """Return the run that begins with a buffer."""
        return self._kept[self._index_of(number)].run

    def messages_from(self, number: int, message_bytes: int) -> int:
        """Return about how many messages a reader gets from the beginning of a run on.

        It may be one too many for each run, because runs end in partial messages.
        """
        index = self._index_of(number)
        left_bytes = self._total_bytes - self._kept[index].start_bytes
        return -(-left_bytes // message_bytes) + len(self._kept) - index

    def free(self) -> None:
        """Free all bytes."""
        kept, self._kept = self._kept, []
        self._runs.free([each.run for each in kept])

    def _index_of(self, number: int) -> int:
        return bisect_left(self._kept, number, key=_number_of)


def _number_of(kept: KeptRun) -> int:
    return kept.number
