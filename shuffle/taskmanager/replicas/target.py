"""The target of a copy of a map output: another TaskManager, or the remote tier.

::

    Replication ─────────────────────────┬─▶ PeerTarget ───▶ copier ──▶ another TaskManager
                                         └─▶ RemoteTarget ─▶ RemoteCopies
    Migration ───▶ CopyServices.targets ─┬─▶ PeerTarget
                                         └─▶ RemoteTarget ─▶ ShuffleStore.move_to_remote
"""

import enum
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ....protocol.errors import ErrorCode, SluiceError
from ....protocol.limits import MAX_I64
from ....protocol.remote_error import RemoteError
from ....protocol.schema import CopyOf
from ...counters import Counters
from ...errors import failure_of
from ...names import MapAttemptKey, ShuffleKey, TaskManagerPlace
from ..bounds.owner_slots import OwnerSlots
from ..cluster.known_taskmanagers import KnownTaskManagers
from ..cluster.placement import Placement
from ..cluster.watches import Watches
from ..config.cluster_config import ReplicationConfig
from ..integrity.damage_checks import DamageChecks
from ..serve.moved_outputs import MovedOutputs
from ..store.errors import StorageError
from ..store.shuffle_store import ShuffleStore
from ..store.stored_outputs import MapOutput
from .copier import Pace, copy_output, is_there
from .copier_connections import CopierConnections
from .holdings import Holdings

if TYPE_CHECKING:
    import asyncio

    from ..tracing.traced_span import TracedSpan
    from ..tracing.tracing import Tracing

logger = logging.getLogger(__name__)

ABSENCE: Final = frozenset(
    {
        ErrorCode.CONNECT_FAILED,
        ErrorCode.CONNECT_REFUSED,
        ErrorCode.CONNECTION_LOST,
        ErrorCode.TASKMANAGER_MISMATCH,
    }
)
"""Codes of errors that mean that a TaskManager cannot be reached."""


class Outcome(enum.Enum):
    """The result of an attempt to make a copy."""

    COPIED = "copied"
    """The copy exists now; perhaps it existed before."""
    REFUSED = "refused"
    """The other TaskManager drains, is full, or cannot take the copy for another reason."""
    ABSENT = "absent"
    """The other TaskManager cannot be reached."""
    FAILED = "failed"
    """This map output cannot be copied, for example because it cannot be read here."""


class Target(Protocol):
    """A place that takes copies of map outputs."""

    @property
    def name(self) -> str:
        """A name that distinguishes it from other targets."""

    @property
    def place(self) -> TaskManagerPlace | None:
        """The TaskManager that serves the copy."""

    async def copy(
        self, output: MapOutput, pace: Pace | None = None, *, moved: bool = False
    ) -> Outcome:
        """Copy a map output there, unless it is there already.

        Args:
            output: The map output.
            pace: Waits until a number of bytes may be sent; the target is then asked first whether
                it has the map output.
            moved: Whether this TaskManager will not keep its own map output.

        Cancellation: safe; an incomplete copy is deleted.
        """


class DriverNotices(Protocol):
    """The connected drivers."""

    def tell_held(self, key: ShuffleKey, map_attempt_ids: Sequence[int]) -> None:
        """Notify the drivers of an application of copies that are here."""

    def tell_remote(self, key: ShuffleKey, map_attempt_ids: Sequence[int]) -> None:
        """Notify the drivers of an application of copies in the remote tier."""

    def tell_moved(
        self, key: ShuffleKey, place: TaskManagerPlace, map_attempt_ids: Sequence[int]
    ) -> "Iterable[asyncio.Future[None]]":
        """Announce moved map outputs; each future completes when its driver acknowledges."""


