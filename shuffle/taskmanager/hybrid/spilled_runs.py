"""Making the spilled runs of a partition, and opening one for a reader."""

from collections.abc import Callable
from typing import Final, NamedTuple

from ....protocol.limits import MAX_EVENT_BYTES
from ....protocol.schema import DATA
from ...memory import LocalBufferPool
from ...names import ShuffleKey, SubpartitionRange
from ...partition.view import DataListener, OutgoingBuffer
from ..bounds.accounts import Account
from ..serve.read_ahead_view import stored_view
from ..serve.stored_partition_view import ReadSizes, StoredPartitionView
from ..store.shuffle_store import ShuffleStore
from .spilled_run import SpilledRun


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
    ) -> StoredPartitionView:
        """Open a run as a view of stored bytes, which takes over references to the extents.

        Args:
            run: The run; what is added to it later is not read.
            subpartition: Number of the subpartition.
            read_back: How to read.
            listener: Called when bytes have been read, or cannot be.
        """
        most = read_back.message_bytes
        if run.data_type != DATA:
            most = max(most, MAX_EVENT_BYTES)
        return stored_view(
            self._store,
            list(run.slices),
            SubpartitionRange(self._key, subpartition, subpartition + 1),
            ReadSizes(read_back.sizes.segment_bytes, most, most),
            read_back.read_pool,
            listener,
            _nothing,
        )


def typed(buffer: OutgoingBuffer, data_type: int) -> OutgoingBuffer:
    """Return a buffer of an opened run with the type of the run; an event is copied."""
    if data_type == DATA:
        return buffer
    event = OutgoingBuffer(bytes(buffer.payload), None, data_type)
    if buffer.release is not None:
        buffer.release()
    return event


def _nothing(view: StoredPartitionView) -> None:
    """Do nothing: the run counts its slices itself."""
