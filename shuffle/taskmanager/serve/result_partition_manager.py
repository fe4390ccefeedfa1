# Longer than 450 lines, because requests, registrations and releases share the waiting requests.
"""Finding the partitions of a TaskManager by name, and waiting for those that are not there yet.

A map output can be read once it is committed; a pipelined partition once it is registered and its
consumption constraint lets readers in. Both are requested with
:meth:`ResultPartitionManager.request_view`. A request for a partition that is not there yet waits,
up to a deadline: a commit, a registration, a first output or a release wakes it.

A pipelined partition is registered until it is consumed, a reconsumable one until it is released.
The failure of one is remembered for a while, so that a consumer that asks late gets the reason.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import NamedTuple

from mypy_extensions import mypyc_attr

from ....protocol.errors import ErrorCode, SluiceError
from ...errors import InvalidRequest, PartitionReleased, ShuttingDown
from ...histogram import Histogram
from ...memory import LocalBufferPool
from ...names import MapAttemptKey, ShuffleKey, SubpartitionRange
from ...partition.view import DataListener, SubpartitionView
from ..bounds.accounts import Accounts, Resource
from ..integrity.damage_checks import DamageChecks
from ..store.errors import DuplicateMapOutput, ReleasedDuringCommit
from ..store.output_index import Lost
from ..store.shuffle_store import ShuffleStore
from ..store.stored_outputs import MapOutput, release_regions
from .moved_outputs import MovedOutputs
from .new_copies import require_new_copy
from .pipelined_registry import ConsumablePartition, PipelinedRegistry, Registration, open_view
from .read_ahead_view import stored_view
from .stored_partition_view import ReadSizes, StoredPartitionView
from .stored_slices import StoredSlices, bad_range, charge_of, lost_output


class WaitingRequest(NamedTuple):
    """A request for a partition that is not here yet.

    Attributes:
        wanted: The subpartitions to read.
        missing: The map attempt that it waits for; None: any.
        began_at: When the request came, as of ``time.monotonic()``.
    """

    wanted: SubpartitionRange
    missing: int | None
    began_at: float


@mypyc_attr(allow_interpreted_subclasses=True)  # tests supply their own views
class ResultPartitionManager:
    """Registers map outputs and pipelined partitions, and serves requests for them.

    Args:
        store: Holds committed map outputs.
        segment_size_bytes: Largest buffer of the views made here.
        request_timeout_seconds: How long a request waits for a map output to be committed.
        on_replicated: Called with a map output that is committed here, and that is a copy or shall
            have some; also when its producer is gone by then.
        on_shuffle_released: Called when a shuffle, or its map attempts below a number, is released
            without its application.
        on_replaced: Called with a copy that was dropped because its origin sends other bytes.
        on_pipelined_gone: Called when a pipelined partition is read, has failed or is released.
    """

    def __init__(
        self,
        store: ShuffleStore,
        segment_size_bytes: int,
        request_timeout_seconds: float,
        on_replicated: Callable[[MapOutput], None] | None = None,
        on_shuffle_released: Callable[[ShuffleKey, int | None], None] | None = None,
        on_replaced: Callable[[Lost], None] | None = None,
        on_pipelined_gone: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._segment_size_bytes = segment_size_bytes
        self._request_timeout_seconds = request_timeout_seconds
        self.waiting: dict[ShuffleKey, dict[asyncio.Future[None], WaitingRequest]] = {}
        """Waiting requests."""
        self._pipelined = PipelinedRegistry()
        self._releases = store.releases
        self._on_replicated = on_replicated
        self._on_pipelined_gone = on_pipelined_gone
        self._on_shuffle_released = on_shuffle_released
        self._on_replaced = on_replaced
        self.moved = MovedOutputs(self.wake)
        """Map outputs that are read elsewhere."""
        self.damage = DamageChecks(store)
        """Verifies the map outputs that readers report as damaged."""
        self.request_waits = Histogram()
        """How long requests waited for their partitions, or until they ended."""

    @property
    def accounts(self) -> Accounts:
        """The accounts of the applications."""
        return self._store.accounts

    @property
    def pipelined(self) -> PipelinedRegistry:
        """Pipelined partitions that are being written or read, for status."""
        return self._pipelined

    @property
    def has_unread_pipelined(self) -> bool:
        """Whether a pipelined partition is still unread."""
        return not all(partition.is_consumed for _, _, partition in self._pipelined)

    @property
    def waiting_requests(self) -> int:
        """Requests that wait for a registration."""
        return sum(len(waiters) for waiters in self.waiting.values())

    async def commit(self, output: MapOutput) -> None:
        """Commit a finished map output and serve the requests that waited for it.

        Raises:
            ReleasedDuringCommit: This map attempt was released here before, or it is a copy and
                its shuffle was.
            SluiceError: It could not be made durable, or is committed already; its regions are
                released.

        Cancellation: the commit goes on, but nobody waits for it.
        """
        try:
            attempt = MapAttemptKey(output.key, output.map_attempt_id)
            if self._releases.has(attempt):
                raise ReleasedDuringCommit(*output.key, output.map_attempt_id)
            if output.origin:
                await self._until_not_pending(output)
                if self._store.lookup(*attempt) is not None:
                    self.require_new_copy(attempt, output.origin, output.checksum())
            committed = self._store.commit(output)
        except (SluiceError, asyncio.CancelledError):
            release_regions(output.regions)
            raise
        # A callback, because it must run also when the producer is gone and nobody waits here.
        committed.add_done_callback(lambda done: self._committed(output, done))
        await asyncio.shield(committed)

    async def _until_not_pending(self, output: MapOutput) -> None:
        """Wait for another commit of a copy: that it is here already may be said behind it only.

        Raises:
            ReleasedDuringCommit: It was released before, or meanwhile.
        """
        attempt = MapAttemptKey(output.key, output.map_attempt_id)
        pending = self._store.pending(attempt)
        if pending is not None:
            await asyncio.wait({pending})
        self.require_unreleased(*attempt)
        if pending is None or pending.cancelled():
            return
        if isinstance(pending.exception(), ReleasedDuringCommit):
            # Its application has ended, which leaves no release to find.
            raise ReleasedDuringCommit(*output.key, output.map_attempt_id)

    def require_unreleased(self, key: ShuffleKey, map_attempt_id: int) -> None:
        """Check that a copy does not come after the release of its shuffle.

        Raises:
            ReleasedDuringCommit: A driver has released the shuffle here.
        """
        attempt = MapAttemptKey(key, map_attempt_id)
        if self._releases.has_copy(attempt):
            raise ReleasedDuringCommit(*key, map_attempt_id, self._releases.bound(attempt))

    def require_new_copy(self, attempt: MapAttemptKey, origin: str, checksum: int | None) -> None:
        """Check that a copy is not here, as :func:`.new_copies.require_new_copy` does."""
        require_new_copy(self._store, attempt, origin, checksum, self._on_replaced)

    def _committed(self, output: MapOutput, done: "asyncio.Future[None]") -> None:
        if done.cancelled():
            return  # then the journal releases the regions, if necessary
        if done.exception() is not None:
            release_regions(output.regions)
            return
        if output.has_copies and self._on_replicated is not None:
            self._on_replicated(output)
        self.wake(output.key)

    def register_pipelined(
        self,
        key: ShuffleKey,
        map_attempt_id: int,
        partition: ConsumablePartition,
        release: Callable[[SluiceError], None],
    ) -> None:
        """Make a pipelined partition known and serve the requests that waited for it.

        Args:
            key: The shuffle.
            map_attempt_id: The partition's name within the shuffle.
            partition: The partition; call :meth:`wake` when it becomes consumable later.
            release: Called when the shuffle is released; the partition is forgotten then.

        Raises:
            DuplicateMapOutput: A partition or a committed map output of that name exists.
        """
        if self._store.lookup(key, map_attempt_id) is not None:
            raise DuplicateMapOutput(key.application_id, key.shuffle_id, map_attempt_id)
        self._pipelined.register(key, map_attempt_id, Registration(partition, release))
        self.wake(key)

    def unregister_pipelined(
        self,
        key: ShuffleKey,
        map_attempt_id: int,
        partition: ConsumablePartition,
        failure: SluiceError | None = None,
    ) -> None:
        """Forget a pipelined partition that has been consumed, or has failed. Idempotent.

        Args:
            key: The shuffle.
            map_attempt_id: The partition's name within the shuffle.
            partition: The partition itself: one that has taken its place stays.
            failure: Raised to requests that wait for it or come soon after.
        """
        if self._pipelined.unregister(key, map_attempt_id, partition, failure):
            self.wake(key)
            self._on_pipelined_gone()

    def pipelined_consumed(self) -> None:
        """Notify that a pipelined partition was read and stays."""
        self._on_pipelined_gone()

    def lost_of(self, application_id: str) -> Lost:
        """Return the map attempts of an application that were lost with a directory."""
        return self._store.lost_of(application_id)

    def wake(self, key: ShuffleKey) -> None:
        """Let the requests that wait for partitions of a shuffle look again."""
        for waiter in self.waiting.pop(key, ()):
            if not waiter.done():
                waiter.set_result(None)

    def release_shuffle(self, key: ShuffleKey, end: int | None = None) -> int:
        """Release everything of a shuffle; requests that wait for it fail at once.

        Args:
            key: The shuffle.
            end: Release only the map attempts below it, and refuse later commits of them.

        Returns:
            Bytes of storage freed.
        """
        freed = self._store.release_shuffle(key, end)
        if end is None:
            self.moved.forget(lambda other: other == key)
        else:
            self.moved.forget_below(key, end)
        self._release_unstored(key, end)
        if self._on_shuffle_released is not None:
            self._on_shuffle_released(key, end)
        return freed

    def missing(self, key: ShuffleKey, map_attempt_ids: Sequence[int]) -> list[int]:
        """Return the given map attempts whose output no reader would find here now.

        With a remote tier only outputs that were lost with a directory, or dropped as damaged, are
        missing: the tier may have the others.
        """
        if self._store.remote is not None:
            return [each for each in map_attempt_ids if self._store.why_lost(key, each)]
        return [
            each
            for each in map_attempt_ids
            if self._store.lookup(key, each) is None
            and self._store.pending(attempt := MapAttemptKey(key, each)) is None
            and self._store.open_output(attempt) is None
            and self.moved.place(key, each) is None
            and not self._pipelined.has(key, each)
        ]

    def share(self, application_id: str) -> None:
        """Expect map outputs of an application in the remote tier, from other TaskManagers."""
        if self._store.remote is not None:
            self._store.remote.share(application_id)

    def application_ends(self, application_id: str) -> None:
        """Delete what an application has moved to the remote tier: nobody will ask for it."""
        self._store.application_ends(application_id)

    def release_application(self, application_id: str) -> int:
        """Release everything of an application, as :meth:`release_shuffle` does.

        Returns:
            Bytes of storage freed.
        """
        freed = self._store.release_application(application_id)
        self.moved.forget(lambda key: key.application_id == application_id)
        waiting = [key for key in self.waiting if key.application_id == application_id]
        for key in dict.fromkeys((*self._pipelined.keys(application_id), *waiting)):
            self._release_unstored(key)
        return freed

    async def end_pipelined(self) -> None:
        """Release all pipelined partitions: writers and readers get SHUTTING_DOWN.

        Cancellation: safe.
        """
        for key, map_attempt_id, _ in list(self._pipelined):
            error = ShuttingDown(
                "The TaskManager stopped before the readers of a pipelined partition reached its "
                "end",
                value=f"map attempt {map_attempt_id} of shuffle {key.shuffle_id}",
                remedy="Await partition.wait_consumed() before it stops, or raise "
                "drain_timeout_seconds",
                map_attempt_id=map_attempt_id,
            )
            self._pipelined.release_one(key, map_attempt_id, error)
        await asyncio.sleep(0)  # the readers' connections send it in their next turn

    def released(self) -> "asyncio.Future[None] | None":
        """Return a future that ends when a restart will not undo the last release; None: now."""
        return self._store.released()

    def _release_unstored(self, key: ShuffleKey, end: int | None = None) -> None:
        error = PartitionReleased(
            f"Shuffle {key.shuffle_id} was released", value=key.application_id or None
        )
        self._pipelined.release(key, error, end)
        self._on_pipelined_gone()
        for waiter, request in list(self.waiting.get(key, {}).items()):
            missing = request.missing
            if (end is None or missing is None or missing < end) and not waiter.done():
                waiter.set_exception(error)

    async def request_view(
        self,
        wanted: SubpartitionRange,
        map_attempt_ids: Sequence[int],
        buffer_size_bytes: int,
        read_pool: Callable[[], LocalBufferPool],
        listener: DataListener,
        credit_bytes: int | None = None,
    ) -> SubpartitionView:
        """Make a view of committed map outputs or of a pipelined partition, waiting for them.

        Args:
            wanted: The subpartitions to read; of a pipelined partition, one.
            map_attempt_ids: Any number of stored map outputs, or one pipelined partition.
            buffer_size_bytes: Largest buffer, or group of buffers, to give.
            read_pool: Memory for reads of the disk tier.
            listener: Called when a view that had nothing has something.
            credit_bytes: Bytes that one credit pays for; ``buffer_size_bytes`` by default.

        Raises:
            PARTITION_NOT_FOUND: A partition is missing, or cannot be read yet, at the deadline.
            STORAGE_UNAVAILABLE: A map output was lost with its storage directory, or was damaged.
            PARTITION_MOVED: A map output is read at another TaskManager from now on.
            PartitionReleased: The shuffle was released meanwhile.
            ProducerFailed: The producer of the pipelined partition is gone.
            SUBPARTITION_IN_USE: The subpartition of a pipelined partition has its reader.
            InvalidRequest: The range is empty or too large, or several attempts or subpartitions
                of pipelined partitions are requested.
            QuotaExceeded: The application is at its quota of metadata, or, for a hybrid partition,
                of segments.
            InsufficientNetworkBuffers: No segment is left to read a hybrid partition back with.

        Cancellation: safe, nothing is left behind.
        """
        began = monotonic()
        slices = StoredSlices(wanted, self.accounts.of(wanted.shuffle.application_id))
        try:
            return await self._request_view(
                wanted,
                map_attempt_ids,
                slices,
                ReadSizes(
                    min(self._segment_size_bytes, buffer_size_bytes),
                    buffer_size_bytes,
                    buffer_size_bytes if credit_bytes is None else credit_bytes,
                ),
                read_pool,
                listener,
            )
        finally:
            slices.release()
            self.request_waits.record(monotonic() - began)

    async def _request_view(
        self,
        wanted: SubpartitionRange,
        map_attempt_ids: Sequence[int],
        slices: StoredSlices,
        sizes: ReadSizes,
        read_pool: Callable[[], LocalBufferPool],
        listener: DataListener,
    ) -> SubpartitionView:
        key, start, end = wanted
        deadline = asyncio.get_running_loop().time() + self._request_timeout_seconds
        sought: asyncio.Task[None] | None = None
        sought_for: int | None = None
        began = monotonic()
        while True:
            pipelined = self._pipelined.find(key, map_attempt_ids)
            missing: int | None
            if pipelined is not None:
                partition, missing = pipelined
                if not start < end <= partition.num_subpartitions:
                    raise bad_range(wanted, partition.num_subpartitions)
                if len(map_attempt_ids) > 1 or end - start > 1:
                    raise InvalidRequest(
                        "A pipelined partition is read one subpartition at a time",
                        value=f"{len(map_attempt_ids)} map attempts, {end - start} subpartitions",
                        limit="1 map attempt, 1 subpartition",
                        remedy="Open a channel for each",
                    )
                if partition.is_consumable:
                    return open_view(partition, start, listener, sizes, read_pool)
                what, remedy = "has no output yet", "Ask again, or let readers in at registration"
            else:
                await self.damage.settle(key, map_attempt_ids, deadline)
                missing = await slices.gather(
                    partial(self._store.map_outputs, key), map_attempt_ids
                )
                self.moved.require_here(key, map_attempt_ids)
                if missing is None:
                    view = stored_view(
                        self._store,
                        slices.take(),
                        wanted,
                        sizes,
                        read_pool,
                        listener,
                        self._view_released,
                    )
                    self.moved.watch(view, key, map_attempt_ids)
                    return view
                remote = self._store.remote
                if remote is not None and (
                    sought is None or (sought.done() and missing != sought_for)
                ):
                    sought = remote.seek(key, map_attempt_ids, self.wake)
                    sought_for = missing
                why = self._store.why_lost(key, missing)
                if why and (sought is None or sought.done()):
                    raise lost_output(key, missing, why)
                what, remedy = "is not here", "Its task has to run again"
            await self._wait(WaitingRequest(wanted, missing, began), deadline, what, remedy)

    async def _wait(self, request: WaitingRequest, deadline: float, what: str, remedy: str) -> None:
        """Wait until something of the shuffle changes."""
        key, missing = request.wanted.shuffle, request.missing
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self.waiting.setdefault(key, {})
        waiters[waiter] = request
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except TimeoutError as error:
            raise SluiceError(
                f"Map attempt {missing} of shuffle {key.shuffle_id} {what}",
                code=ErrorCode.PARTITION_NOT_FOUND,
                value=missing,
                limit=f"{self._request_timeout_seconds} s",
                remedy=remedy,
                map_attempt_id=missing,
            ) from error
        finally:
            waiters.pop(waiter, None)
            if not waiters and self.waiting.get(key) is waiters:
                del self.waiting[key]

    def _view_released(self, view: StoredPartitionView) -> None:
        self.moved.released(view)
        account = self.accounts.of(view.shuffle.application_id)
        account.give_back(Resource.METADATA_BYTES, charge_of(view.slices))
