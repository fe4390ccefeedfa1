"""The input gate: all channels of one consumer, their memory, and who is served next.

A gate owns a local pool for the floating buffers of its remote channels. Its channels can be read
through the gate, in turn (:meth:`InputGate.next_buffer_or_event`), or each by a listener of its own
(the consumer leg, where every channel has a credit of its own).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from protocol.errors import SluiceError
from protocol.limits import MAX_CREDIT
from protocol.messages import DATA
from shuffle.config import NetworkMemoryConfig
from shuffle.errors import InvalidRequest, detached, internal_error
from shuffle.gate.buffer_manager import BufferManager
from shuffle.gate.local_channel import LocalInputChannel
from shuffle.gate.remote_channel import RemoteInputChannel
from shuffle.memory import LocalBufferPool, NetworkBufferPool
from shuffle.network.peer_client import PartitionRequestClient
from shuffle.network.serving import ReadPool
from shuffle.partition.manager import ResultPartitionManager
from shuffle.partition.view import DataListener, OutgoingBuffer
from shuffle.storage.outputs import ShuffleKey
from transport.connection_pool import ConnectionPool
from transport.connector import Address
from transport.errors import TaskManagerMismatch

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GateServices:
    """What gates use of their TaskManager.

    Attributes:
        taskmanager_id: Channels that name it are local.
        config: Numbers of exclusive and floating buffers, deadlines.
        network_pool: The TaskManager's segments.
        partitions: Finds local partitions.
        peers: Connections to other TaskManagers.
    """

    taskmanager_id: str
    config: NetworkMemoryConfig
    network_pool: NetworkBufferPool
    partitions: ResultPartitionManager
    peers: ConnectionPool[PartitionRequestClient]


class ChannelSource(NamedTuple):
    """Where the data of one channel comes from.

    Attributes:
        taskmanager_id: The TaskManager that holds the map outputs.
        address: Where it can be reached.
        map_attempt_ids: The map outputs wanted of it.
    """

    taskmanager_id: str
    address: Address
    map_attempt_ids: Sequence[int]


InputChannel = LocalInputChannel | RemoteInputChannel


class BufferOrEvent(NamedTuple):
    """What a gate gives: a buffer or an event, and the index of the channel it came from."""

    channel_index: int
    buffer: OutgoingBuffer


class InputGate:
    """The gate of one consumer.

    Args:
        name: For pools, logs and status.
        services: The TaskManager's parts.
        key: The shuffle to read.
        start_subpartition: First subpartition wanted.
        end_subpartition: The one behind the last.
        read_pool: Memory for local reads of the disk tier.
        local_buffer_bytes: Largest buffer that a channel may give; by default a segment from a
            local channel, and what came in one message from a remote one.

    Raises:
        InsufficientNetworkBuffers: Not even the least floating buffer is left for the gate.
    """

    def __init__(
        self,
        name: str,
        services: GateServices,
        key: ShuffleKey,
        start_subpartition: int,
        end_subpartition: int,
        read_pool: ReadPool,
        local_buffer_bytes: int | None = None,
    ) -> None:
        if start_subpartition >= end_subpartition:
            raise InvalidRequest(
                "Range of subpartitions is empty",
                value=f"{start_subpartition} to {end_subpartition}",
            )
        self.name = name
        self.key = key
        self.channels: list[InputChannel] = []
        self.sources: list[ChannelSource] = []
        self._services = services
        self._start_subpartition = start_subpartition
        self._end_subpartition = end_subpartition
        self._read_pool = read_pool
        self._most_bytes = local_buffer_bytes
        self._local_buffer_bytes = (
            services.config.segment_size_bytes if local_buffer_bytes is None else local_buffer_bytes
        )
        self._floating_pool: LocalBufferPool | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._clients: list[tuple[Address, PartitionRequestClient]] = []
        self._released = False
        self._ready: deque[int] = deque()
        self._queued: set[int] = set()
        self._ended: set[int] = set()
        self._open_channels = 0
        self._waiter: asyncio.Future[None] | None = None

    # ---- set-up --------------------------------------------------------------------------------

    def add_channel(
        self, source: ChannelSource, listener: DataListener | None = None
    ) -> InputChannel:
        """Add a channel and begin to open it.

        Args:
            source: Where its data comes from.
            listener: Reads the channel instead of the gate.

        Returns:
            The channel; it may have nothing to read for a while, or fail.

        Raises:
            InsufficientNetworkBuffers: No floating buffer is left for the gate.
        """
        index = len(self.channels)
        told = listener if listener is not None else partial(self._channel_available, index)
        channel: InputChannel
        if source.taskmanager_id == self._services.taskmanager_id:
            channel = LocalInputChannel(told)
            opening = self._open_local(channel, source)
        else:
            pool = self._pool()
            channel = RemoteInputChannel(told, self._most_bytes)
            opening = self._open_remote(channel, source, pool)
        self.channels.append(channel)
        self.sources.append(source)
        self._open_channels += 1
        task = asyncio.get_running_loop().create_task(opening)
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        return channel

    def release(self) -> None:
        """Give everything back. Idempotent; buffers already taken stay valid until released."""
        if self._released:
            return
        self._released = True
        for task in list(self._opening):
            task.cancel()
        for channel in self.channels:
            channel.release()
        clients, self._clients = self._clients, []
        for address, client in clients:
            self._services.peers.release(address, client)
        if self._floating_pool is not None:
            self._floating_pool.destroy()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ---- reading through the gate ----------------------------------------------------------------

    @property
    def is_available(self) -> bool:
        """True if a buffer, an event or a failure can be taken without waiting."""
        return bool(self._ready)

    async def next_buffer_or_event(self) -> BufferOrEvent | None:
        """Wait for the next buffer or event; channels with data are served in turn.

        Returns:
            The buffer, to be released by the caller, or None after the end of all channels.

        Raises:
            SluiceError: A channel failed.

        Cancellation: safe, nothing is taken. One caller at a time.
        """
        while not self._released:
            taken = self.poll()
            if taken is not None:
                return taken
            if self._open_channels == 0:
                return None
            if not self._ready:
                self._waiter = asyncio.get_running_loop().create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
        return None

    def poll(self) -> BufferOrEvent | None:
        """Take the next buffer or event if one is there.

        Raises:
            SluiceError: A channel failed.
        """
        ready = self._ready
        while ready:
            index = ready.popleft()
            self._queued.discard(index)
            channel = self.channels[index]
            try:
                buffer = channel.next_buffer(MAX_CREDIT)
            except SluiceError:
                self._queue(index)  # failed for good: whoever asks again must not wait for it
                raise
            if channel.is_available(MAX_CREDIT):
                self._queue(index)
            if buffer is None:
                continue
            if buffer.data_type != DATA:
                self._open_channels -= 1
                self._ended.add(index)
            return BufferOrEvent(index, buffer)
        return None

    # ---- inner workings --------------------------------------------------------------------------

    def _channel_available(self, index: int) -> None:
        if index in self._queued or index in self._ended:
            return
        self._queue(index)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _queue(self, index: int) -> None:
        self._queued.add(index)
        self._ready.append(index)

    def _pool(self) -> LocalBufferPool | None:
        most = self._services.config.floating_buffers_per_gate
        if self._floating_pool is None and most > 0:
            self._floating_pool = self._services.network_pool.create_local_pool(self.name, 1, most)
        return self._floating_pool

    async def _open_local(self, channel: LocalInputChannel, source: ChannelSource) -> None:
        services = self._services
        try:
            view = await services.partitions.request_view(
                self.key,
                source.map_attempt_ids,
                self._start_subpartition,
                self._end_subpartition,
                self._local_buffer_bytes,
                self._read_pool,
                channel.data_available,
            )
            channel.attach(view)
        except Exception as error:  # noqa: BLE001
            self._opening_failed(channel, error)

    async def _open_remote(
        self, channel: RemoteInputChannel, source: ChannelSource, pool: LocalBufferPool | None
    ) -> None:
        services = self._services
        try:
            if source.address.port == 0:
                # A port of 0 would mean the path of a Unix socket, of the client's choice.
                raise InvalidRequest(
                    "A TaskManager on another host has no TCP port",
                    value=source.address.host,
                    limit="1 to 65535",
                )
            client = await services.peers.acquire(source.address)
            self._clients.append((source.address, client))
            if client.taskmanager_id != source.taskmanager_id:
                raise TaskManagerMismatch(
                    f"Another TaskManager answers at {source.address}",
                    value=client.taskmanager_id,
                    limit=source.taskmanager_id,
                    remedy="The wanted one is gone with its data; Spark runs its map tasks again",
                )
            exclusive = await services.network_pool.request_segments_within(
                services.config.exclusive_buffers_per_channel,
                services.config.exclusive_request_timeout_seconds,
            )
            buffers = BufferManager(services.network_pool, pool, exclusive, channel)
            channel.attach(buffers, client)
            client.request(
                channel,
                self.key,
                source.map_attempt_ids,
                self._start_subpartition,
                self._end_subpartition,
            )
        except Exception as error:  # noqa: BLE001
            self._opening_failed(channel, error)

    def _opening_failed(self, channel: InputChannel, error: Exception) -> None:
        if isinstance(error, SluiceError):
            channel.fail(detached(error))
            return
        # Also what the client's host name does to the resolver: the channel must not just wait.
        _log.exception("internal error while opening a channel of %s", self.name)
        channel.fail(internal_error(error))
