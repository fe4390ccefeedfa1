"""The copies in the remote tier of map outputs that are here, as their producers asked for.

A copy is charged to its application, and counts to the quota of this TaskManager, until it is
released or no longer this TaskManager's. No journal has it: after a restart, the remote tier is
asked whether it has the copy.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from ....names import MapAttemptKey, ShuffleKey
from ...bounds.accounts import Accounts, Resource
from ..errors import StorageFull
from ..objects.remote_names import manifest_name
from ..stored_outputs import MapOutput
from ..tiers.remote_tier import RemoteExtent
from ..tiers.slot_allocator import occupied_bytes
from .output_uploads import OutputUploads


class RemoteCopy:
    """One copy: the space that is charged for it, and the names of its objects."""

    __slots__ = ("names", "space")

    def __init__(self, space: RemoteExtent, names: list[str]) -> None:
        self.space = space
        self.names = names


class RemoteCopies:
    """The copies that one store has made.

    Args:
        uploads: Uploads map outputs.
        accounts: Accounts to charge.
        is_here: Returns whether a map output is still committed here.
    """

    def __init__(
        self, uploads: OutputUploads, accounts: Accounts, is_here: Callable[[MapOutput], bool]
    ) -> None:
        self._uploads: Final = uploads
        self._tier: Final = uploads.tier
        self._accounts: Final = accounts
        self._is_here: Final = is_here
        self._copies: dict[ShuffleKey, dict[int, RemoteCopy]] = {}

    def has(self, attempt: MapAttemptKey) -> bool:
        """Return whether a map output has a copy that was made, or found, here."""
        return attempt.map_attempt_id in self._copies.get(attempt.shuffle, {})

    async def make(
        self, output: MapOutput, pace: Callable[[int], Awaitable[None]] | None = None
    ) -> bool:
        """Copy a committed map output to the remote tier.

        Args:
            output: The map output; it may be released during the call.
            pace: Awaited with its length before the upload. With a pace, the remote tier is first
                asked whether it has the map output.

        Returns:
            Whether it was uploaded; False if the remote tier has it already.

        Raises:
            RemoteFailed: The remote tier does not answer, or failed a short time ago.
            QuotaExceeded: The application would exceed its quota of the remote tier.
            StorageFull: The TaskManager would exceed its quota of the remote tier.
            SluiceError: The map output cannot be read.

        Cancellation: safe, uploaded parts are deleted.
        """
        attempt = MapAttemptKey(output.key, output.map_attempt_id)
        if self.has(attempt):
            return False
        self._tier.require_healthy()
        space = self._reserve(output)
        try:
            with output.kept():
                found = None if pace is None else await self._uploads.find(output)
                if found is None:
                    if pace is not None:
                        await pace(output.total_bytes)
                    found = await self._uploads.upload(output)
        except BaseException:
            space.release()
            raise
        if self.has(attempt):
            space.release()
        elif self._is_here(output):
            copies = self._copies.setdefault(output.key, {})
            copies[output.map_attempt_id] = RemoteCopy(space, found.names)
        else:  # it was released meanwhile
            space.release()
            self._tier.delete_soon([manifest_name(attempt), *filter(None, found.names)])
        return found.is_new

    def _reserve(self, output: MapOutput) -> RemoteExtent:
        """Charge the space of a copy.

        Raises:
            QuotaExceeded: The application has no room.
            StorageFull: The TaskManager has no room.
        """
        length = output.total_bytes
        application_id = output.key.application_id
        account = self._accounts.of(application_id)
        account.require_room(Resource.REMOTE_TIER_BYTES, occupied_bytes(length))
        if not self._tier.has_room(length):
            free_bytes = self._tier.largest_free_bytes()
            raise StorageFull(length, free_bytes, "remote_quota_bytes is reached")
        attempt = MapAttemptKey(output.key, output.map_attempt_id)
        space = self._tier.moved_here(manifest_name(attempt), length, application_id)
        space.charge_to(account)
        return space

    def released(self, key: ShuffleKey, end: int | None) -> dict[int, list[str]]:
        """Forget the copies of a released shuffle; return the names of their objects.

        Args:
            key: The shuffle.
            end: Only the map attempts below it are released; None: all are.
        """
        copies = self._copies.pop(key, {})
        gone = {each: copies.pop(each) for each in list(copies) if end is None or each < end}
        if copies:
            self._copies[key] = copies
        for copy in gone.values():
            copy.space.release()
        return {each: copy.names for each, copy in gone.items()}

    def forget(self, application_id: str) -> None:
        """Forget the copies of an application; other TaskManagers may serve them."""
        for key in [key for key in self._copies if key.application_id == application_id]:
            self.released(key, None)

    def applications(self) -> set[str]:
        """Return the applications with copies."""
        return {key.application_id for key in self._copies}
