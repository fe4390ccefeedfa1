"""The ``RegionSink`` of a stored partition that a client writes over a connection."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from ...protocol.schema import EVERY_SUBPARTITION, BeginRegion
from ..legs.region_sender import Payload, RegionSender
from ..partition.region_builder import OutgoingRegion


class LegRegionSink(RegionSender):
    """Sends the regions of one partition to a TaskManager, which stores them. A ``RegionSink``.

    Payloads are joined from the parts of a region, whose memory is free as soon as they are joined.
    """

    takes_broadcast: Final = True
    _payloads: Iterator[bytes] = iter(())

    async def write_region(self, region: OutgoingRegion) -> None:
        """Send a region; returns when the connection has taken all of it.

        Raises:
            SluiceError: The region could not be stored.
            DeadlineExceeded: No byte of it was taken for as long as an answer may take.

        Cancellation: abort the partition then.
        """
        first = EVERY_SUBPARTITION if region.is_broadcast else 0
        begin = BeginRegion(self.number, region.number, first, list(region.lengths), region.crc32c)
        written = await self._begin(begin, sum(region.lengths))
        self._payloads = gathered(region.parts, self._payload_bytes)
        try:
            self._send_available()
            await self._progress(written)
        finally:
            # No part may be read from here on: their memory is the writer's again.
            self._payloads = iter(())

    def _next_payload(self) -> Payload | None:
        payload = next(self._payloads, None)
        return None if payload is None else (payload, None)


def gathered(parts: Iterable[bytes | memoryview], size_bytes: int) -> Iterator[bytes]:
    """Cut and join parts into payloads of ``size_bytes``, the last one shorter."""
    waiting: deque[bytes | memoryview] = deque()
    have = 0
    for part in parts:
        view = memoryview(part)
        while have + len(view) >= size_bytes:
            take = size_bytes - have
            waiting.append(view[:take])
            yield b"".join(waiting)
            waiting.clear()
            have = 0
            view = view[take:]
        if len(view):
            waiting.append(view)
            have += len(view)
    if waiting:
        yield b"".join(waiting)