class CopyServices(NamedTuple):
    """The parts of a TaskManager that copying uses.

    Attributes:
        store: Has the map outputs.
        known: The other TaskManagers.
        watches: Tells which of them are present.
        placement: Ranks them.
        connections: Connections to them.
        holdings: Which of them have which map output.
        moved: Which map outputs are read at which of them.
        damage: Drops map outputs that are damaged here.
        drivers: The connected drivers.
        release: Releases the map attempts of a shuffle below a number; returns the bytes freed.
        streams: Copies and moves that run at a time.
        counters: The counters of this TaskManager.
        config: Numbers and times.
        tracing: Makes the spans of copies; None if traces are off.
    """

    store: ShuffleStore
    known: KnownTaskManagers
    watches: Watches
    placement: Placement
    connections: CopierConnections
    holdings: Holdings
    moved: MovedOutputs
    damage: DamageChecks
    drivers: DriverNotices
    release: Callable[[ShuffleKey, int], int]
    streams: OwnerSlots
    counters: Counters
    config: ReplicationConfig
    tracing: "Tracing | None" = None

    def begin_span(
        self, output: MapOutput, target: str, *, moved: bool = False
    ) -> "TracedSpan | None":
        """Begin the span of a copy; None if the map output, or its move, is not traced."""
        if self.tracing is None:
            return None
        attempt = MapAttemptKey(output.key, output.map_attempt_id)
        return self.tracing.copy(attempt, target, moved=moved)

    def targets(self, places: Sequence[TaskManagerPlace]) -> "Iterator[Target]":
        """Yield other TaskManagers as targets, and then the remote tier, if there is one."""
        for place in places:
            yield PeerTarget(place, self)
        if self.store.remote is not None:
            yield RemoteTarget(places[0] if places else None, self)


class PeerTarget:
    """Another TaskManager.

    Args:
        place: The TaskManager.
        services: The parts of this TaskManager.
    """

    def __init__(self, place: TaskManagerPlace, services: CopyServices) -> None:
        self.name: Final = place.taskmanager_id
        self.place: Final = place
        self._services: Final = services

    async def copy(
        self, output: MapOutput, pace: Pace | None = None, *, moved: bool = False
    ) -> Outcome:
        """Copy a map output to the TaskManager: :meth:`Target.copy`."""
        services = self._services
        # The sender is the origin of the copy, even if the copy replaces a lost one.
        copy_of = CopyOf(0, services.store.taskmanager_id, output.replicas, moved)
        span = services.begin_span(output, str(self.place), moved=moved)
        trace = None if span is None else span.context
        try:
            with output.kept():
                leg = await services.connections.acquire(self.place, output.key.application_id)
                is_new = await copy_output(leg, services.store, output, copy_of, pace, trace)
        except Exception as error:  # noqa: BLE001
            failure = failure_of(error, "copying a map output")
            if span is not None:
                span.end(error=failure)
            if failure.code is ErrorCode.CHECKSUM_MISMATCH:
                # The network may have damaged it, so it is read once more.
                await services.damage.verify(output)
            return self._failed(output, failure)
        if span is not None:
            span.end({"sluice.bytes": output.total_bytes if is_new else 0})
        if is_new:
            services.counters.copies_made += 1
            services.counters.copy_bytes_out += output.total_bytes
        else:
            services.counters.copies_found += 1
        services.holdings.has(MapAttemptKey(output.key, output.map_attempt_id), self.name)
        return Outcome.COPIED

    async def confirm(self, output: MapOutput) -> tuple[Outcome, str]:
        """Ask the TaskManager whether it has a map output.

        Returns:
            COPIED if it has it; otherwise ABSENT or REFUSED, and the reason.

        Cancellation: safe.
        """
        services = self._services
        copy_of = CopyOf(0, services.store.taskmanager_id, output.replicas, moved=True)
        try:
            with output.kept():
                leg = await services.connections.acquire(self.place, output.key.application_id)
                if await is_there(leg, output, copy_of):
                    return Outcome.COPIED, ""
        except Exception as error:  # noqa: BLE001
            failure = failure_of(error, "asking for a map output that has moved")
            if failure.code is ErrorCode.PARTITION_RELEASED and isinstance(failure, RemoteError):
                self._learn_release(output, failure)
            outcome = Outcome.ABSENT if failure.code in ABSENCE else Outcome.REFUSED
            return outcome, f"{self.place}: {failure.code.name}: {failure.message}"
        return Outcome.REFUSED, f"{self.place} took it and no longer has it"

    def _failed(self, output: MapOutput, error: SluiceError) -> Outcome:
        placement = self._services.placement
        self._services.counters.copies_failed += 1
        placement.last_refusal = f"{self.place}: {error.code.name}: {error.message}"
        fields = _log_fields(output) | {"peer": str(self.place), "code": error.code.name}
        logger.info(
            "no copy of %s at %s: %s", output.map_attempt_id, self.place, error, extra=fields
        )
        if error.code in ABSENCE:
            return Outcome.ABSENT
        is_own = not isinstance(error, RemoteError)
        if is_own and (isinstance(error, StorageError) or error.code is ErrorCode.INTERNAL):
            return Outcome.FAILED
        if error.code is ErrorCode.CHECKSUM_MISMATCH:
            return Outcome.FAILED
        if error.code is ErrorCode.REGION_MISMATCH:
            return Outcome.REFUSED  # it has other bytes of this name, and takes other map outputs
        if error.code is not ErrorCode.PARTITION_RELEASED:
            placement.refuse(self.name, output.key.application_id)
        elif not is_own:
            self._learn_release(output, error)
        return Outcome.REFUSED

    def _learn_release(self, output: MapOutput, error: SluiceError) -> None:
        """Release what was released at the other TaskManager while this one was away.

        A release with a bound applies to all TaskManagers. One without a bound may be older than
        the map output, and the driver repeats it here.
        """
        try:
            end = int(str(error.value))
        except ValueError:
            return
        if output.map_attempt_id < end <= MAX_I64:
            logger.info(
                "%s was released below map attempt %d, says %s",
                output.key,
                end,
                self.place,
                extra=output.key.log_fields | {"peer": str(self.place)},
            )
            self._services.release(output.key, end)


