"""Opening the channels of a client's gate.

Channels that are added in one turn make one gate at the TaskManager, which fetches remote data.
"""

import asyncio
from collections.abc import Awaitable, Callable

from ...protocol.limits import MAX_LARGE_PAYLOAD_BYTES
from ..gate.channel_opener import ChannelOpener, ChannelSource, GateMemory, OpenableChannel, Opening
from ..gate.remote_input_channel import RemoteInputChannel
from ..names import SubpartitionRange
from ..partition.view import DataListener
from .consumer_leg import ConsumerLeg


class ClientChannelOpener(ChannelOpener):
    """Makes and opens the channels of one gate of a client.

    Args:
        name: The gate's, for pools and logs.
        wanted: The subpartitions that the gate reads.
        memory: The receive buffers of the gate.
        leg: The consumer connection.
        live_leg: Returns it, or a new connection if it was closed while it was idle.

    Raises:
        InvalidRequest: The range is empty.
    """

    def __init__(
        self,
        name: str,
        wanted: SubpartitionRange,
        memory: GateMemory,
        leg: ConsumerLeg,
        live_leg: Callable[[], Awaitable[ConsumerLeg]] | None = None,
    ) -> None:
        super().__init__(name, wanted, memory)
        self._leg = leg
        self._live_leg = live_leg
        self._batch: list[Opening] = []
        """The channels of this turn."""
        self._gates: list[tuple[ConsumerLeg, int]] = []

    def make(self, source: ChannelSource, listener: DataListener) -> RemoteInputChannel:
        """Make a channel; :meth:`open` opens it.

        Raises:
            InsufficientNetworkBuffers: No floating buffer is left for the gate.
        """
        self.floating_pool()  # fails now if it cannot be had, and not the channel later
        return RemoteInputChannel(listener, MAX_LARGE_PAYLOAD_BYTES)

    def open(self, channel: OpenableChannel, source: ChannelSource) -> None:
        """Open a channel with all others of this turn; an error fails all of them."""
        self._batch.append((channel, source))
        if len(self._batch) == 1:
            self.start(self._batch)

    async def open_now(self, batch: list[Opening]) -> None:
        """Ask for one gate with the channels of a turn."""
        await asyncio.sleep(0)  # a caller adds several channels one by one, in one turn
        self._batch = []
        if self._leg.closing and self._live_leg is not None:
            self._leg = await self._live_leg()
        leg = self._leg
        # All or none: two gates that each wait for the other's segments would wait forever.
        segments = await self.exclusive_segments(len(batch))
        each = len(segments) // len(batch)
        wanted: list[tuple[RemoteInputChannel, ChannelSource]] = []
        given = 0
        try:
            for channel, source in batch:
                if not isinstance(channel, RemoteInputChannel):
                    raise TypeError("a client has no local partitions")
                exclusive = segments[given : given + each]
                given += each
                if self.give(channel, leg, exclusive):
                    wanted.append((channel, source))
        except BaseException:
            self._memory.network_pool.recycle_segments(segments[given:])
            raise
        self._gates.append((leg, leg.open_gate(self.wanted, wanted)))

    def report_damage(self, source: ChannelSource) -> None:
        """Report damaged data of a source, if the TaskManager takes such reports."""
        self._leg.report_damage(self.wanted, source)

    def stop(self) -> None:
        """Cancel the opening of channels. Idempotent; :meth:`close` comes after it."""
        self._batch = []
        super().stop()

    def close(self) -> None:
        """Close the gates and release the memory, after the channels are released. Idempotent."""
        gates, self._gates = self._gates, []
        for leg, gate in gates:
            leg.close_gate(gate)
        super().close()
