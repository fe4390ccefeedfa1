"""Region areas: shared memory that producers fill and the store copies from.

An area is a file on tmpfs that the TaskManager creates and an executor maps. A region in an area
costs one message and one copy, instead of a socket's two copies and its credit. Other executors
cannot open it: each area is a separate file with a random name in a directory that cannot be
listed, and the store's files stay private. The TaskManager reads an area with ``pread``, never
through a mapping, so a truncated file causes an error instead of a SIGBUS.

Each connection to which an area is attached holds a reference to it, and so does each running copy.
The next start removes the files of a killed daemon. If the directory is removed, e.g. by systemd's
RemoveIPC, the areas in use stay usable, and the next area creates the directory again.
"""

import asyncio
import logging
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from ....transport.errors import code_field
from ..bounds.accounts import Accounts, QuotaExceeded, Resource
from .errors import StorageError, StorageUnavailable
from .files.file_calls import allot
from .files.io_threads import IoThreads
from .health.directories import DirectoryLock
from .store_status import RegionAreasStatus
from .tiers.tier import Referenced

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..config.storage_config import StorageConfig

logger = logging.getLogger(__name__)

DIRECTORY_NAME = "areas"
_TOKEN_BYTES = 16


class RegionArea(Referenced):
    """A region area; the last release removes its file.

    Attributes:
        application_id: The owner; connections of other applications cannot attach the area.
        path: Its file; the file name is the token that names the area on the wire.
        fd: Descriptor of the file.
        size_bytes: Size of the file, fully allocated.
    """

    __slots__ = ("_removed", "application_id", "fd", "path", "size_bytes")

    def __init__(
        self,
        application_id: str,
        path: Path,
        fd: int,
        size_bytes: int,
        removed: "Callable[[RegionArea], None]",
    ) -> None:
        super().__init__()
        self.application_id = application_id
        self.path = path
        self.fd = fd
        self.size_bytes = size_bytes
        self._removed = removed

    @property
    def token(self) -> str:
        """Name of the area on the wire."""
        return self.path.name

    def _give_back(self) -> None:
        _remove(self.fd, self.path)
        self._removed(self)

    def __repr__(self) -> str:
        return f"<RegionArea {self.path} references={self._references}>"


class AreasDirectory:
    """The locked directory of the areas. Methods block and are not thread-safe.

    Args:
        path: The directory; it is created if missing, and areas of a killed daemon are removed.
        enclosing: Parent directories that executors must be able to enter.

    Raises:
        StorageUnavailable: The directory cannot be used.
        StorageInUse: Another process uses it.
        OSError: It cannot be created.
    """

    def __init__(self, path: Path, enclosing: "Sequence[Path]" = ()) -> None:
        self.path = path
        self._enclosing = enclosing
        self._lock = self._open()

    def make(self, name: str, size_bytes: int) -> int:
        """Create an area's file with all its pages, and the directory if it was removed.

        Returns:
            The file's descriptor.

        Raises:
            OSError: The file cannot be created.
            StorageError: The directory was removed and cannot be created again.
        """
        try:
            return _make(self.path / name, size_bytes)
        except FileNotFoundError:
            logger.warning("the region areas' directory %s was removed: making it again", self.path)
        lock = self._open()
        self._lock.release()
        self._lock = lock
        return _make(self.path / name, size_bytes)

    def close(self) -> None:
        """Unlock the directory."""
        self._lock.release()

    def _open(self) -> DirectoryLock:
        lock = DirectoryLock(self.path)
        try:
            _remove_areas(self.path)
            # Executors may run as another user, who may enter these directories but not list them.
            for each in (*self._enclosing, self.path):
                each.chmod(0o711)
        except OSError:
            lock.release()
            raise
        return lock


