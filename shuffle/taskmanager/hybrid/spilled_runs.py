"""Makes, opens and frees the spilled runs of a partition."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from ....protocol.limits import MAX_EVENT_BYTES
from ....protocol.schema import DATA
from ...memory import LocalBufferPool
from ...names import ShuffleKey, SubpartitionRange
from ...partition.view import DataListener, OutgoingBuffer
from ..bounds.accounts import Account
from ..serve.read_ahead_view import stored_view
from ..serve.stored_partition_view import ReadSizes, StoredPartitionView
from ..store.errors import SpilledBytesDamaged
from ..store.shuffle_store import ShuffleStore
from .spilled_run import SpilledRun

MAX_FREED_RUNS: Final = 1024
"""Maximum runs that are freed in one turn of the event loop: about 2 ms."""


class ReadBack(NamedTuple):
    """How a reader reads spilled bytes.

    Attributes:
        sizes: How much a segment, a buffer and a credit stand for.
        read_pool: Gives the pool for reads; called when it is needed first.
    """

    sizes: ReadSizes
    read_pool: Callable[[], LocalBufferPool]

    @property
    def message_bytes(self) -> int:
        """Most data of a message, which costs one credit."""
        return min(self.sizes.segment_bytes, self.sizes.credit_bytes)


class SpilledRuns:
    """Makes and opens the runs of one partition.

    Args:
        store: Reads the spilled bytes.
        key: The shuffle.
        account: The application that is charged for what is kept of spilled buffers.
    """

    __slots__ = ("_account", "_key", "_store")

    def __init__(self, store: ShuffleStore, key: ShuffleKey, account: Account) -> None:
        self._store: Final = store
        self._key: Final = key
        self._account: Final = account

    def make(self, data_type: int) -> SpilledRun:
        """Make a run without bytes."""
        return SpilledRun(data_type, self._account)

    def open(
        self, run: SpilledRun, subpartition: int, read_back: ReadBack, listener: DataListener
    ) -> "RunReader":
        """Open a run; the reader takes over references to its extents.

        Args:
            run: The run, to which nothing is added later.
            subpartition: Number of the subpartition.
            read_back: How to read.
            listener: Called when bytes have been read, or cannot be.
        """
        most = read_back.message_bytes
        if run.data_type != DATA:
            most = max(most, MAX_EVENT_BYTES)
        view = stored_view(
            self._store,
            list(run.slices),
            SubpartitionRange(self._key, subpartition, subpartition + 1),
            ReadSizes(read_back.sizes.segment_bytes, most, most),
            read_back.read_pool,
            listener,
            _nothing,
        )
        return RunReader(view, run)

    def free(self, runs: Sequence[SpilledRun]) -> None:
        """Free unread runs, at most MAX_FREED_RUNS in one turn of the event loop."""
        for run in runs[:MAX_FREED_RUNS]:
            run.release()
        if len(runs) > MAX_FREED_RUNS:
            asyncio.get_running_loop().call_soon(self.free, runs[MAX_FREED_RUNS:])


class RunReader:
    """Gives the bytes of a run to one reader, and verifies them.

    A reader of a damaged run gets the error instead of the last message; earlier messages may hold
    changed bytes.

    Args:
        view: Reads the bytes.
        run: The run.
    """

    __slots__ = ("_checksum", "_expected", "_view", "data_type")

    def __init__(self, view: StoredPartitionView, run: SpilledRun) -> None:
        self.data_type: Final = run.data_type
        self._view: Final = view
        self._expected: Final = run.checksum
        self._checksum = 0

    @property
    def backlog(self) -> int:
        """Messages still to come; 0 at the end."""
        return self._view.backlog

    @property
    def holds_segments(self) -> bool:
        """Whether bytes have been read, or are being read, into segments and not taken."""
        return self._view.holds_segments

    def is_available(self, credit: int) -> bool:
        """Whether there is a buffer for the credit, or a read can begin."""
        return self._view.is_available(credit)

    def next_buffer(self, credit: int) -> OutgoingBuffer | None:
        """Take the next buffer, or the event; None while a read is under way, or without credit.

        Raises:
            SpilledBytesDamaged: The bytes of the run have changed.
            SluiceError: They cannot be read.
        """
        buffer = self._view.next_buffer(credit)
        if buffer is None:
            return None
        payload, release, _ = buffer
        self._checksum = crc32c(payload, self._checksum)
        if self._checksum != self._expected and not self._view.backlog:
            if release is not None:
                release()
            raise SpilledBytesDamaged(self._checksum, self._expected)
        if self.data_type == DATA:
            return buffer
        event = OutgoingBuffer(bytes(payload), None, self.data_type)  # copied: events are short
        if release is not None:
            release()
        return event

    def release(self) -> None:
        """Free what is read ahead, and the references to the extents. Idempotent."""
        self._view.release()


def _nothing(view: StoredPartitionView) -> None:
    """Do nothing: the run counts its slices itself."""
