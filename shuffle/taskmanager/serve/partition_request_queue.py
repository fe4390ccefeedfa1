"""The queue of readers of one connection: round robin, one message a step.

A reader is in the queue while it has something to send and credit to send it. The write loop runs
while the connection is writable, and goes on by itself when the connection is writable again.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from crc32c import crc32c

from ....protocol.errors import Fault, SluiceError
from ....protocol.events import is_end_of_partition
from ....protocol.remote_error import error_response
from ....protocol.schema import DATA, BacklogAnnouncement, BufferResponse, ChecksummedBuffer
from ....transport.connection import Connection
from ....transport.fair_queue import Flow
from ...errors import failure_of
from ...partition.view import OutgoingBuffer, release_all
from .credit_based_view_reader import CreditBasedViewReader

MIN_MEAN_PIECE_BYTES: Final = 1024
"""Pieces of a message that are smaller on average are copied together, which takes less time."""

PIECE_COST_BYTES: Final = 4 * 1024
"""Cost of a piece beside its bytes, so that many small ones end a turn as well."""


class PartitionRequestQueue:
    """Sends buffers of many readers over one connection.

    Args:
        connection: The connection to send over.
        sent: Called for each message of data that was sent, with its reader and length in bytes.
        ended: Called when a reader has sent its last message, the end or an error.
    """

    def __init__(
        self,
        connection: Connection,
        sent: Callable[[CreditBasedViewReader, int], None],
        ended: Callable[[CreditBasedViewReader, SluiceError | None], None],
    ) -> None:
        self._connection = connection
        self._sent = sent
        self._ended = ended
        self._queue: deque[CreditBasedViewReader] = deque()
        self._running = False
        self._turn_due = False
        self._waits = False

    def __len__(self) -> int:
        return len(self._queue)

    def notify(self, reader: CreditBasedViewReader) -> None:
        """Queue a reader, once, if it has something to send, and run in a later turn."""
        if reader.queued:
            return
        if not reader.is_available():
            self._rest(reader)  # the reason to wait may have changed
            return
        reader.queued = True
        reader.begins()
        self._queue.append(reader)
        if not self._turn_due:
            # In a turn of its own: one read of the socket often brings several credits, which are
            # then served together, and no notification recurses into another.
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self.run)

    def run(self) -> None:
        """Send while the connection is writable and readers have something.

        Its tenant may have used up its share of this turn of the event loop: then later.
        """
        self._turn_due = False
        if self._running or self._waits:
            return
        self._running = True
        try:
            self._send_in_turn()
        except Exception as error:  # noqa: BLE001
            # A bug costs this connection only.
            self._connection.fail(failure_of(error, f"sending to {self._connection.remote}"))
        finally:
            self._running = False

    def _send_in_turn(self) -> None:
        connection = self._connection
        queue = self._queue
        share = connection.loop_share.sends
        cost = 0
        while queue and connection.writable:
            if not share.spend(cost):
                self._waits = True
                share.wait(self._go_on, Flow(connection.application_id, id(connection)))
                return
            cost = PIECE_COST_BYTES
            reader = queue.popleft()
            try:
                pieces = reader.next_message()
            except SluiceError as error:
                reader.queued = False
                # An error of the view lies behind this side; its own is about the request.
                fault = None if error is reader.failure else Fault.LOCAL
                connection.send(error_response(reader.channel, error, fault))
                self._end(reader, error)
                continue
            if pieces:
                cost = self._send(reader, pieces)
                first = pieces[0]
                if first.data_type != DATA and is_end_of_partition(first.payload):
                    reader.queued = False
                    self._end(reader, None)
                    continue
            if reader.is_available():
                queue.append(reader)
            else:
                reader.queued = False
                self._rest(reader)
        share.spend(cost)

    def _go_on(self) -> None:
        self._waits = False
        self.run()

    def remove(self, reader: CreditBasedViewReader) -> None:
        """Take a reader out and release its view."""
        if reader.queued:
            reader.queued = False
            with contextlib.suppress(ValueError):  # a bug struck while it was being served
                self._queue.remove(reader)
        reader.release()

    def close(self) -> None:
        """Forget the handler: the connection is gone, and every reader is removed."""
        self._sent = _nothing_sent
        self._ended = _nobody

    def _rest(self, reader: CreditBasedViewReader) -> None:
        backlog = reader.rests()
        if backlog:
            self._connection.send(BacklogAnnouncement(reader.channel, backlog))

    def _send(self, reader: CreditBasedViewReader, pieces: Sequence[OutgoingBuffer]) -> int:
        """Send an event or pieces of data in one message; return the cost of its work in bytes."""
        payload, release, data_type = pieces[0]
        length = len(payload)
        more: list[memoryview | bytes] = []
        copied: Sequence[OutgoingBuffer] = ()
        if len(pieces) > 1:
            more = [piece.payload for piece in pieces[1:]]
            length += sum(map(len, more))
            if length < MIN_MEAN_PIECE_BYTES * len(pieces):
                payload, more, release, copied = b"".join((payload, *more)), [], None, pieces
            else:
                release = partial(release_all, pieces)
        view = reader.view
        backlog = 0 if view is None else view.backlog
        channel, number = reader.channel, reader.next_sequence_number()
        message: BufferResponse | ChecksummedBuffer
        if reader.checksums:
            checksum = crc32c(payload, channel)
            for each in more:
                checksum = crc32c(each, checksum)
            message = ChecksummedBuffer(channel, number, backlog, data_type, checksum)
        else:
            message = BufferResponse(channel, number, backlog, data_type)
        self._connection.send(message, payload, release, more)
        release_all(copied)
        if data_type == DATA:
            self._sent(reader, length)
        return length + len(pieces) * PIECE_COST_BYTES

    def _end(self, reader: CreditBasedViewReader, error: SluiceError | None) -> None:
        reader.release()
        self._ended(reader, error)


def _nothing_sent(reader: CreditBasedViewReader, length: int) -> None:
    """Count nothing: the connection is gone."""


def _nobody(reader: CreditBasedViewReader, error: SluiceError | None) -> None:
    """Tell nobody: the connection is gone."""