class RemoteTarget:
    """The remote tier.

    Args:
        place: A TaskManager that serves what is in the remote tier, if one is known.
        services: The parts of this TaskManager.
    """

    name: Final = "remote tier"

    def __init__(self, place: TaskManagerPlace | None, services: CopyServices) -> None:
        self.place: Final = place
        self._services: Final = services

    async def copy(
        self, output: MapOutput, pace: Pace | None = None, *, moved: bool = False
    ) -> Outcome:
        """Copy a map output to the remote tier: :meth:`Target.copy`."""
        span = self._services.begin_span(output, self.name, moved=moved)
        try:
            await self._services.store.move_to_remote(output)
        except Exception as error:  # noqa: BLE001
            failure = await self._failed(output, error)
            if span is not None:
                span.end(error=failure)
            self._services.placement.last_refusal = str(failure)
            return Outcome.FAILED
        if span is not None:
            span.end({"sluice.bytes": output.total_bytes})
        if self.place is None:
            self._services.placement.last_refusal = (
                "it is in the remote tier, and no other TaskManager is known to serve it"
            )
            return Outcome.FAILED
        return Outcome.COPIED

    async def keep(self, output: MapOutput, pace: Pace | None = None) -> str:
        """Copy a map output that stays here, and notify the drivers.

        Args:
            output: The map output.
            pace: Waits until a number of bytes may be sent; it is then asked first whether the
                remote tier has the map output.

        Returns:
            Why there is no copy; empty if there is one.

        Cancellation: safe; an incomplete copy is deleted.
        """
        services = self._services
        remote = services.store.remote
        if remote is None:
            return "there is no remote tier: set [storage] remote"
        span = services.begin_span(output, self.name)
        try:
            is_new = await remote.copies.make(output, pace)
        except Exception as error:  # noqa: BLE001
            services.counters.remote_copies_failed += 1
            failure = await self._failed(output, error)
            if span is not None:
                span.end(error=failure)
            logger.info(
                "no copy of %s in the remote tier: %s",
                output.map_attempt_id,
                failure,
                extra=_log_fields(output) | {"code": failure.code.name},
            )
            return str(failure)
        if span is not None:
            span.end({"sluice.bytes": output.total_bytes if is_new else 0})
        if is_new:
            services.counters.remote_copies_made += 1
            services.counters.remote_copy_bytes += output.total_bytes
        attempt = MapAttemptKey(output.key, output.map_attempt_id)
        services.holdings.is_in_remote(attempt)
        if remote.has(attempt):  # also if it was dropped here meanwhile, but not if released
            services.drivers.tell_remote(output.key, [output.map_attempt_id])
        return ""

    async def _failed(self, output: MapOutput, error: Exception) -> SluiceError:
        """Return why there is no copy; drop the map output if it is damaged."""
        failure = failure_of(error, "copying to the remote tier")
        if failure.code is ErrorCode.STORAGE_CORRUPT:
            await self._services.damage.verify(output)
        return failure


def _log_fields(output: MapOutput) -> dict[str, object]:
    return MapAttemptKey(output.key, output.map_attempt_id).log_fields
