"""Opening the channels of a gate on a TaskManager, to its own partitions and to those of others."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple

from ....protocol.errors import ErrorCode, SluiceError
from ....protocol.identity import tenant_of
from ....transport.config import TransportConfig
from ....transport.connection_pool import ConnectionPool
from ....transport.connector import Attempts
from ....transport.errors import ConnectFailed
from ....transport.loop import start_shared
from ....transport.name_lookup import after_look_up
from ...gate.channel_opener import (
    ChannelOpener,
    ChannelSource,
    GateMemory,
    OpenableChannel,
    Opening,
)
from ...gate.local_input_channel import LocalInputChannel, TaskEventDispatcher
from ...gate.partition_request_client import PartitionRequestClient
from ...gate.remote_input_channel import RemoteInputChannel
from ...histogram import Histogram
from ...memory import MemorySegment, NetworkBufferPool, SegmentOwner
from ...names import SubpartitionRange
from ...partition.view import DataListener
from ..bounds.accounts import Accounts
from ..bounds.owner_slots import OwnerSlots
from ..config.network_memory_config import NetworkMemoryConfig
from .read_pool import ReadPool
from .result_partition_manager import ResultPartitionManager

if TYPE_CHECKING:
    from ....transport.address import Address
    from ..tracing.tracing import Tracing


MAX_DIALS: Final = 128
"""Connections that all gates may be making at a time, besides one for each tenant. Half of
the lookups of names that may run at a time stay for others."""

MAX_DIALS_OF_TENANT: Final = 32
"""Connections that the gates of a tenant may be making at a time."""


def _dials() -> OwnerSlots:
    return OwnerSlots(MAX_DIALS, MAX_DIALS_OF_TENANT)


@dataclass(frozen=True, slots=True)
class GateServices:
    """The parts of a TaskManager that its gates use.

    Attributes:
        taskmanager_id: Channels that name it are local.
        config: Numbers of exclusive and floating buffers, deadlines.
        network_pool: The TaskManager's segments.
        partitions: Finds local partitions.
        peers: Connections to other TaskManagers, each made by a single attempt.
        task_events: The producers that run on this TaskManager.
        accounts: What applications hold.
        transport: How long a TaskManager that does not answer is waited for.
        dials: Connections that are being made: clients choose the addresses.
        credit_waits: Waits for credit of the channels that reduce tasks read.
        tracing: Makes the spans of gates; None if traces are off.
    """

    taskmanager_id: str
    config: NetworkMemoryConfig
    network_pool: NetworkBufferPool
    partitions: ResultPartitionManager
    peers: ConnectionPool[PartitionRequestClient]
    task_events: TaskEventDispatcher = field(default_factory=TaskEventDispatcher)
    accounts: Accounts = field(default_factory=Accounts)
    transport: TransportConfig = field(default_factory=TransportConfig)
    dials: OwnerSlots = field(default_factory=_dials)
    credit_waits: Histogram = field(default_factory=Histogram)
    tracing: "Tracing | None" = None

    def report_damage(self, wanted: SubpartitionRange, source: ChannelSource) -> None:
        """Verify map outputs here, or ask the TaskManager that has them to do so.

        No connection is made for it: a reader has one open, and a client may name any address. The
        report is sent on each connection that exists, because the next request may use any of them
        and must not overtake it. A map output that is reported more than once is verified once.

        Args:
            wanted: The subpartitions that arrived damaged.
            source: Where they came from.
        """
        if source.taskmanager_id == self.taskmanager_id:
            self.partitions.damage.report(wanted, source.map_attempt_ids)
            return
        for client in self.peers.clients(source.address):
            if client.taskmanager_id == source.taskmanager_id:
                client.verify(wanted, source.map_attempt_ids)


class GateLimits(NamedTuple):
    """The sizes and numbers of one gate, where its TaskManager's configuration does not decide.

    Attributes:
        buffer_bytes: Largest buffer that a remote channel may give; by default all bytes of a
            message.
        credit_bytes: Bytes that one credit of the gate's reader pays for; a whole buffer by
            default.
        remote_channels: Remote channels that are open at a time; the others wait until these are
            released or fail. Only for a reader that takes buffers of any of them, and for map
            outputs that are stored. No limit by default.
        floating_buffers: Segments that the remote channels share; ``floating_buffers_per_gate`` by
            default.
        owner: The application whose quota its segments count for; by default none.
        waits_for_restarts: Whether to wait where no TaskManager listens, because it may be back
            soon. A reader that can go elsewhere, or waits itself, is better told at once.
    """

    buffer_bytes: int | None = None
    credit_bytes: int | None = None
    remote_channels: int | None = None
    floating_buffers: int | None = None
    owner: SegmentOwner | None = None
    waits_for_restarts: bool = True


class TaskManagerChannelOpener(ChannelOpener):
    """Makes and opens local and remote channels for one gate.

    Args:
        name: The gate's, for pools and logs.
        services: The TaskManager's parts.
        wanted: The subpartitions that the gate reads.
        read_pool: Memory for local reads of the disk tier.
        limits: Sizes and numbers of this gate.

    Raises:
        InvalidRequest: The range is empty.
    """

    def __init__(
        self,
        name: str,
        services: GateServices,
        wanted: SubpartitionRange,
        read_pool: ReadPool,
        limits: GateLimits | None = None,
    ) -> None:
        limits = limits or GateLimits()
        config = services.config
        floating_buffers = limits.floating_buffers
        if floating_buffers is None:
            floating_buffers = config.floating_buffers_per_gate
        memory = GateMemory(
            services.network_pool,
            config.exclusive_buffers_per_channel,
            floating_buffers,
            config.exclusive_request_timeout_seconds,
            limits.owner,
        )
        super().__init__(name, wanted, memory)
        self._services = services
        self._read_pool = read_pool
        self._limits = limits
        self._remote_channels = 0
        """Remote channels that are open or being opened."""
        self._opening = 0
        """Those that have no segments yet."""
        self._reserve: list[MemorySegment] = []
        """Segments for them, if they are opened all or none."""
        self._asking: asyncio.Task[None] | None = None
        self.unopened: OrderedDict[RemoteInputChannel, ChannelSource] = OrderedDict()
        """Remote channels that wait until others are done."""
        self.asks_for_segments = 0
        """Its requests for exclusive segments that wait."""
        self.asked_at = 0.0
        """Time of the last one, as of ``time.monotonic()``."""
        self._clients: list[tuple[Address, PartitionRequestClient]] = []

    @property
    def unopened_channels(self) -> int:
        """Remote channels that have to wait until others are done."""
        return len(self.unopened)

    def make(self, source: ChannelSource, listener: DataListener) -> OpenableChannel:
        """Make the channel that fits a source; :meth:`open` opens it.

        Raises:
            InsufficientNetworkBuffers: No floating buffer is left for the gate.
        """
        if source.taskmanager_id == self._services.taskmanager_id:
            return LocalInputChannel(listener, partial(self._publish, source.map_attempt_ids))
        self.floating_pool()  # fails now if it cannot be had, and not the channel later
        limits = self._limits
        return RemoteInputChannel(
            listener, limits.buffer_bytes, limits.credit_bytes, self._remote_channel_done
        )

    def open(self, channel: OpenableChannel, source: ChannelSource) -> None:
        """Begin to open a channel, now or when another one is done; an error fails it."""
        if isinstance(channel, LocalInputChannel):
            self.start([(channel, source)])
        elif self._remote_channels == self._limits.remote_channels:
            self.unopened[channel] = source
        else:
            self._remote_channels += 1
            self._opening += 1
            self.start([(channel, source)])

    async def open_now(self, batch: list[Opening]) -> None:
        """Find the partition of a local channel, or ask another TaskManager for a remote one's."""
        for channel, source in batch:
            if isinstance(channel, LocalInputChannel):
                await self._open_local(channel, source)
            else:
                await self._open_remote(channel, source)

    def report_damage(self, source: ChannelSource) -> None:
        """Let the TaskManager of a source verify what arrived damaged."""
        self._services.report_damage(self.wanted, source)

    def stop(self) -> None:
        """Cancel the opening of channels. Idempotent; :meth:`close` comes after it."""
        self.unopened.clear()
        super().stop()

    def close(self) -> None:
        """Give connections and memory back, after the channels are released. Idempotent."""
        self._opening = 0
        self._return_excess()
        clients, self._clients = self._clients, []
        for address, client in clients:
            self._services.peers.release(address, client)
        super().close()

    def _remote_channel_done(self, channel: RemoteInputChannel) -> None:
        """Let the next channel take the place of one that was released or has failed."""
        if self.unopened.pop(channel, None) is not None:
            return
        if self.unopened:
            self._opening += 1
            self.start([self.unopened.popitem(last=False)])
        else:
            self._remote_channels -= 1

    def _publish(self, map_attempt_ids: Sequence[int], event_type: int, payload: bytes) -> None:
        shuffle = self.wanted.shuffle
        for map_attempt_id in map_attempt_ids:
            self._services.task_events.publish(shuffle, map_attempt_id, event_type, payload)

    async def _open_local(self, channel: LocalInputChannel, source: ChannelSource) -> None:
        services = self._services
        view = await services.partitions.request_view(
            self.wanted,
            source.map_attempt_ids,
            self._limits.buffer_bytes or services.config.segment_size_bytes,
            self._read_pool,
            channel.data_available,
            self._limits.credit_bytes,
        )
        channel.attach(view)

    async def _open_remote(self, channel: RemoteInputChannel, source: ChannelSource) -> None:
        try:
            client = await self._connect(source)
            exclusive = await self._exclusive_segments()
        finally:
            self._opening -= 1
            self._return_excess()
        if self.give(channel, client, exclusive):
            client.request(channel, self.wanted, source.map_attempt_ids, source.trace)

    async def _exclusive_segments(self) -> list[MemorySegment]:
        """Take the exclusive segments of a channel.

        The channels of a pipelined exchange are all read side by side, so the first one takes the
        segments of all that are being opened. Otherwise two gates could each hold a half of what
        there is, and wait for the other's.

        Raises:
            InsufficientNetworkBuffers: They are more than there are in all.
            NetworkBufferTimeout: They were not there in time.
        """
        if self._limits.remote_channels is not None:
            return await self._ask(1)
        count = self._memory.exclusive_buffers
        while len(self._reserve) < count:
            if self._asking is None:
                self._asking = start_shared(self._ask_for_all())
                self._tasks.add(self._asking)
                self._asking.add_done_callback(self._tasks.discard)
            await asyncio.shield(self._asking)
        taken = self._reserve[:count]
        del self._reserve[:count]
        return taken

    async def _ask_for_all(self) -> None:
        try:
            self._reserve += await self._ask(self._opening)
        finally:
            self._asking = None
        self._return_excess()

    async def _ask(self, channels: int) -> list[MemorySegment]:
        """Ask for the exclusive segments of some channels, and record that the gate waits."""
        self.asked_at = monotonic()
        self.asks_for_segments += 1
        try:
            return await self.exclusive_segments(channels)
        finally:
            self.asks_for_segments -= 1

    def _return_excess(self) -> None:
        """Return the segments of channels that failed before they took them."""
        needed = max(0, self._opening) * self._memory.exclusive_buffers
        excess = self._reserve[needed:]
        if excess:
            del self._reserve[needed:]
            self._memory.network_pool.recycle_segments(excess)

    async def _connect(self, source: ChannelSource) -> PartitionRequestClient:
        """Return a connection to the TaskManager of a source.

        Raises:
            SluiceError: It does not answer, refuses, or is another one.
        """
        address = source.address
        client = await self._acquire(address)
        self._clients.append((address, client))
        if client.taskmanager_id != source.taskmanager_id:
            raise SluiceError(
                f"Another TaskManager answers at {address}",
                code=ErrorCode.TASKMANAGER_MISMATCH,
                value=client.taskmanager_id,
                limit=source.taskmanager_id,
                remedy="Spark runs the map tasks of the lost one again",
            )
        return client

    async def _acquire(self, address: "Address") -> PartitionRequestClient:
        """Return a connection to another TaskManager.

        Raises:
            SluiceError: It does not answer, not even later if the gate waits for it, or refuses.
        """
        peers, dials = self._services.peers, self._services.dials
        tenant = tenant_of(self.wanted.shuffle.application_id)
        attempts = Attempts(address, self._services.transport)
        while True:
            makes_one = peers.connects(address)
            if makes_one:
                began = asyncio.get_running_loop().time()
                await dials.take(tenant)
                attempts.deadline += asyncio.get_running_loop().time() - began
                if not peers.connects(address):  # another channel has begun to meanwhile
                    dials.release(tenant)
                    makes_one = False
            try:
                async with asyncio.timeout_at(attempts.deadline):
                    return await peers.acquire(address)
            except (TimeoutError, ConnectFailed) as error:
                # One that accepts and hangs up, as a busy TaskManager or a proxy does, is there.
                if not self._limits.waits_for_restarts and isinstance(error.__cause__, OSError):
                    raise
                failure: Exception = error
            finally:
                if makes_one:  # the lookup of a name cannot be cancelled
                    after_look_up(*address, partial(dials.release, tenant))
            # Not in the handler: compiled code that waits there leaves the error to all others.
            await attempts.pause(failure)
