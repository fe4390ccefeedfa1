"""The copies in the remote tier that the producers of map outputs asked for, or that were found.

A copy is charged to its application, and counts to the quota of this TaskManager, until it is
released, even if the map output here is dropped or lost before. No journal has it: after a restart,
the remote tier is asked whether it has the copy.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from ....names import MapAttemptKey, ShuffleKey
from ...bounds.accounts import Accounts, Resource
from ..errors import OtherRemoteOutput, StorageFull
from ..objects.remote_names import manifest_name
from ..stored_outputs import MapOutput
from ..tiers.remote_tier import RemoteExtent
from ..tiers.slot_allocator import occupied_bytes
from .output_uploads import OutputUploads, Transfer, Uploaded


class RemoteCopy:
    """One copy: the space that is charged for it, and the names of its objects.

    Attributes:
        checksums: The checksums of its regions.
    """

    __slots__ = ("checksums", "names", "space")

    def __init__(self, space: RemoteExtent, output: MapOutput) -> None:
        self.space = space
        self.checksums = _checksums(output)
        self.names: list[str] = []


class RemoteCopies:
    """The copies that one store has made.

    Args:
        uploads: Uploads map outputs.
        accounts: Accounts to charge.
        is_found: Returns whether a map output was found in the remote tier: its objects are then
            charged as a map output that is served here.
    """

    def __init__(
        self, uploads: OutputUploads, accounts: Accounts, is_found: Callable[[MapAttemptKey], bool]
    ) -> None:
        self._uploads: Final = uploads
        self._tier: Final = uploads.tier
        self._accounts: Final = accounts
        self._is_found: Final = is_found
        self._copies: dict[ShuffleKey, dict[int, RemoteCopy]] = {}
        self._refused: dict[ShuffleKey, set[int]] = {}
        """Map outputs whose names have other bytes in the remote tier."""
        self._doubtful: dict[MapAttemptKey, list[str]] = {}
        """Objects that may be there although their upload failed."""

    def has(self, attempt: MapAttemptKey) -> bool:
        """Return whether a map output has a copy that was made, or found, here."""
        return attempt.map_attempt_id in self._copies.get(attempt.shuffle, {})

    def of(self, application_id: str) -> dict[ShuffleKey, list[int]]:
        """Return the map attempts of an application with a copy, by shuffle."""
        return {
            key: list(copies)
            for key, copies in self._copies.items()
            if key.application_id == application_id
        }

    async def make(
        self, output: MapOutput, pace: Callable[[int], Awaitable[None]] | None = None
    ) -> bool:
        """Copy a committed map output to the remote tier.

        Args:
            output: The map output; it may be released, dropped or lost during the call.
            pace: Awaited with its length before the upload. With a pace, the remote tier is first
                asked whether it has the map output.

        Returns:
            Whether it was uploaded; False if the remote tier has it already.

        Raises:
            RemoteFailed: The remote tier does not answer, or failed a short time ago.
            OtherRemoteOutput: The remote tier has a map output of its name with other bytes.
            QuotaExceeded: The application would exceed its quota of the remote tier.
            StorageFull: The TaskManager would exceed its quota of the remote tier.
            SluiceError: The map output cannot be read.

        Cancellation: safe, uploaded parts are deleted.
        """
        attempt = MapAttemptKey(output.key, output.map_attempt_id)
        known = self._copies.get(attempt.shuffle, {}).get(attempt.map_attempt_id)
        if known is not None:
            if known.checksums != _checksums(output):  # committed again after it was lost here
                raise OtherRemoteOutput(*output.key, output.map_attempt_id)
            return False
        self._tier.require_healthy()
        copy = RemoteCopy(self._reserve(output), output)
        is_refused = attempt.map_attempt_id in self._refused.get(attempt.shuffle, ())
        with self._uploads.transfer(output) as transfer:
            found: Uploaded | None = None
            try:
                if pace is not None or is_refused:
                    found = await self._uploads.find(output)
                if found is None:
                    if pace is not None:
                        await pace(output.total_bytes)
                    found = await self._uploads.upload(transfer, output)
            except BaseException as error:
                copy.space.release()
                if not self._uploads.discard(transfer, None):
                    self._note_failure(transfer, error)
                raise
        copy.names = [*found.names, *self._doubtful.pop(attempt, ())]
        is_over = self._uploads.discard(transfer, found)
        if is_over or self._is_found(attempt) or self.has(attempt):
            copy.space.release()
        else:
            self._copies.setdefault(attempt.shuffle, {})[attempt.map_attempt_id] = copy
        return found.is_new

    def keep(self, found: MapOutput, names: list[str]) -> None:
        """Know the objects of a map output that was found here, and is served from elsewhere now.

        They were charged as found, so they are charged without a quota.
        """
        attempt = MapAttemptKey(found.key, found.map_attempt_id)
        copy = RemoteCopy(self._charged(found), found)
        copy.names = [*names, *self.drop(attempt)]
        self._copies.setdefault(attempt.shuffle, {})[attempt.map_attempt_id] = copy

    def _note_failure(self, transfer: Transfer, error: BaseException) -> None:
        attempt = transfer.attempt
        if isinstance(error, OtherRemoteOutput):
            self._refused.setdefault(attempt.shuffle, set()).add(attempt.map_attempt_id)
        if transfer.names is not None:
            self._doubtful.setdefault(attempt, []).extend(transfer.names)

    def _reserve(self, output: MapOutput) -> RemoteExtent:
        """Charge the space of a copy.

        Raises:
            QuotaExceeded: The application has no room.
            StorageFull: The TaskManager has no room.
        """
        length = output.total_bytes
        account = self._accounts.of(output.key.application_id)
        account.require_room(Resource.REMOTE_TIER_BYTES, occupied_bytes(length))
        if not self._tier.has_room(length):
            free_bytes = self._tier.largest_free_bytes()
            raise StorageFull(length, free_bytes, "remote_quota_bytes is reached")
        return self._charged(output)

    def _charged(self, output: MapOutput) -> RemoteExtent:
        attempt = MapAttemptKey(output.key, output.map_attempt_id)
        application_id = output.key.application_id
        space = self._tier.moved_here(manifest_name(attempt), output.total_bytes, application_id)
        space.charge_to(self._accounts.of(application_id))
        return space

    def released(self, key: ShuffleKey, end: int | None) -> dict[int, list[str]]:
        """Forget the copies of a released shuffle; return the names of their objects.

        Args:
            key: The shuffle.
            end: Only the map attempts below it are released; None: all are.
        """
        return self._forget(key, end)

    def forget(self, application_id: str) -> None:
        """Forget the copies of an application; other TaskManagers may serve them."""
        for key in {*self._copies, *self._refused, *(each.shuffle for each in self._doubtful)}:
            if key.application_id == application_id:
                self._forget(key, None)

    def drop(self, attempt: MapAttemptKey) -> list[str]:
        """Forget a copy without deleting it; return the names of its objects."""
        names = self._doubtful.pop(attempt, [])
        copies = self._copies.get(attempt.shuffle, {})
        copy = copies.pop(attempt.map_attempt_id, None)
        if copy is None:
            return names
        if not copies:
            del self._copies[attempt.shuffle]
        copy.space.release()
        return [*copy.names, *names]

    def applications(self) -> set[str]:
        """Return the applications with copies."""
        return {key.application_id for key in self._copies}

    def _forget(self, key: ShuffleKey, end: int | None) -> dict[int, list[str]]:
        refused = self._refused.pop(key, set())
        if end is not None and (left := {each for each in refused if each >= end}):
            self._refused[key] = left
        copies = self._copies.pop(key, {})
        gone = {each: copies.pop(each) for each in list(copies) if end is None or each < end}
        if copies:
            self._copies[key] = copies
        for copy in gone.values():
            copy.space.release()
        names = {each: copy.names for each, copy in gone.items()}
        for attempt in [each for each in self._doubtful if each.shuffle == key]:
            if end is None or attempt.map_attempt_id < end:
                names.setdefault(attempt.map_attempt_id, []).extend(self._doubtful.pop(attempt))
        return names


def _checksums(output: MapOutput) -> tuple[int, ...]:
    return tuple([region.crc32c for region in output.regions])
