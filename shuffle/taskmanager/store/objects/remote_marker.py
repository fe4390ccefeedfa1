"""The marker of this TaskManager in the remote tier.

The time of its object is the clock of the remote store. In a remote directory it shows, too, that
the directory is still the one that was marked at the start: the bare mount point of a file system
that was unmounted takes files as well, and has no marker with the content of this process.
"""

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from .remote_failure import RemoteFailure

if TYPE_CHECKING:
    import datetime

    from .remote_directory import Identity
    from .remote_objects import RemoteObjects

CHECK_REQUESTS: Final = 4
"""Maximum number of requests of a check."""

_NOT_MOUNTED: Final = "the directory is not mounted: this TaskManager's marker is missing"


class RemoteMarker:
    """Writes and checks the marker.

    Args:
        objects: The remote store.
        name: Returns the name of the marker.
    """

    def __init__(self, objects: "RemoteObjects", name: Callable[[], str]) -> None:
        self._objects = objects
        self._name = name
        # Random, because an earlier process may have marked the bare mount point.
        self._content = secrets.token_hex(16).encode() if objects.is_directory else b""
        self._marked: Identity | None = None

    async def touch(self) -> "datetime.datetime":
        """Write the marker; return the time of the remote store.

        Raises:
            RemoteFailure: A request failed, or the directory is not the one that was marked.

        Cancellation: safe.
        """
        if self._marked is not None:
            await self.require_same()
        identity = await self._objects.identity() if self._objects.is_directory else None
        await self._objects.put(self._name(), self._content)
        self._marked = self._marked or identity
        return await self._objects.modified(self._name())

    async def require_same(self) -> None:
        """Check that a remote directory is the one that was marked; a bucket always is.

        Raises:
            RemoteFailure: It is not, or it does not answer.

        Cancellation: safe.
        """
        if not self._objects.is_directory:
            return
        if self._marked is None:
            await self.touch()
            return
        try:
            found = await self._objects.get(self._name())
        except RemoteFailure as failure:
            if not failure.missing:
                raise
            found = b""
        if found == self._content:
            return
        if await self._objects.identity() != self._marked:
            raise RemoteFailure(_NOT_MOUNTED)
        await self._objects.put(self._name(), self._content)  # somebody emptied the directory

    async def require_stored(self, name: str) -> None:
        """Check before an acknowledgment that an object lies in the marked directory.

        Raises:
            RemoteFailure: It does not, or the directory does not answer.

        Cancellation: safe.
        """
        if not self._objects.is_directory:
            return
        await self.require_same()
        try:
            await self._objects.modified(name)
        except RemoteFailure as failure:
            if failure.missing:  # it was mounted after the object had gone to the mount point
                raise RemoteFailure("the directory was mounted during the write") from failure
            raise
