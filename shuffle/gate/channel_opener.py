"""Opening the channels of a gate: where their data comes from, their memory, and failures.

The base class does for every kind of channel what does not depend on the kind: it checks the range
that is read, reserves the floating buffers of the gate, supplies exclusive ones, runs the tasks in
which channels open, and fails the channels of a task that raises. A subclass says how a channel of
its kind is made and opened.
"""

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from mypy_extensions import mypyc_attr

from ...protocol.schema import TraceContext
from ...transport.address import Address
from ...transport.loop import start_task
from ..errors import InvalidRequest, failure_of
from ..memory import LocalBufferPool, MemorySegment, NetworkBufferPool, SegmentOwner
from ..names import SubpartitionRange
from ..partition.view import DataListener
from .buffer_manager import BufferManager
from .remote_input_channel import CreditSender, RemoteInputChannel

if TYPE_CHECKING:
    import asyncio

    from .local_input_channel import LocalInputChannel

EXCLUSIVE_REQUEST_TIMEOUT_SECONDS: Final = 30.0
"""Time for which a channel waits for segments that other gates and partitions hold."""


class ChannelSource(NamedTuple):
    """The place where the data of one channel comes from.

    Attributes:
        taskmanager_id: The TaskManager that holds the map outputs.
        address: The address of its data port.
        map_attempt_ids: The map outputs wanted of it.
        trace: Sent with the request, so that the TaskManager continues the trace.
    """

    taskmanager_id: str
    address: Address
    map_attempt_ids: Sequence[int]
    trace: TraceContext | None = None


UNKNOWN_SOURCE: Final = ChannelSource("", Address("unknown", 0), ())
"""The source of a channel whose producer is not known yet."""

OpenableChannel: TypeAlias = "LocalInputChannel | RemoteInputChannel"
Opening: TypeAlias = "tuple[OpenableChannel, ChannelSource]"
"""A channel that is being opened, and its source."""


class GateMemory(NamedTuple):
    """The receive buffers that one gate may have.

    Attributes:
        network_pool: The pool that all of them come from.
        exclusive_buffers: Segments of each remote channel.
        floating_buffers: Segments that the remote channels share, at most.
        timeout_seconds: Time for which a channel waits for its exclusive segments.
        owner: The application that the gate belongs to; None: the TaskManager or client itself.
    """

    network_pool: NetworkBufferPool
    exclusive_buffers: int
    floating_buffers: int
    timeout_seconds: float = EXCLUSIVE_REQUEST_TIMEOUT_SECONDS
    owner: SegmentOwner | None = None


@mypyc_attr(allow_interpreted_subclasses=True)  # tests open channels by hand
class ChannelOpener:
    """Makes and opens the channels of one gate, and has the memory that they share.

    Args:
        name: The gate's, for pools, logs and status.
        wanted: The subpartitions that the gate reads.
        memory: The receive buffers of the gate.

    Raises:
        InvalidRequest: The range is empty.
    """

    def __init__(self, name: str, wanted: SubpartitionRange, memory: GateMemory) -> None:
        if wanted.start >= wanted.end:
            raise InvalidRequest(
                "Range of subpartitions is empty", value=f"{wanted.start} to {wanted.end}"
            )
        self.name = name
        self.wanted = wanted
        self._memory = memory
        self._floating_pool: LocalBufferPool | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def unopened_channels(self) -> int:
        """Channels that open only after others have ended."""
        return 0

    @abc.abstractmethod
    def make(self, source: ChannelSource, listener: DataListener) -> OpenableChannel:
        """Make the channel that fits a source; :meth:`open` opens it.

        Raises:
            InsufficientNetworkBuffers: No floating buffer is left for the gate.
        """

    @abc.abstractmethod
    def open(self, channel: OpenableChannel, source: ChannelSource) -> None:
        """Begin to open a channel that this opener made; an error fails the channel."""

    @abc.abstractmethod
    async def open_now(self, batch: list[Opening]) -> None:
        """Open the channels of one task; an error fails all of them."""

    def report_damage(self, source: ChannelSource) -> None:
        """Report that stored data of a source arrived damaged, to the TaskManager that has it."""

    def stop(self) -> None:
        """Cancel the opening of channels. Idempotent; :meth:`close` comes after it."""
        for task in list(self._tasks):
            task.cancel()

    def close(self) -> None:
        """Release the shared memory, after the channels are released. Idempotent."""
        if self._floating_pool is not None:
            self._floating_pool.destroy()

    def start(self, batch: list[Opening]) -> None:
        """Open channels in a task of their own; more may join before its first step."""
        task = start_task(self._open_or_fail(batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def floating_pool(self) -> LocalBufferPool | None:
        """Return the pool of floating buffers, made when first needed; None without any.

        Raises:
            InsufficientNetworkBuffers: No segment is left for it.
        """
        memory = self._memory
        if self._floating_pool is None and memory.floating_buffers > 0:
            self._floating_pool = memory.network_pool.create_local_pool(
                self.name, 1, memory.floating_buffers, kind="gate", owner=memory.owner
            )
        return self._floating_pool

    async def attach(self, channel: RemoteInputChannel, sender: CreditSender) -> bool:
        """Give a remote channel its buffers and its connection.

        Returns:
            False if the channel was released meanwhile, and has nothing to ask for.

        Raises:
            InsufficientNetworkBuffers: It has more exclusive segments than there are in all.
            NetworkBufferTimeout: Its exclusive segments were not there in time.
        """
        return self.give(channel, sender, await self.exclusive_segments(1))

    async def exclusive_segments(self, channels: int) -> list[MemorySegment]:
        """Take the exclusive segments of some channels, all or none.

        Raises:
            InsufficientNetworkBuffers: They are more than there are in all.
            NetworkBufferTimeout: They were not there in time.
        """
        memory = self._memory
        return await memory.network_pool.request_segments_within(
            channels * memory.exclusive_buffers, memory.timeout_seconds, memory.owner
        )

    def give(
        self, channel: RemoteInputChannel, sender: CreditSender, exclusive: list[MemorySegment]
    ) -> bool:
        """Give a remote channel these exclusive segments and its connection.

        Returns:
            False if the channel was released meanwhile, and has nothing to ask for.

        Raises:
            InsufficientNetworkBuffers: No floating buffer is left; the segments are returned.
        """
        network_pool = self._memory.network_pool
        try:
            floating_pool = self.floating_pool()
        except BaseException:
            network_pool.recycle_segments(exclusive)
            raise
        return channel.attach(
            BufferManager(network_pool, floating_pool, exclusive, channel), sender
        )

    async def _open_or_fail(self, batch: list[Opening]) -> None:
        try:
            await self.open_now(batch)
        except Exception as error:  # noqa: BLE001
            # Any exception, because the resolver may raise others for a client's host name.
            failure = failure_of(error, f"opening channels of {self.name}")
            for channel, _ in batch:
                channel.fail(failure)
