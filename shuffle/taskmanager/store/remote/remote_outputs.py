"""Finds map outputs that were copied or moved to the remote tier, by name, and removes them.

A map output in the remote tier consists of one object per region and a
manifest. The name of the manifest follows from the application, the shuffle and the map attempt. So
every TaskManager with the same remote tier finds the map output with one request, and serves it
like its own.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .....transport.errors import code_field
from .....transport.fair_queue import Flow
from .....transport.loop import mark_retrieved, run_together, start_task
from ....names import MapAttemptKey, ShuffleKey
from ...bounds.accounts import Accounts
from ..errors import OutputGone
from ..files.fair_slots import FairSlots
from ..objects.remote_failure import RemoteFailure
from ..objects.remote_names import (
    application_marker,
    manifest_name,
    moved_application,
    name_of_application,
)
from ..output_index import OutputIndex
from ..store_status import RemoteStatus
from ..stored_outputs import MapOutput, Region
from ..tiers.remote_tier import MAX_DELETES, RemoteTier
from ..tiers.tier import ExtentRead
from .output_uploads import OutputUploads, Uploaded, manifest_of
from .remote_copies import RemoteCopies
from .remote_releases import RemoteReleases

if TYPE_CHECKING:
    from ..files.io_threads import WaitingCall

T = TypeVar("T")

logger = logging.getLogger(__name__)

LOOKUPS_AT_A_TIME: Final = 32
"""Manifests requested at a time; applications take turns."""

_MISSING_SECONDS: Final = 0.1
"""Missing objects are collected for this long: a whole bucket may be gone."""


class RemoteOutputs:
    """The map outputs that a store moved to the remote tier or found there.

    Args:
        tier: The remote tier.
        index: Index to which found map outputs are added.
        accounts: Accounts to charge for found map outputs.
        read: Reads extents of any tier.
        is_pending: Returns whether a map output is being committed.
        lost: Called to forget the map outputs that use some extents.
    """

    def __init__(
        self,
        tier: RemoteTier,
        index: OutputIndex,
        accounts: Accounts,
        read: Callable[[Sequence[ExtentRead]], Awaitable[None]],
        is_pending: Callable[[MapAttemptKey], bool],
        lost: Callable[[set[object]], None],
    ) -> None:
        self.tier = tier
        self._tasks: set[asyncio.Task[Any]] = set()
        self.uploads = OutputUploads(tier, read, self._in_background)
        self.copies = RemoteCopies(self.uploads, accounts, self._is_found)
        self._removals = RemoteReleases(tier, self._is_in_use, self._in_background)
        self._sharing: set[str] = set()
        """Applications of which another TaskManager may have copied map outputs."""
        self.found = 0
        """Map outputs found; only grows."""
        self.lookups = 0
        """Manifests requested; only grows."""
        self._index = index
        self._accounts = accounts
        self._is_pending = is_pending
        self._lost = lost
        self._moved: dict[ShuffleKey, dict[int, list[str]]] = {}
        """Objects of the map outputs that this TaskManager moved or found."""
        self._releases = index.releases
        self._finding: dict[MapAttemptKey, asyncio.Task[MapOutput | None]] = {}
        self._lookups = FairSlots(LOOKUPS_AT_A_TIME)
        self._missing: set[object] = set()
        self._losing: asyncio.TimerHandle | None = None

    async def move(self, output: MapOutput) -> None:
        """Copy a map output to the remote tier: ``ShuffleStore.move_to_remote``."""
        if output.is_moved:
            return
        attempt = _attempt(output)
        if self._index.get(*attempt) is not output:
            raise OutputGone(*output.key, output.map_attempt_id)
        before = self._moved.get(attempt.shuffle, {}).get(attempt.map_attempt_id, [])
        with self.uploads.transfer(output) as transfer:
            found: Uploaded | None = None
            try:
                if self.copies.has(attempt):
                    found = await self.uploads.find(output)
                if found is None:
                    found = await self.uploads.upload(transfer, output)
            finally:
                is_over = self.uploads.discard(transfer, found)
                if not is_over and found is not None:
                    self._note(attempt, found.names or before)
                elif not is_over and transfer.names is not None:
                    # Until the release: the manifest cannot be confirmed now.
                    self._note(attempt, [*before, *transfer.names])
        if is_over:
            raise OutputGone(*output.key, output.map_attempt_id)

    # ---- finding ---------------------------------------------------------------------------------

    async def find(self, attempt: MapAttemptKey) -> MapOutput | None:
        """Find a map output that is committed here or was moved to the remote tier.

        A map output found remotely is added to the index, charged to its application, and released
        with its shuffle. No journal has it, so after a restart it must be found again. Concurrent
        calls share one request.

        Returns:
            The map output, or None if it does not exist or its shuffle was released.

        Raises:
            RemoteFailed: The remote tier does not answer.

        Cancellation: safe, the look-up continues.
        """
        known = self._index.get(*attempt)
        if known is not None:
            return known
        if self._releases.has_copy(attempt) or not self.tier.healthy:
            return None
        task = self._finding.get(attempt)
        if task is None:
            task = self._finding[attempt] = self._in_background(self._find(attempt))
            task.add_done_callback(mark_retrieved)
        return await asyncio.shield(task)

    async def _find(self, attempt: MapAttemptKey) -> MapOutput | None:
        try:
            return await self._ask(attempt)
        finally:
            if self._is_wanted(attempt):
                del self._finding[attempt]

    def _is_wanted(self, attempt: MapAttemptKey) -> bool:
        """Whether the application has not ended since this task began its look-up."""
        return self._finding.get(attempt) is asyncio.current_task()

    async def _ask(self, attempt: MapAttemptKey) -> MapOutput | None:
        try:
            async with self._lookups.turn(Flow(attempt.shuffle.application_id, 0), 1):
                self.lookups += 1
                data = await self.tier.objects.get(manifest_name(attempt))
        except RemoteFailure as failure:
            if not failure.missing:
                raise self.tier.fetch_failure(failure, 0) from failure
            await self.tier.require_same()
            return None
        known = self._index.get(*attempt)
        if known is not None or self._releases.has_copy(attempt):
            return known
        if self._is_pending(attempt) or not self._is_wanted(attempt):
            return None  # a copy is being committed here, or the application has ended
        try:
            output, names = self._output_of(attempt, data)
        except ValueError as error:
            logger.error(
                "%s: %s is not a manifest: %s",
                self.tier,
                manifest_name(attempt),
                error,
                extra=attempt.log_fields,
            )
            return None
        # The map output here was lost; its copy is charged as found.
        names += self.copies.drop(attempt)
        account = self._accounts.of(attempt.shuffle.application_id)
        for region in output.regions:
            if region.extent is not None:
                region.extent.charge_to(account)
        self._index.add(output)
        self._note(attempt, names)
        self.found += 1
        return output

    def _output_of(self, attempt: MapAttemptKey, data: bytes) -> tuple[MapOutput, list[str]]:
        manifest = manifest_of(attempt, data)
        regions = tuple(
            Region(
                self.tier.moved_here(each.name, each.offsets[-1], attempt.shuffle.application_id)
                if each.name and each.offsets[-1]
                else None,
                each.first_subpartition,
                each.offsets,
                each.crc32c,
                each.numbers,
            )
            for each in manifest.regions
        )
        names = [each.name for each in manifest.regions]
        return (
            MapOutput(
                attempt.shuffle,
                attempt.map_attempt_id,
                manifest.num_subpartitions,
                regions,
                is_moved=True,
            ),
            names,
        )

    def seek(
        self, key: ShuffleKey, map_attempt_ids: Iterable[int], woken: Callable[[ShuffleKey], None]
    ) -> asyncio.Task[None] | None:
        """Look up map outputs in the background, in order, some at a time.

        The look-up stops at a missing map output, because the request needs all of them.

        Args:
            key: The shuffle.
            map_attempt_ids: Its map attempts; known ones are skipped.
            woken: Called with the shuffle at the end.

        Returns:
            The task; None if there is nothing to look up.
        """
        wanted = [each for each in map_attempt_ids if self._index.get(key, each) is None]
        released = any(self._releases.has_copy(MapAttemptKey(key, each)) for each in wanted)
        if not wanted or released or not self.tier.healthy:
            return None

        async def look_up() -> None:
            try:
                for first in range(0, len(wanted), LOOKUPS_AT_A_TIME):
                    some = wanted[first : first + LOOKUPS_AT_A_TIME]
                    if None in await run_together(
                        self.find(MapAttemptKey(key, each)) for each in some
                    ):
                        break
            except Exception as error:  # noqa: BLE001
                fields = key.log_fields | code_field(error)
                logger.warning("%s: %s", self.tier, error, extra=fields)
            finally:
                woken(key)

        return self._in_background(look_up())

    # ---- releases --------------------------------------------------------------------------------

    def released(self, key: ShuffleKey, end: int | None, *, is_new: bool = True) -> None:
        """Delete a shuffle's known moved map outputs, all or below ``end``.

        Args:
            key: The shuffle.
            end: Only the map attempts below it are released; None: all are.
            is_new: False if the release is repeated. No map attempt below a bound is committed
                after its release, so a repeated one with a bound lists no objects.
        """
        self.uploads.released(key, end)
        known = self._moved.pop(key, {})
        moved = {each: known.pop(each) for each in list(known) if end is None or each < end}
        if known:
            self._moved[key] = known
        moved |= self.copies.released(key, end)
        # Delete manifests first, so that a half deleted map output is not found.
        self.tier.delete_soon([manifest_name(MapAttemptKey(key, each)) for each in moved])
        self.tier.delete_soon([name for names in moved.values() for name in names if name])
        is_repeated = end is not None and not is_new
        if moved or (key.application_id in self._sharing and not is_repeated):
            self._removals.add(key, end)

    def share(self, application_id: str) -> None:
        """Expect map outputs of an application that other TaskManagers copied."""
        self._sharing.add(application_id)

    def superseded(self, attempt: MapAttemptKey) -> None:
        """Delete the copy of a map output that was dropped because it has other bytes now."""
        self.uploads.superseded(attempt)
        names = self.copies.drop(attempt)
        moved = self._moved.pop(attempt.shuffle, {})
        names += moved.pop(attempt.map_attempt_id, [])
        if moved:
            self._moved[attempt.shuffle] = moved
        if names:
            self.uploads.remove(attempt, names)

    def replaced(self, found: MapOutput) -> None:
        """Know one that was found here, and whose place another copy takes, as a remote copy."""
        attempt = _attempt(found)
        moved = self._moved.pop(attempt.shuffle, {})
        names = moved.pop(attempt.map_attempt_id, [])
        if moved:
            self._moved[attempt.shuffle] = moved
        self.copies.keep(found, names)

    def has(self, attempt: MapAttemptKey) -> bool:
        """Return whether the remote tier has a map output, as far as is known here."""
        return self.copies.has(attempt) or self._is_found(attempt)

    def known_of(self, application_id: str) -> dict[ShuffleKey, list[int]]:
        """Return the map attempts of an application that the remote tier has, by shuffle."""
        known = self.copies.of(application_id)
        for key, moved in self._moved.items():
            if key.application_id == application_id:
                found = [each for each in moved if self._is_found(MapAttemptKey(key, each))]
                known[key] = [*known.get(key, ()), *found]
        return known

    def _is_found(self, attempt: MapAttemptKey) -> bool:
        output = self._index.get(*attempt)
        return output is not None and output.is_moved

    def _is_in_use(self, key: ShuffleKey, map_attempt_id: int) -> bool:
        attempt = MapAttemptKey(key, map_attempt_id)
        return (
            map_attempt_id in self._moved.get(key, {})
            or self.copies.has(attempt)
            or self.uploads.is_under_way(attempt)
        )

    def forget(self, application_id: str) -> None:
        """Forget an application's moved map outputs; other TaskManagers may serve them."""
        self._sharing.discard(application_id)
        self._removals.forget(application_id)
        self.uploads.forget(application_id)
        self.copies.forget(application_id)
        for key in [key for key in self._moved if key.application_id == application_id]:
            del self._moved[key]
        for attempt in [
            each for each in self._finding if each.shuffle.application_id == application_id
        ]:
            del self._finding[attempt]

    def ended(self, application_id: str) -> None:
        """Delete all moved map outputs of an application that has ended."""
        self.forget(application_id)

        async def delete() -> None:
            names = [application_marker(name_of_application(application_id))]
            try:
                listed = self.tier.objects.listed(moved_application(application_id))
                async with contextlib.aclosing(listed):
                    async for each in listed:
                        names.append(each.name)
                        if len(names) >= MAX_DELETES:  # the sweep deletes the others
                            break
            except RemoteFailure as failure:
                logger.warning(
                    "%s: the sweep deletes what moved: %s",
                    self.tier,
                    failure,
                    extra={"application": application_id},
                )
            if len(names) > 1:
                self.tier.delete_soon(names)

        self._in_background(delete())

    def applications(self) -> set[str]:
        """Return the applications with moved map outputs."""
        return {key.application_id for key in self._moved} | self.copies.applications()

    def requests(self) -> list["WaitingCall"]:
        """Return the running and the queued lookups and reads of applications, for status."""
        return [*self._lookups.calls(), *self.tier.reading.calls()]

    def status(self) -> RemoteStatus:
        """Return the current work of the remote tier, and totals since the start."""
        tier, objects = self.tier, self.tier.objects
        return RemoteStatus(
            tier.budget.used_bytes,
            tier.budget.waiting,
            tier.waiting_deletes,
            objects.requests,
            objects.errors,
            objects.read_bytes,
            objects.written_bytes,
            self.uploads.moves,
            self.found,
            tier.removed_orphans,
        )

    async def close(self) -> None:
        """Cancel look-ups and deletions under way."""
        if self._losing is not None:
            self._losing.cancel()
        under_way = list(self._tasks)
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way)

    def _note(self, attempt: MapAttemptKey, names: list[str]) -> None:
        self._moved.setdefault(attempt.shuffle, {})[attempt.map_attempt_id] = names

    def _in_background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = start_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def note_missing(self, extent: object) -> None:
        """Forget soon the map outputs that have an extent whose object is missing."""
        self._missing.add(extent)
        if self._losing is None:
            loop = asyncio.get_running_loop()
            self._losing = loop.call_later(_MISSING_SECONDS, self._lose_missing)

    def _lose_missing(self) -> None:
        self._losing = None
        missing, self._missing = self._missing, set()
        self._lost(missing)


def _attempt(output: MapOutput) -> MapAttemptKey:
    return MapAttemptKey(output.key, output.map_attempt_id)
