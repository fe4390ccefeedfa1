"""Opening the channels of a gate: finding what is here, asking for what is elsewhere."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from sluice.protocol.errors import SluiceError
from sluice.shuffle.errors import InvalidRequest, detached, internal_error
from sluice.shuffle.gate.buffer_manager import BufferManager
from sluice.shuffle.gate.local_input_channel import LocalInputChannel
from sluice.shuffle.gate.partition_request_client import PartitionRequestClient
from sluice.shuffle.gate.remote_input_channel import RemoteInputChannel
from sluice.shuffle.gate.source import ChannelSource
from sluice.shuffle.gate.task_events import TaskEventDispatcher
from sluice.shuffle.memory import LocalBufferPool, NetworkBufferPool
from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.partition.view import DataListener
from sluice.shuffle.taskmanager.sections import NetworkMemoryConfig
from sluice.shuffle.taskmanager.serve.read_pool import ReadPool
from sluice.shuffle.taskmanager.serve.result_partition_manager import ResultPartitionManager
from sluice.transport.connection_pool import ConnectionPool
from sluice.transport.errors import TaskManagerMismatch

if TYPE_CHECKING:
    from sluice.transport.connector import Address

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
        task_events: The producers that run on this TaskManager.
    """

    taskmanager_id: str
    config: NetworkMemoryConfig
    network_pool: NetworkBufferPool
    partitions: ResultPartitionManager
    peers: ConnectionPool[PartitionRequestClient]
    task_events: TaskEventDispatcher = field(default_factory=TaskEventDispatcher)


class ChannelOpener:
    """Makes and opens local and remote channels for one gate.

    Args:
        name: The gate's, for pools and logs.
        services: The TaskManager's parts.
        key: The shuffle to read.
        start_subpartition: First subpartition wanted.
        end_subpartition: The one behind the last.
        read_pool: Memory for local reads of the disk tier.
        local_buffer_bytes: Largest buffer that a channel may give; by default a segment from a
            local channel, and what came in one message from a remote one.
        credit_bytes: What one credit of the gate's reader pays for; a whole buffer by default.
        most_remote_channels: Remote channels that are open at a time; the others wait until these
            are released or fail. Only for a reader that takes what comes from any of them, and for
            map outputs that are stored. No limit by default.
        floating_buffers: Segments that the remote channels share; ``floating_buffers_per_gate`` by
            default.

    Raises:
        InvalidRequest: The range is empty.
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
        credit_bytes: int | None = None,
        most_remote_channels: int | None = None,
        floating_buffers: int | None = None,
    ) -> None:
        if start_subpartition >= end_subpartition:
            raise InvalidRequest(
                "Range of subpartitions is empty",
                value=f"{start_subpartition} to {end_subpartition}",
            )
        self.name = name
        self.key = key
        self._services = services
        self._start_subpartition = start_subpartition
        self._end_subpartition = end_subpartition
        self._read_pool = read_pool
        self._most_bytes = local_buffer_bytes
        self._credit_bytes = credit_bytes
        self._local_buffer_bytes = (
            services.config.segment_size_bytes if local_buffer_bytes is None else local_buffer_bytes
        )
        if floating_buffers is None:
            floating_buffers = services.config.floating_buffers_per_gate
        self._floating_buffers = floating_buffers
        self._floating_pool: LocalBufferPool | None = None
        self._most_remote_channels = most_remote_channels
        self._remote_channels = 0  # open, or being opened
        self._waiting: OrderedDict[RemoteInputChannel, ChannelSource] = OrderedDict()
        self._opening: set[asyncio.Task[None]] = set()
        self._clients: list[tuple[Address, PartitionRequestClient]] = []

    def make(
        self, source: ChannelSource, listener: DataListener
    ) -> LocalInputChannel | RemoteInputChannel:
        """Make the channel that fits a source; it is opened by :meth:`open`.

        Raises:
            InsufficientNetworkBuffers: No floating buffer is left for the gate.
        """
        if source.taskmanager_id == self._services.taskmanager_id:
            return LocalInputChannel(listener, partial(self._publish, source.map_attempt_ids))
        self._pool()  # what it cannot have it shall not wait for
        return RemoteInputChannel(
            listener, self._most_bytes, self._credit_bytes, self._remote_channel_done
        )

    def open(self, channel: LocalInputChannel | RemoteInputChannel, source: ChannelSource) -> None:
        """Begin to open a channel, now or when there is room; what goes wrong fails the channel."""
        if isinstance(channel, LocalInputChannel):
            self._start(self._open_local(channel, source))
        elif self._remote_channels == self._most_remote_channels:
            self._waiting[channel] = source
        else:
            self._remote_channels += 1
            self._start(self._open_remote(channel, source))

    def stop(self) -> None:
        """Give up what is being opened. Idempotent; :meth:`close` comes after it."""
        self._waiting.clear()
        for task in list(self._opening):
            task.cancel()

    def close(self) -> None:
        """Give connections and memory back, when the channels are released. Idempotent."""
        clients, self._clients = self._clients, []
        for address, client in clients:
            self._services.peers.release(address, client)
        if self._floating_pool is not None:
            self._floating_pool.destroy()

    def _start(self, opening: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(opening)
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def _remote_channel_done(self, channel: RemoteInputChannel) -> None:
        """Let the next channel take the place of one that was released or has failed."""
        if self._waiting.pop(channel, None) is not None:
            return
        if self._waiting:
            self._start(self._open_remote(*self._waiting.popitem(last=False)))
        else:
            self._remote_channels -= 1

    def _pool(self) -> LocalBufferPool | None:
        if self._floating_pool is None and self._floating_buffers > 0:
            self._floating_pool = self._services.network_pool.create_local_pool(
                self.name, 1, self._floating_buffers, kind="gate"
            )
        return self._floating_pool

    def _publish(self, map_attempt_ids: Sequence[int], event_type: int, payload: bytes) -> None:
        for map_attempt_id in map_attempt_ids:
            self._services.task_events.publish(self.key, map_attempt_id, event_type, payload)

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
                credit_bytes=self._credit_bytes,
            )
            channel.attach(view)
        except Exception as error:  # noqa: BLE001
            self._opening_failed(channel, error)

    async def _open_remote(self, channel: RemoteInputChannel, source: ChannelSource) -> None:
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
            buffers = BufferManager(services.network_pool, self._pool(), exclusive, channel)
            if channel.attach(buffers, client):
                client.request(
                    channel,
                    self.key,
                    source.map_attempt_ids,
                    self._start_subpartition,
                    self._end_subpartition,
                )
        except Exception as error:  # noqa: BLE001
            self._opening_failed(channel, error)

    def _opening_failed(
        self, channel: LocalInputChannel | RemoteInputChannel, error: Exception
    ) -> None:
        if isinstance(error, SluiceError):
            channel.fail(detached(error))
            return
        # Also what the client's host name does to the resolver: the channel must not just wait.
        _log.exception("internal error while opening a channel of %s", self.name)
        channel.fail(internal_error(error))
