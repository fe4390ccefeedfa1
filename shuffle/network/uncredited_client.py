"""The consuming side of a peer leg in watermark mode: without credit.

The producer sends whenever the connection is writable. What arrives takes memory of its channel,
the exclusive buffers and the floating ones of the gate. When there is none the connection is not
read any more: **all** its channels stand still until the one whose data is next has a buffer again,
or is given up. That is why credit is the default.

::

    READING ── no memory for the next data ──▶ STANDING STILL (for one channel)
       ▲                                            │ that channel has a buffer, or is given up
       └────────── asked again, in a turn of its own ◀──┘
"""

import asyncio
from collections.abc import Sequence

from protocol.credit import Uncounted
from protocol.errors import SluiceError
from protocol.messages import HelloAck
from shuffle.counters import Counters
from shuffle.gate.remote_channel import RemoteInputChannel
from shuffle.network.peer_client import PartitionRequestClient
from shuffle.storage.outputs import ShuffleKey
from transport.connection import Connection


class UncreditedPartitionRequestClient(PartitionRequestClient):
    """Requests partitions of one other TaskManager, over a connection without credit.

    A message is never larger than the exclusive buffers of its channel, and so a channel that is
    read goes on whatever the other channels of its gate hold.

    Args:
        connection: The open connection.
        ack: What the other TaskManager said of itself.
        counters: The TaskManager's counters.
    """

    def __init__(self, connection: Connection, ack: HelloAck, counters: Counters) -> None:
        super().__init__(connection, ack, counters)
        self.waits_for: RemoteInputChannel | None = None
        """The channel whose data the connection stands still for."""
        self._resume_due = False

    def request(
        self,
        channel: RemoteInputChannel,
        key: ShuffleKey,
        map_attempt_ids: Sequence[int],
        start_subpartition: int,
        end_subpartition: int,
    ) -> None:
        """Ask for a range of subpartitions; the channel has its buffers already.

        Raises:
            ConnectionLost: The connection has ended meanwhile.
            TooManyTaskEvents: The channel has kept more than the connection takes now.
        """
        channel.credit = Uncounted(channel.initial_credit)
        super().request(channel, key, map_attempt_ids, start_subpartition, end_subpartition)

    def announce_credit(self, channel: RemoteInputChannel) -> None:
        """Buffers of a channel became free: read on, if it is what the connection waits for."""
        if channel is self.waits_for:
            self._resume()

    def cancel(self, channel: RemoteInputChannel) -> None:
        """Forget a channel; data of it that is next will be thrown away."""
        super().cancel(channel)
        if channel is self.waits_for:
            self._resume()

    def connection_lost(self, error: SluiceError) -> None:
        """Fail every channel."""
        self.waits_for = None
        super().connection_lost(error)

    def _waits_for_memory(self, channel: RemoteInputChannel, length: int) -> bool:
        if channel.failure is not None or not channel.may_take(length):
            return False
        self.waits_for = channel
        # Once the channel has its wish for floating buffers in: if one is there it comes at once.
        channel.on_backlog(max(1, channel.sender_backlog))
        return True

    def _resume(self) -> None:
        """Read on in a turn of its own: memory comes back in the middle of someone's work."""
        if not self._resume_due:
            self._resume_due = True
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        self._resume_due = False
        self.waits_for = None
        self.connection.resume_reading()
