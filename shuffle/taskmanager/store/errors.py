"""Errors of the storage.

Except for :class:`StorageClosed`, each concerns one map output or directory; the store still serves
the others.
"""

from pathlib import Path

from ....protocol.errors import ErrorCode, Fault, SluiceError


class StorageError(SluiceError):
    """Root of the storage errors."""

    code = ErrorCode.STORAGE_UNAVAILABLE


class StorageFull(StorageError):
    """No tier has room for an extent.

    Args:
        required_bytes: Length of the region.
        largest_free_bytes: Longest extent that any tier could allocate.
        detail: State of the tiers, one clause each.
    """

    code = ErrorCode.STORAGE_FULL

    def __init__(self, required_bytes: int, largest_free_bytes: int, detail: str) -> None:
        super().__init__(
            f"no storage for a region of {required_bytes} bytes: {detail}",
            value=required_bytes,
            limit=largest_free_bytes,
            remedy="Raise memory_tier_bytes or disk_quota_bytes, add a data directory or a "
            "remote tier, or free disk space",
        )
        self.required_bytes = required_bytes
        self.largest_free_bytes = largest_free_bytes


class StorageUnavailable(StorageError):
    """A directory cannot be used.

    Args:
        directory: The directory, or several joined by a comma.
        reason: Cause, for the message.
        remedy: Advice to the operator; empty: the default advice.
    """

    def __init__(self, directory: Path | str, reason: str, remedy: str = "") -> None:
        super().__init__(
            f"storage directory {directory} cannot be used: {reason}",
            remedy=remedy
            or "Check that the directory is writable and on a working disk, or correct "
            "data_directories or memory_directory",
        )
        self.directory = directory
        self.reason = reason


class StorageInUse(StorageUnavailable):
    """Another process holds the lock of a directory.

    Args:
        directory: The directory.
        holder: Content of the lock file, usually the holder's process id; may be empty.
    """

    def __init__(self, directory: Path | str, holder: str) -> None:
        super().__init__(
            directory,
            f"it is in use by another TaskManager (process {holder or 'unknown'})",
            "Stop that TaskManager, or give this one its own data_directories and memory_directory",
        )
        self.holder = holder


class DirectoryHangs(StorageUnavailable):
    """A directory does not answer, so its calls were given up.

    Args:
        directory: The directory.
        reason: How that was noticed.
    """

    retryable = True

    def __init__(self, directory: Path | str, reason: str) -> None:
        super().__init__(
            directory,
            reason,
            "Check the disk; the directory is used again, without a restart, when it answers",
        )


class RemoteFailed(StorageError):
    """A request to the remote tier failed, after all retries.

    Args:
        what: The request, with the URL of the tier.
        reason: Cause, without any credentials.
        timeout_seconds: Time limit of the retries.
    """

    retryable = True

    def __init__(self, what: str, reason: str, timeout_seconds: float) -> None:
        super().__init__(
            f"{what} failed: {reason}",
            limit=f"{timeout_seconds:g} s",
            remedy="Check that the remote store answers and accepts this host's credentials, or "
            "raise remote_timeout_seconds; it is used again when it answers",
        )


class RemoteFull(RemoteFailed):
    """The remote tier has no room."""

    code = ErrorCode.STORAGE_FULL


class RemoteObjectMissing(StorageError):
    """An object of the remote tier is missing.

    Args:
        url: URL of the tier.
        name: Name of the object.
        extent: The extent that the object is.
    """

    def __init__(self, url: str, name: str, extent: object) -> None:
        super().__init__(
            f"an object is gone: {url}/{name}",
            remedy="Check whether a rule of the bucket removes objects",
        )
        self.extent = extent


class StorageReadFailed(StorageError):
    """A read from a data directory failed or ended early.

    Args:
        path: The arena file.
        offset: Position in that file.
        expected_bytes: Bytes to be read.
        received_bytes: Bytes that were read.
        reason: Message of the operating system, or "end of file".
        is_lost: Whether the bytes are gone; otherwise another read may succeed.

    Attributes:
        is_lost: Whether the bytes are gone.
    """

    code = ErrorCode.STORAGE_CORRUPT

    def __init__(
        self,
        path: Path | str,
        offset: int,
        expected_bytes: int,
        received_bytes: int,
        reason: str,
        *,
        is_lost: bool = False,
    ) -> None:
        super().__init__(
            f"reading {path} at {offset} gave {received_bytes} of {expected_bytes} bytes: {reason}",
            value=received_bytes,
            limit=expected_bytes,
            remedy="Check the disk",
        )
        self.path = path
        self.is_lost = is_lost


class SpilledBytesDamaged(StorageError):
    """Bytes of a hybrid partition changed in a storage tier."""

    code = ErrorCode.STORAGE_CORRUPT

    def __init__(self, found: int, expected: int) -> None:
        super().__init__(
            "Spilled bytes of a hybrid partition do not match their checksum",
            value=f"{found:08x}",
            limit=f"{expected:08x}",
            remedy="Check the disk; the producer has to run again",
        )


