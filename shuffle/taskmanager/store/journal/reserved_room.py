"""Space that a file system reserves for a growing file.

Other programs cannot use this space. The length of the file does not change, so a reader does not
find zeros after the data.
"""

from typing import Final

from ..files.file_calls import UNSUPPORTED, fallocate
from ..tiers.tier import FULL

RESERVED_BYTES: Final = 1024 * 1024
"""Room ahead of a journal: for 130 map outputs of 2,000 subpartitions, or thousands with few."""

RELEASES_BYTES: Final = 64 * 1024
"""The last part of that is only for releases; the file of releases reserves as much."""

_FALLOC_FL_KEEP_SIZE: Final = 1


class ReservedRoom:
    """The reserved room after the end of a file. Methods block.

    Args:
        fd: The file.
        end: End of the written bytes.
        ahead_bytes: Bytes to reserve at a time.
    """

    __slots__ = ("_ahead_bytes", "_end", "_fd", "_is_possible")

    def __init__(self, fd: int, end: int, ahead_bytes: int) -> None:
        self._fd = fd
        self._end = end
        self._ahead_bytes = ahead_bytes
        self._is_possible = True

    def require(self, start: int, length: int, kept_bytes: int = 0) -> None:
        """Reserve room for a write, and for ``kept_bytes`` after it.

        Args:
            start: Start of the write: the end of the file.
            length: Bytes to write.
            kept_bytes: Bytes that other writes will need.

        Raises:
            OSError: There is no room; earlier reservations stay.
        """
        least = start + length + kept_bytes
        if least <= self._end or not self._is_possible:
            return
        try:
            for end in (start + length + self._ahead_bytes, least):
                try:
                    fallocate(self._fd, _FALLOC_FL_KEEP_SIZE, start, end - start)
                except OSError as error:
                    if error.errno not in FULL or end == least:
                        raise
                else:
                    self._end = end
                    return
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            self._is_possible = False  # write without reserving, as long as there is room

    def forget(self, end: int) -> None:
        """Record that the file was truncated, which also freed the room after its end."""
        self._end = end
