"""The spanning deserializer: reassembles the records of one channel.

The deserializer has one buffer at a time. A record that lies whole in the buffer is returned as a
view, uncopied; a record that spans buffers is gathered in memory of its own, a very long one in a
temporary file (:class:`SpillFile`). Even the length before a record may be cut.

A view is valid until the next call; a buffer is released when its last view has ended. A record
gathered in memory is a bytearray, which belongs to the caller.
"""

import mmap
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ...protocol.errors import ErrorCode, SluiceError
from ..errors import RecordTooLarge
from .framing import (
    DEFAULT_MAXIMUM_RECORD_BYTES,
    LENGTH,
    LENGTH_BYTES,
    BytesLike,
    DeserializationResult,
    split_equal_frames,
)

DEFAULT_SPILL_THRESHOLD_BYTES: Final = 5 << 20
"""Longer records are gathered in a file: a gate may have one such record for each channel."""

_unpack_length: Final = LENGTH.unpack_from


class SpillFile:
    """A temporary file for one very long record, written in order and then mapped into memory.

    The file has no name in its directory (where the system allows it), so that not even a process
    that is killed leaves a file behind. Writing goes to the page cache, on the caller's thread.

    Args:
        length_bytes: Length of the record, at least 1.
        directory: Where to put the file; the system's temporary directory by default.

    Raises:
        STORAGE_UNAVAILABLE: The file cannot be made.
    """

    def __init__(self, length_bytes: int, directory: str | None = None) -> None:
        self.length_bytes: Final = length_bytes
        self._mapping: mmap.mmap | None = None
        self._view: memoryview | None = None
        try:
            self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115
        except OSError as error:
            raise self._failed("made", error) from error

    def write(self, part: BytesLike) -> None:
        """Append a part of the record.

        Raises:
            STORAGE_UNAVAILABLE: The disk is full or broken.
        """
        view = memoryview(part)
        try:
            while view:
                view = view[self._file.write(view) or 0 :]
        except OSError as error:
            raise self._failed("written", error) from error

    def read(self) -> memoryview:
        """Return the whole record, mapped; valid until :meth:`close`.

        Raises:
            STORAGE_UNAVAILABLE: It cannot be mapped.
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
        """Close the file and the mapping. Idempotent.

        A slice of the record's view keeps the mapping alive: a late reader sees old bytes, never a
        crash.
        """
        self._file.close()
        if self._view is not None:
            with suppress(BufferError):
                self._view.release()
        if self._mapping is not None:
            with suppress(BufferError):
                self._mapping.close()
        self._view = self._mapping = None

    def _failed(self, what: str, error: OSError | ValueError) -> SluiceError:
        return SluiceError(
            f"The temporary file of a long record cannot be {what}: {error}",
            code=ErrorCode.STORAGE_UNAVAILABLE,
            value=self.length_bytes,
            remedy="Free space in the temporary directory, set spill_directory to another one, or"
            " raise spill_threshold_bytes",
        )


_PARTIAL: Final = (DeserializationResult.PARTIAL_RECORD, None)
_INTERMEDIATE: Final = DeserializationResult.INTERMEDIATE_RECORD_FROM_BUFFER
_LAST: Final = DeserializationResult.LAST_RECORD_FROM_BUFFER


class SpanningRecordDeserializer:
    """Reads the records of one channel, buffer by buffer.

    Args:
        spill_threshold_bytes: Records longer than this are gathered in a temporary file.
        maximum_record_bytes: Longer records are an error.
        spill_directory: Where temporary files go; the system's own by default.
    """

    def __init__(
        self,
        spill_threshold_bytes: int = DEFAULT_SPILL_THRESHOLD_BYTES,
        maximum_record_bytes: int = DEFAULT_MAXIMUM_RECORD_BYTES,
        spill_directory: str | None = None,
    ) -> None:
        self._spill_threshold = spill_threshold_bytes
        self._maximum = maximum_record_bytes
        self._spill_directory = spill_directory
        self._payload: BytesLike = b""
        self._position = 0
        self._end = 0
        self._release: Callable[[], None] | None = None
        self._prefix = b""  # the part of a length that the last buffer ended with
        self._gathering: bytearray | SpillFile | None = None
        self._gathered = 0
        self._spilled: SpillFile | None = None  # returned last; the next call closes it

    @property
    def has_partial_record(self) -> bool:
        """Whether a record has begun that is not whole: the stream must not end here."""
        return self._gathering is not None or bool(self._prefix)

    # ---- reading

    def set_next_buffer(
        self, payload: BytesLike, release: Callable[[], None] | None = None
    ) -> None:
        """Set the next buffer of the channel; the one before must have been read.

        Args:
            payload: The buffer's bytes, which stay as they are until ``release`` is called. Records
                are slices of it: views of a memoryview, copies of bytes.
            release: Called once, when the payload is no longer needed.

        Raises:
            INTERNAL: The buffer before has records that were not taken. The new one stays the
                caller's.
        """
        if self._position < self._end:
            raise SluiceError(
                "A buffer was set while the one before still has records",
                value=self._end - self._position,
            )
        self.release_consumed()
        self._payload = payload
        self._position = 0
        self._end = len(payload)
        self._release = release

    def next_record(self) -> tuple[DeserializationResult, BytesLike | None]:
        """Take the next record.

        Returns:
            The result and, if it is a full record, the record: a memoryview until the next call,
            or bytes that belong to the caller.

        Raises:
            RecordTooLarge: The record's length is above the limit. Nothing more can be read.
            STORAGE_UNAVAILABLE: The record is very long and its temporary file failed. Nothing
                more can be read.
        """
        if self._spilled is not None or self._position >= self._end:
            self.release_consumed()
        position = self._position
        end = self._end
        start = position + LENGTH_BYTES
        if start <= end and self._gathering is None and not self._prefix:
            length = _unpack_length(self._payload, position)[0]
            if length > self._maximum:
                raise RecordTooLarge(length, self._maximum)
            stop = start + length
            if stop <= end:
                self._position = stop
                result = _INTERMEDIATE if stop < end else _LAST
                return result, self._payload[start:stop]
        record = self._gather()
        if self._position < end:  # only with a whole record
            return _INTERMEDIATE, record
        self._release_buffer()  # a gathered record has memory of its own
        if record is None:
            return _PARTIAL
        return _LAST, record

    def take_records(self, owned: bool = False) -> list[BytesLike]:
        """Take all records that end in the buffer, which is then read to its end.

        Args:
            owned: Whether the records belong to the caller. They are then bytes: the buffer
                is copied as one and cut, which is faster than to cut views and copy each. A very
                long record from a temporary file, which can only be the first, is a view still.

        Returns:
            The records, as :meth:`next_record` returns them, valid until the next call.

        Raises:
            RecordTooLarge, STORAGE_UNAVAILABLE: As :meth:`next_record`. Records before it are lost
                with the channel.
        """
        self._close_spilled()
        records: list[BytesLike] = []
        if self._gathering is not None or self._prefix:
            first = self._gather()
            if first is not None:
                records.append(first)
        payload = self._payload
        end = self._end
        position = base = self._position
        limit = self._maximum
        if owned:
            own = payload = bytes(payload[position:end])
            end -= position
            taken, position = split_equal_frames(own, 0, end)
            if taken and len(taken[0]) > limit:
                raise RecordTooLarge(len(taken[0]), limit)
            records += taken
        else:
            base = 0
        unpack = _unpack_length
        append = records.append
        start = position + LENGTH_BYTES
        while start <= end:
            length = unpack(payload, position)[0]
            if length > limit:
                raise RecordTooLarge(length, limit)
            stop = start + length
            if stop > end:
                break
            append(payload[start:stop])
            position = stop
            start = stop + LENGTH_BYTES
        self._position = base + position
        if position < end:
            self._gather()  # the beginning of a record that the next buffer continues
        return records

    def release_consumed(self) -> None:
        """End the views of records; release the buffer if it is read to its end."""
        self._close_spilled()
        if self._position >= self._end:
            self._release_buffer()

    def end(self) -> None:
        """Check that the channel ended after a whole record.

        Raises:
            END_OF_PARTITION_MISMATCH: It ended in the middle of a record.
        """
        if self.has_partial_record or self._position < self._end:
            gathering = self._gathering
            raise SluiceError(
                "The channel ended in the middle of a record",
                code=ErrorCode.END_OF_PARTITION_MISMATCH,
                value=self._gathered if gathering is not None else len(self._prefix),
                limit=_length_of(gathering) if gathering is not None else LENGTH_BYTES,
            )

    def close(self) -> None:
        """Release the buffer, read or not, and close temporary files. Idempotent."""
        if isinstance(self._gathering, SpillFile):
            self._gathering.close()
        self._gathering = None
        self._prefix = b""
        self._close_spilled()
        self._release_buffer()

    # ---- records that span buffers

    def _gather(self) -> BytesLike | None:
        """Copy the buffer's part of a spanning record out of it; return the record if whole."""
        gathering = self._gathering
        if gathering is None:
            position = self._position
            stop = min(self._end, position + LENGTH_BYTES - len(self._prefix))
            prefix = self._prefix + self._payload[position:stop]
            if len(prefix) < LENGTH_BYTES:
                self._prefix = prefix
                self._position = stop
                return None
            length = _unpack_length(prefix)[0]
            if length > self._maximum:
                raise RecordTooLarge(length, self._maximum)
            if length > self._spill_threshold:
                gathering = SpillFile(length, self._spill_directory)
            else:
                gathering = bytearray(length)
            self._gathering = gathering
            self._gathered = 0
            self._prefix = b""
            self._position = stop
        length = _length_of(gathering)
        gathered = self._gathered
        position = self._position
        count = min(length - gathered, self._end - position)
        if count:
            part = self._payload[position : position + count]
            if isinstance(gathering, SpillFile):
                gathering.write(part)
            else:
                gathering[gathered : gathered + count] = part
            self._position = position + count
            self._gathered = gathered = gathered + count
        if gathered < length:
            return None
        self._gathering = None
        if isinstance(gathering, SpillFile):
            self._spilled = gathering
            return gathering.read()
        return gathering

    def _release_buffer(self) -> None:
        self._payload = b""
        self._position = self._end = 0
        release, self._release = self._release, None
        if release is not None:
            release()

    def _close_spilled(self) -> None:
        spilled, self._spilled = self._spilled, None
        if spilled is not None:
            spilled.close()


def _length_of(gathering: bytearray | SpillFile) -> int:
    return gathering.length_bytes if isinstance(gathering, SpillFile) else len(gathering)
