"""The temporary file that a very long record goes to while its parts arrive."""

import mmap
import tempfile
from contextlib import suppress
from typing import Final

from shuffle.records.errors import SpillFailed
from shuffle.records.framing import BytesLike


class SpillFile:
    """One record of known length, written in order and then read back as memory.

    The file has no name in its directory (where the system allows it), so that nothing is left
    even of a process that was killed. Writing goes to the page cache, on the caller's thread.

    Args:
        length_bytes: Length of the record, at least 1.
        directory: Where to put the file; the system's temporary directory by default.

    Raises:
        SpillFailed: The file cannot be made.
    """

    def __init__(self, length_bytes: int, directory: str | None = None) -> None:
        self.length_bytes: Final = length_bytes
        self.written_bytes = 0
        self._directory = directory
        self._mapping: mmap.mmap | None = None
        self._view: memoryview | None = None
        try:
            self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115
        except OSError as error:
            raise self._failed("made", error) from error

    def write(self, part: BytesLike) -> None:
        """Append a part of the record.

        Raises:
            SpillFailed: The disk is full or broken.
        """
        view = memoryview(part)
        try:
            while view:
                count = self._file.write(view) or 0
                self.written_bytes += count
                view = view[count:]
        except OSError as error:
            raise self._failed("written", error) from error

    def read(self) -> memoryview:
        """Return the whole record, mapped; valid until :meth:`close`.

        Raises:
            SpillFailed: It cannot be mapped.
        """
        try:
            self._mapping = mmap.mmap(
                self._file.fileno(), self.length_bytes, access=mmap.ACCESS_READ
            )
        except (OSError, ValueError) as error:
            raise self._failed("read", error) from error
        finally:
            self._file.close()
        self._view = memoryview(self._mapping)
        return self._view

    def close(self) -> None:
        """Give file and mapping back. Idempotent.

        A view that somebody made of the record keeps the mapping until it is garbage: a late
        reader meets the old bytes, never a crash.
        """
        self._file.close()
        if self._view is not None:
            with suppress(BufferError):
                self._view.release()
        if self._mapping is not None:
            with suppress(BufferError):
                self._mapping.close()
        self._view = self._mapping = None

    def _failed(self, what: str, error: OSError | ValueError) -> SpillFailed:
        return SpillFailed(
            f"Temporary file of a long record cannot be {what}: {error}",
            value=self.length_bytes,
            remedy="Free space in the temporary directory, name another one as spill_directory, or"
            " raise spill_threshold_bytes",
        )
