"""The pipelined partitions of a TaskManager by name, and the failures of former ones."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, TypeGuard

from ....protocol.errors import SluiceError
from ...memory import LocalBufferPool
from ...names import ShuffleKey
from ...partition.view import DataListener, PipelinedView
from ..store.errors import DuplicateMapOutput
from .stored_partition_view import ReadSizes

MAX_FAILURES_KEPT: Final = 1024
"""Failures remembered, the latest ones: a client cannot make the registry grow without bound."""


class ConsumablePartition(Protocol):
    """A pipelined partition as the registry sees it."""

    @property
    def num_subpartitions(self) -> int:
        """Number of subpartitions."""

    @property
    def is_consumable(self) -> bool:
        """True once its consumption constraint lets readers in."""

    @property
    def is_consumed(self) -> bool:
        """Whether all subpartitions are consumed; only a reconsumable partition stays then."""

    @property
    def may_spill(self) -> bool:
        """Whether unread buffers may be in the storage tiers."""

    def needs_segments(self, subpartition: int) -> bool:
        """Whether a reader needs segments for the part of a subpartition that is on a disk."""

    def create_view(self, subpartition: int, listener: DataListener) -> PipelinedView:
        """Make the view of a subpartition, or another one of a reconsumable one.

        Raises:
            SluiceError: The subpartition has, or had, its reader, or the partition failed.
        """


class SpilledView(PipelinedView, Protocol):
    """A view of which a part may be in the storage tiers."""

    def read_back_by(self, sizes: ReadSizes, read_pool: Callable[[], LocalBufferPool]) -> None:
        """Set how that part is read; without it the view gives nothing of it."""


def open_view(
    partition: ConsumablePartition,
    subpartition: int,
    listener: DataListener,
    sizes: ReadSizes,
    read_pool: Callable[[], LocalBufferPool],
) -> PipelinedView:
    """Make a view of a subpartition, which also reads the part in the storage tiers.

    The pool for reads comes first. If there is no memory for it and a part is on a disk, the
    request can be repeated: the release of a view can drop what is spilled.

    Raises:
        InsufficientNetworkBuffers: No segment is left for reads of the storage tiers.
        QuotaExceeded: The application is at its quota of segments.
        SluiceError: The subpartition has its reader, or the partition failed or is released.
    """
    if partition.may_spill:
        try:
            read_pool()
        except SluiceError:
            if partition.needs_segments(subpartition):
                raise
    view = partition.create_view(subpartition, listener)
    if _may_be_spilled(view):
        view.read_back_by(sizes, read_pool)
    return view


def _may_be_spilled(view: PipelinedView) -> TypeGuard[SpilledView]:
    return hasattr(view, "read_back_by")


class Registration(NamedTuple):
    """A registered partition, and the function to call when its shuffle is released."""

    partition: ConsumablePartition
    release: Callable[[SluiceError], None]


class PipelinedRegistry:
    """Pipelined partitions by shuffle and map attempt, and the failures of former ones."""

    def __init__(self) -> None:
        self._registered: dict[ShuffleKey, dict[int, Registration]] = {}
        self._failures: OrderedDict[tuple[ShuffleKey, int], SluiceError] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(attempts) for attempts in self._registered.values())

    def register(self, key: ShuffleKey, map_attempt_id: int, registration: Registration) -> None:
        """Make a partition known.

        Raises:
            DuplicateMapOutput: A partition of that name is registered already.
        """
        attempts = self._registered.setdefault(key, {})
        if map_attempt_id in attempts:
            raise DuplicateMapOutput(key.application_id, key.shuffle_id, map_attempt_id)
        self._failures.pop((key, map_attempt_id), None)
        attempts[map_attempt_id] = registration

    def unregister(
        self,
        key: ShuffleKey,
        map_attempt_id: int,
        partition: ConsumablePartition,
        failure: SluiceError | None,
    ) -> bool:
        """Forget a partition, except its failure. False if it is not registered."""
        attempts = self._registered.get(key)
        found = None if attempts is None else attempts.get(map_attempt_id)
        if attempts is None or found is None or found.partition is not partition:
            return False
        del attempts[map_attempt_id]
        if not attempts:
            del self._registered[key]
        if failure is not None:
            if len(self._failures) >= MAX_FAILURES_KEPT:
                self._failures.popitem(last=False)
            self._failures[key, map_attempt_id] = failure
        return True

    def find(
        self, key: ShuffleKey, map_attempt_ids: Sequence[int]
    ) -> tuple[ConsumablePartition, int] | None:
        """Look up the first of some map attempts that is pipelined; None if none is registered.

        Returns:
            The partition and its map attempt.

        Raises:
            SluiceError: One of them has failed a short while ago.
        """
        attempts = self._registered.get(key)
        if attempts is None and not self._failures:
            return None  # the usual case where all map outputs are stored
        for map_attempt_id in map_attempt_ids:
            failure = self._failures.get((key, map_attempt_id))
            if failure is not None:
                raise failure
            found = None if attempts is None else attempts.get(map_attempt_id)
            if found is not None:
                return found.partition, map_attempt_id
        return None

    def has(self, key: ShuffleKey, map_attempt_id: int) -> bool:
        """Return whether a partition is registered."""
        return map_attempt_id in self._registered.get(key, {})

    def __iter__(self) -> Iterator[tuple[ShuffleKey, int, ConsumablePartition]]:
        """Iterate over the shuffle, map attempt and partition of each."""
        for key, attempts in self._registered.items():
            for map_attempt_id, registration in attempts.items():
                yield key, map_attempt_id, registration.partition

    def keys(self, application_id: str) -> list[ShuffleKey]:
        """Return the shuffles of an application that have pipelined partitions."""
        return [key for key in self._registered if key.application_id == application_id]

    def release_one(self, key: ShuffleKey, map_attempt_id: int, error: SluiceError) -> None:
        """Release a partition; requests that come for it later get the error too."""
        registration = self._registered.get(key, {}).get(map_attempt_id)
        if registration is not None:
            self.unregister(key, map_attempt_id, registration.partition, error)
            registration.release(error)

    def release(self, key: ShuffleKey, error: SluiceError, end: int | None = None) -> None:
        """Release a shuffle, or its partitions below ``end``, with their failures."""
        attempts = self._registered.pop(key, {})
        kept = {} if end is None else {each: attempts[each] for each in attempts if each >= end}
        if kept:
            self._registered[key] = kept
        for map_attempt_id, registration in attempts.items():
            if map_attempt_id not in kept:
                registration.release(error)
        for name in [name for name in self._failures if name[0] == key]:
            if end is None or name[1] < end:
                del self._failures[name]