class RegionAreas:
    """All areas of a TaskManager. Belongs to the event-loop thread.

    Args:
        directory: Directory of the areas, closed by :meth:`close`; None: there are no areas.
        limit_bytes: Maximum bytes of all areas together.
        accounts: Accounts to charge for areas; by default there are no quotas.
    """

    def __init__(
        self,
        directory: AreasDirectory | None,
        limit_bytes: int,
        accounts: Accounts | None = None,
    ) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._accounts = accounts or Accounts()
        self._areas: dict[str, RegionArea] = {}
        self._making_bytes = 0
        self._file_thread = IoThreads(1, "sluice-region-area")

    @classmethod
    def open(cls, config: "StorageConfig", accounts: Accounts) -> "RegionAreas":
        """Create the directory, and remove the files of a killed daemon. Blocks.

        If the directory cannot be used, log the reason; then executors send regions through the
        socket.
        """
        directory, enclosing = config.region_areas_directory, list[Path]()
        if directory is None and config.memory_directory is not None:
            directory = config.memory_directory / DIRECTORY_NAME
            enclosing = [config.memory_directory]
        if directory is None:
            return cls(None, 0)
        if not config.region_areas_bytes:
            _remove_left(directory)
            return cls(None, 0)
        try:
            _require_utf8(directory)
            opened = AreasDirectory(directory, enclosing)
        except (OSError, StorageUnavailable) as error:
            logger.warning(
                "no region areas, executors send regions through the socket: %s",
                error,
                extra=code_field(error),
            )
            return cls(None, 0)
        return cls(opened, config.region_areas_bytes, accounts)

    def status(self) -> RegionAreasStatus:
        """Return the number and total size of the areas."""
        return RegionAreasStatus(len(self._areas), self.used_bytes)

    @property
    def used_bytes(self) -> int:
        """Bytes of all areas."""
        return sum(area.size_bytes for area in self._areas.values())

    def find(self, application_id: str, token: str) -> RegionArea | None:
        """Return an application's area, retained for the caller, or None."""
        area = self._areas.get(token)
        if area is None or area.application_id != application_id:
            return None
        area.retain()
        return area

    async def create(self, application_id: str, size_bytes: int) -> RegionArea | None:
        """Create an area, in a thread because allocating its pages takes a while.

        Returns:
            The area, retained for the caller. None if there is no directory or no room, or the
            application is at its quota; it can work without an area.

        Cancellation: safe; an area created in the meantime is removed.
        """
        directory = self._directory
        taken = self.used_bytes + self._making_bytes
        if directory is None or size_bytes < 1 or taken + size_bytes > self._limit_bytes:
            return None
        account = self._accounts.of(application_id)
        try:
            account.take(Resource.REGION_AREAS_BYTES, size_bytes)
        except QuotaExceeded as error:
            logger.warning(
                "no region area of %d bytes for %s: %s",
                size_bytes,
                application_id,
                error,
                extra={"application": application_id, **code_field(error)},
            )
            return None
        path = directory.path / secrets.token_hex(_TOKEN_BYTES)
        self._making_bytes += size_bytes
        made: list[int] = []
        try:
            await self._file_thread.run(lambda: made.append(directory.make(path.name, size_bytes)))
        except asyncio.CancelledError:
            account.give_back(Resource.REGION_AREAS_BYTES, size_bytes)
            for fd in made:
                _remove(fd, path)
            raise
        except (OSError, StorageError) as error:
            account.give_back(Resource.REGION_AREAS_BYTES, size_bytes)
            logger.warning(
                "no region area of %d bytes in %s: %s",
                size_bytes,
                path.parent,
                error,
                extra={"application": application_id, **code_field(error)},
            )
            return None
        finally:
            self._making_bytes -= size_bytes
        area = RegionArea(application_id, path, made[0], size_bytes, self._removed)
        self._areas[area.token] = area
        return area

    def close(self) -> None:
        """Unlock the directory. Call this after all connections and areas are gone."""
        self._file_thread.end()
        if self._directory is not None:
            self._directory.close()
            self._directory = None

    def _removed(self, area: RegionArea) -> None:
        del self._areas[area.token]
        self._accounts.of(area.application_id).give_back(
            Resource.REGION_AREAS_BYTES, area.size_bytes
        )


def _make(path: Path, size_bytes: int) -> int:
    """Create an area's file with all pages; return its descriptor. Runs in a thread."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # Touching a page that a full tmpfs cannot allocate kills the executor with SIGBUS.
        allot(fd, 0, size_bytes)
        os.fchmod(fd, 0o666)
    except OSError:
        _remove(fd, path)
        raise
    return fd


def _remove(fd: int, path: Path) -> None:
    os.close(fd)
    path.unlink(missing_ok=True)


def _require_utf8(directory: Path) -> None:
    """Refuse a directory whose name the protocol cannot encode.

    Raises:
        StorageUnavailable: Its name is not UTF-8.
    """
    name = os.fsencode(directory)
    try:
        name.decode()
    except UnicodeDecodeError:
        printable = Path(name.decode(errors="backslashreplace"))
        raise StorageUnavailable(
            printable, "its name is not UTF-8", "Set region_areas_directory to one whose name is"
        ) from None


def _remove_areas(directory: Path) -> tuple[int, int]:
    """Remove the areas of a killed daemon; return their number and bytes.

    Raises:
        OSError: They cannot be listed or removed.
    """
    number = size_bytes = 0
    for path in directory.iterdir():
        if _is_token(path.name):
            size_bytes += path.stat().st_size
            path.unlink()
            number += 1
    return number, size_bytes


def _remove_left(directory: Path) -> None:
    """Remove the areas of a killed daemon when areas are turned off. Blocks."""
    if not directory.is_dir():
        return
    try:
        lock = DirectoryLock(directory)
    except (OSError, StorageUnavailable) as error:
        logger.warning(
            "region areas of an earlier run may be left in %s: %s",
            directory,
            error,
            extra=code_field(error),
        )
        return
    try:
        number, size_bytes = _remove_areas(directory)
    except OSError as error:
        logger.warning("region areas of an earlier run are left in %s: %s", directory, error)
    else:
        if number:
            logger.warning(
                "region_areas_bytes is 0: removed %d region areas that an earlier run left in %s, "
                "%d bytes",
                number,
                directory,
                size_bytes,
            )
    finally:
        lock.release()


def _is_token(name: str) -> bool:
    return len(name) == 2 * _TOKEN_BYTES and all(digit in "0123456789abcdef" for digit in name)
