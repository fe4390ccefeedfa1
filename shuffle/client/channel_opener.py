"""Opening the channels of a client's gate.

All that are added together make one gate at the TaskManager, which fetches what is elsewhere.
"""

import asyncio
import logging

from sluice.protocol.errors import SluiceError
from sluice.shuffle.client.consumer_leg import ConsumerLeg
from sluice.shuffle.errors import InvalidRequest, detached, internal_error
from sluice.shuffle.gate.buffer_manager import BufferManager
from sluice.shuffle.gate.local_input_channel import LocalInputChannel
from sluice.shuffle.gate.remote_input_channel import RemoteInputChannel
from sluice.shuffle.gate.source import ChannelSource
from sluice.shuffle.memory import LocalBufferPool, NetworkBufferPool
from sluice.shuffle.partition.view import DataListener

_log = logging.getLogger(__name__)

EXCLUSIVE_REQUEST_TIMEOUT_SECONDS = 30.0
"""How long a gate waits for segments that the client's other gates and partitions hold."""


class ClientChannelOpener:
    """Makes and opens the channels of one gate of a client.

    Args:
        name: The gate's, for pools and logs.
        leg: The consumer connection.
        network_pool: The client's segments.
        shuffle_id: What to read.
        start_subpartition: First subpartition wanted.
        end_subpartition: The one behind the last.
        exclusive_buffers: Segments of each channel.
        floating_buffers: Segments that the channels share, at most.
    """

    def __init__(
        self,
        name: str,
        leg: ConsumerLeg,
        network_pool: NetworkBufferPool,
        shuffle_id: int,
        start_subpartition: int,
        end_subpartition: int,
        exclusive_buffers: int,
        floating_buffers: int,
    ) -> None:
        if start_subpartition >= end_subpartition:
            raise InvalidRequest(
                "Range of subpartitions is empty",
                value=f"{start_subpartition} to {end_subpartition}",
            )
        self.name = name
        self._leg = leg
        self._network_pool = network_pool
        self._shuffle_id = shuffle_id
        self._start_subpartition = start_subpartition
        self._end_subpartition = end_subpartition
        self._exclusive_buffers = exclusive_buffers
        self._floating_buffers = floating_buffers
        self._floating_pool: LocalBufferPool | None = None
        self._waiting: list[tuple[RemoteInputChannel, ChannelSource]] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._gates: list[int] = []

    def make(self, source: ChannelSource, listener: DataListener) -> RemoteInputChannel:
        """Make a channel; it is opened by :meth:`open`.

        Raises:
            InsufficientNetworkBuffers: No floating buffer is left for the gate.
        """
        if self._floating_pool is None and self._floating_buffers:
            self._floating_pool = self._network_pool.create_local_pool(
                self.name, 1, self._floating_buffers, kind="gate"
            )
        return RemoteInputChannel(listener)

    def open(self, channel: LocalInputChannel | RemoteInputChannel, source: ChannelSource) -> None:
        """Open a channel, with all others of this turn; what goes wrong fails the channel."""
        if isinstance(channel, LocalInputChannel):
            raise TypeError("a client has no partitions that are local")
        self._waiting.append((channel, source))
        if len(self._waiting) == 1:
            task = asyncio.get_running_loop().create_task(self._open_waiting())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def stop(self) -> None:
        """Give up what is being opened. Idempotent; :meth:`close` comes after it."""
        self._waiting.clear()
        for task in list(self._opening):
            task.cancel()

    def close(self) -> None:
        """Give connections and memory back, when the channels are released. Idempotent."""
        gates, self._gates = self._gates, []
        for gate in gates:
            self._leg.close_gate(gate)
        if self._floating_pool is not None:
            self._floating_pool.destroy()

    async def _open_waiting(self) -> None:
        await asyncio.sleep(0)  # whoever adds several channels adds them in one turn
        batch, self._waiting = self._waiting, []
        wanted: list[tuple[RemoteInputChannel, ChannelSource]] = []
        try:
            for channel, source in batch:
                exclusive = await self._network_pool.request_segments_within(
                    self._exclusive_buffers, EXCLUSIVE_REQUEST_TIMEOUT_SECONDS
                )
                buffers = BufferManager(self._network_pool, self._floating_pool, exclusive, channel)
                if channel.attach(buffers, self._leg):
                    wanted.append((channel, source))
            self._gates.append(
                self._leg.open_gate(
                    self._shuffle_id, self._start_subpartition, self._end_subpartition, wanted
                )
            )
        except Exception as error:  # noqa: BLE001
            if isinstance(error, SluiceError):
                failure: SluiceError = detached(error)
            else:
                _log.exception("internal error while opening %s", self.name)
                failure = internal_error(error)
            for channel, _ in batch:
                channel.fail(failure)
