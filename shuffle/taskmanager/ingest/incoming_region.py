"""A region of a map output that is received, and the kind received into the memory tier."""

import abc
from collections.abc import Callable
from typing import Final, NamedTuple

from crc32c import crc32c as update_crc32c

from ....protocol.framing import PayloadMemory
from ....protocol.limits import RECEIVE_TAIL_BYTES
from ...errors import ChecksumMismatch, MapOutputMismatch
from ..store.region_writer import RegionWriter
from ..store.stored_outputs import Region


class ReceiveSettings(NamedTuple):
    """How regions are received on one connection."""

    verify_checksums: bool
    """Whether checksums are compared as regions arrive."""
    segment_payload_bytes: int
    """Largest payload that is received into one segment."""
    large_payload_bytes: int
    """Largest payload that is received into the memory tier, or into several segments."""
    connection: int = 0
    """Number that tells the connection from others, for its turns at the disks."""


class IncomingRegion:
    """A region, however its bytes come. Ends with exactly one of :meth:`finish` and :meth:`abort`.

    Args:
        writer: Writes to the region's extent.
        crc32c: The checksum that the producer announced.
    """

    def __init__(self, writer: RegionWriter, crc32c: int) -> None:
        self.length: Final = writer.length
        self._writer: Final = writer
        self._crc32c: Final = crc32c

    @property
    def is_writing(self) -> bool:
        """Whether :meth:`flush` would wait for the tier."""
        return False

    @property
    def write_began(self) -> float | None:
        """Time of the last write, as of ``time.monotonic()``; None if it is not known."""
        return None

    @property
    def place(self) -> str:
        """Directory or URL of the tier; empty for an empty region."""
        tier = self._writer.tier
        return "" if tier is None else str(tier.place)

    async def flush(self) -> None:
        """Wait until every byte is in the extent.

        Raises:
            SluiceError: A byte did not get there, or is wrong.

        Cancellation: safe; the work continues.
        """

    def finish(self) -> Region:
        """End the complete, flushed region; the caller owns its extent then."""
        return self._writer.finish(self._crc32c)

    def abort(self) -> None:
        """Abort the region, and free its extent."""
        self._writer.abort()


class ReceivedRegion(IncomingRegion):
    """A region that comes in RegionData messages: its position and its checksum.

    Args:
        writer: Writes to the region's extent.
        crc32c: The checksum that the producer announced.
        verify_checksums: Whether it is compared.
        payload_bytes: Largest payload; every one but the last has that size.
    """

    def __init__(
        self, writer: RegionWriter, crc32c: int, verify_checksums: bool, payload_bytes: int
    ) -> None:
        super().__init__(writer, crc32c)
        self.payload_bytes = payload_bytes
        self._position = 0
        self._computed_crc32c = 0
        self._verify_checksums: Final = verify_checksums

    @property
    def received_bytes(self) -> int:
        """Bytes that have arrived."""
        return self._position

    @abc.abstractmethod
    def begin(self) -> None:
        """Grant the first credit."""

    @abc.abstractmethod
    def payload_buffer(self, offset: int, length: int) -> PayloadMemory:
        """Supply the memory for the next bytes.

        Raises:
            MapOutputMismatch: They are not the next bytes, or too many.
            CreditExceeded: No credit was granted for them.
        """

    @abc.abstractmethod
    def received(self, length: int) -> bool:
        """Take the bytes that have arrived; True when the region is complete."""

    def stop(self) -> None:
        """Stop granting credit; :meth:`abort` follows when the payload has arrived."""

    def verify(self) -> None:
        """Compare the checksum of the complete region with the announced one.

        Raises:
            ChecksumMismatch: They differ.
        """
        if self._verify_checksums and self._computed_crc32c != self._crc32c:
            raise ChecksumMismatch(
                "Region arrived with a wrong checksum",
                value=f"{self._computed_crc32c:#010x}",
                limit=f"{self._crc32c:#010x}",
                remedy="If it repeats, check memory and network",
            )

    def _require_next(self, offset: int, length: int) -> None:
        """Check that bytes are the next ones of the region.

        Raises:
            MapOutputMismatch: They are not.
        """
        if offset != self._position or offset + length > self.length:
            raise MapOutputMismatch(
                "RegionData is not the next part of its region",
                value=f"{length} bytes at {offset}",
                limit=f"{self.length - self._position} bytes at {self._position}",
            )

    def _add(self, data: memoryview) -> bool:
        """Count and checksum bytes that arrived; True when the region is complete."""
        if self._verify_checksums:
            self._computed_crc32c = update_crc32c(data, self._computed_crc32c)
        self._position += len(data)
        return self._position == self.length


class MemoryRegion(ReceivedRegion):
    """A region received into the mapping of the memory tier: without a segment, without a copy.

    This works because a producer announces the lengths of a region before it sends the bytes. It
    also lets the region grant its whole credit at once. Received into segments, as for the disk
    tier, 32 KiB cost the TaskManager 21 µs of CPU time instead of 12 (``bench-path-cpu``, five
    pairs of runs, not compiled).

    Args:
        writer: Has the region's extent, in memory.
        crc32c: The checksum that the producer announced.
        settings: How regions are received on this connection.
        grant: Sends credit to the producer.
    """

    def __init__(
        self,
        writer: RegionWriter,
        crc32c: int,
        settings: ReceiveSettings,
        grant: Callable[[int], None],
    ) -> None:
        super().__init__(writer, crc32c, settings.verify_checksums, settings.large_payload_bytes)
        self._view = writer.view
        self._grant = grant

    def begin(self) -> None:
        """Grant credit for the whole region: its memory is there already."""
        self._grant(-(-self.length // self.payload_bytes))

    def payload_buffer(self, offset: int, length: int) -> PayloadMemory:
        """Supply the place of the bytes, with tail room as far as the region reaches."""
        self._require_next(offset, length)
        return self._view[offset : offset + length + RECEIVE_TAIL_BYTES]

    def received(self, length: int) -> bool:
        """Checksum the bytes; True when the region is complete."""
        return self._add(self._view[self._position : self._position + length])

    def finish(self) -> Region:
        """End the region; its mapping is no longer used."""
        self._view = memoryview(b"")
        return super().finish()

    def abort(self) -> None:
        """Free the extent."""
        self._view = memoryview(b"")
        super().abort()