class StorageWriteFailed(StorageError):
    """A write to a data directory failed; the map attempt must be repeated.

    Args:
        path: The arena file.
        offset: Position in that file.
        length: Number of bytes to write.
        reason: Message of the operating system.
    """

    retryable = True

    def __init__(self, path: Path, offset: int, length: int, reason: str) -> None:
        super().__init__(
            f"writing {length} bytes to {path} at {offset} failed: {reason}",
            value=length,
            remedy="Check the disk and its free space",
        )
        self.path = path


class JournalWriteFailed(StorageError):
    """Rows could not be written to a journal, so they have no effect.

    Args:
        directory: The directory; None: not known.
        reason: Message of the operating system.
    """

    retryable = True

    def __init__(self, directory: Path | None, reason: str) -> None:
        where = "" if directory is None else f" of {directory}"
        super().__init__(
            f"the journal{where} cannot be written: {reason}",
            remedy="Free disk space or replace the disk",
        )


class CorruptJournal(StorageError):
    """A journal is damaged. The rows in its intact records are still valid.

    Args:
        path: The journal.
        offset: Where the damage begins.
        size: Size of the file, in bytes.
        reason: Description of the damage.
    """

    code = ErrorCode.STORAGE_CORRUPT

    def __init__(self, path: Path, offset: int, size: int, reason: str) -> None:
        super().__init__(
            f"journal {path} is damaged: {reason}",
            value=offset,
            limit=size,
            remedy="Check the disk; map outputs with damaged rows are computed again",
        )
        self.path = path
        self.offset = offset


class OutsideRegion(StorageError):
    """Bytes were written or read outside a region.

    Args:
        end: Offset after the last of these bytes.
        length: Length of the region.
    """

    code = ErrorCode.REGION_MISMATCH
    fault = Fault.LOCAL

    def __init__(self, end: int, length: int) -> None:
        super().__init__(
            "region data lies outside the region",
            value=end,
            limit=length,
            remedy="The producer must send as many bytes as it announced",
        )


class DuplicateMapOutput(StorageError):
    """The map attempt is committed, or its commit is being written."""

    code = ErrorCode.DUPLICATE_MAP_OUTPUT

    def __init__(self, application_id: str, shuffle_id: int, map_attempt_id: int) -> None:
        super().__init__(
            f"map attempt {map_attempt_id} of shuffle {shuffle_id} of {application_id} "
            "is committed already",
            value=map_attempt_id,
            remedy="Each map attempt commits once; a repeated task has a new attempt id",
            map_attempt_id=map_attempt_id,
        )


class OtherMapOutput(StorageError):
    """A copy has the name of a map output with other bytes."""

    code = ErrorCode.REGION_MISMATCH

    def __init__(self, application_id: str, shuffle_id: int, map_attempt_id: int) -> None:
        super().__init__(
            f"map attempt {map_attempt_id} of shuffle {shuffle_id} of {application_id} "
            "has other bytes here than its copy",
            value=map_attempt_id,
            remedy="Give each map attempt an id of its own, also when a task is repeated",
            map_attempt_id=map_attempt_id,
        )


class OtherRemoteOutput(StorageError):
    """The remote tier has a map output of the same name with other bytes."""

    code = ErrorCode.REGION_MISMATCH

    def __init__(self, application_id: str, shuffle_id: int, map_attempt_id: int) -> None:
        super().__init__(
            f"the remote tier has map attempt {map_attempt_id} of shuffle {shuffle_id} of "
            f"{application_id} with other bytes, perhaps of an earlier application",
            value=map_attempt_id,
            remedy="Give each application an id of its own, and each map attempt too, also when a "
            "task is repeated",
            map_attempt_id=map_attempt_id,
        )


class OutputGone(StorageError):
    """The map output was released, dropped or replaced before its copy was complete."""

    code = ErrorCode.PARTITION_RELEASED

    def __init__(self, application_id: str, shuffle_id: int, map_attempt_id: int) -> None:
        super().__init__(
            f"map attempt {map_attempt_id} of shuffle {shuffle_id} of {application_id} was "
            "released, dropped or replaced while it was copied to the remote tier",
            value=map_attempt_id,
            remedy="No action is needed",
            map_attempt_id=map_attempt_id,
        )


class ReleasedDuringCommit(StorageError):
    """The shuffle was released before the commit was written.

    Args:
        application_id: The application.
        shuffle_id: The shuffle.
        map_attempt_id: The map attempt.
        end: The bound of the release, for a copier that does not know of it; None: none.
    """

    code = ErrorCode.PARTITION_RELEASED

    def __init__(
        self, application_id: str, shuffle_id: int, map_attempt_id: int, end: int | None = None
    ) -> None:
        super().__init__(
            f"shuffle {shuffle_id} of {application_id} was released during the commit "
            f"of map attempt {map_attempt_id}",
            value=end,
            remedy="Nothing to do: a released shuffle is no longer read",
            map_attempt_id=map_attempt_id,
        )


class StorageClosed(StorageError):
    """The store was closed."""

    code = ErrorCode.SHUTTING_DOWN

    def __init__(self) -> None:
        super().__init__("the storage is closed", remedy="Ask another TaskManager")
