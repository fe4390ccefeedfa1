"""The API by which tasks write result partitions and read input gates, wherever they run.

A task that runs beside a TaskManager, in a process of its own, has a
:class:`~sluice.shuffle.client.client.ShuffleClient`; one that runs in a TaskManager's own process
has an :class:`~sluice.shuffle.taskmanager.embedded.client.EmbeddedClient`. Both read and write each
other's partitions.
"""

import abc
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import NamedTuple, Self

from ...protocol.limits import MAX_REPLICAS
from ...transport.address import Address
from ..counters import Counters
from ..errors import InvalidRequest
from ..gate.input_gate import InputGate
from ..memory import NetworkBufferPool
from ..names import ShuffleKey, SubpartitionRange
from ..partition.blocks import BlockCodec
from ..partition.output_flusher import OutputFlusher
from ..partition.partition_type import (
    ConsumptionConstraint,
    ResultPartitionType,
    checked_partition_type,
)
from ..partition.result_partition_writer import BufferWritingPartition
from .client_gate import ClientGate
from .partition_location import PartitionLocation
from .result_partition import ResultPartition


def _check_replicas(
    replicas: int, partition_type: ResultPartitionType, *, remote: bool = False
) -> None:
    """Check the number of replicas of a partition.

    Raises:
        InvalidRequest: It is out of range, or the partition is pipelined.
    """
    if not 1 <= replicas <= MAX_REPLICAS:
        raise InvalidRequest(
            "Number of replicas is out of range", value=replicas, limit=f"1 to {MAX_REPLICAS}"
        )
    if (replicas > 1 or remote) and partition_type.is_pipelined:
        raise InvalidRequest(
            "A pipelined partition has no copies",
            value="remote" if remote else replicas,
            limit=1,
            remedy="Store it: partition_type=ResultPartitionType.BLOCKING",
        )


def _check_alternatives(
    locations: Sequence[PartitionLocation | None],
    alternatives: Sequence[Sequence[PartitionLocation]],
) -> None:
    """Check that alternatives are those of the stored partitions of a gate.

    Raises:
        InvalidRequest: They are of other partitions.
    """
    if len(alternatives) > len(locations):
        raise InvalidRequest(
            "A gate has alternatives for more partitions than it reads",
            value=len(alternatives),
            limit=len(locations),
        )
    for location, others in zip(locations, alternatives, strict=False):
        for other in others:
            if location is None or not location.is_stored or other[:3] != location[:3]:
                raise InvalidRequest(
                    "The alternative of a location is not a copy of the same stored partition",
                    value=other[:3],
                    limit=None if location is None else location[:3],
                )


class PartitionSettings(NamedTuple):
    """The parts of a result partition that its task chooses.

    Attributes:
        num_subpartitions: Number of subpartitions, at least 1.
        consumption: When readers may begin.
        max_segments: Most segments that it may take; None for a fair share.
        flusher: Flushes open buffers of a pipelined partition; None if nothing does.
        codec: Compression of a stored partition.
        task_event: Takes the events that readers send back.
        replicas: Number of TaskManagers that keep a stored partition.
        replicas_synchronous: Whether its end waits for the copies.
        replicas_remote: Whether a stored partition gets a copy in the remote tier.
    """

    num_subpartitions: int
    consumption: ConsumptionConstraint
    max_segments: int | None
    flusher: OutputFlusher | None
    codec: BlockCodec
    task_event: Callable[[int, bytes], None] | None
    replicas: int
    replicas_synchronous: bool
    replicas_remote: bool = False


class ShuffleEnvironment(abc.ABC):
    """Opens result partitions and input gates for the tasks of one application.

    It is not for several threads: everything runs on one event loop.

    Args:
        application_id: Partitions are found, and released, by application.
        taskmanager_id: The TaskManager that holds what is written here.
        address: Address at which other TaskManagers reach it.
        network_pool: The memory of partitions and gates.
        counters: Count what happens here.
        buffer_timeout_seconds: Time after which a buffer that is not full is sent, where a
            partition does not say; 0: after every call, -1: only full buffers are sent.
    """

    def __init__(
        self,
        application_id: str,
        taskmanager_id: str,
        address: Address,
        network_pool: NetworkBufferPool,
        counters: Counters,
        buffer_timeout_seconds: float,
    ) -> None:
        self.application_id = application_id
        self.taskmanager_id = taskmanager_id
        self.address = address
        self.network_pool = network_pool
        self.counters = counters
        self._buffer_timeout_seconds = buffer_timeout_seconds
        self._flushers: dict[float, OutputFlusher] = {}
        self._open_partitions: set[ResultPartition] = set()
        self._open_gates: set[ClientGate] = set()

    @property
    def is_busy(self) -> bool:
        """Whether a partition or a gate is open."""
        return bool(self._open_partitions or self._open_gates)

    @asynccontextmanager
    async def open_result_partition(  # noqa: PLR0913 - options of the user's API
        self,
        shuffle_id: int,
        map_attempt_id: int,
        num_subpartitions: int,
        *,
        partition_type: ResultPartitionType = ResultPartitionType.PIPELINED_BOUNDED,
        consumption: ConsumptionConstraint | None = None,
        max_segments: int | None = None,
        buffer_timeout_seconds: float | None = None,
        codec: BlockCodec = BlockCodec.LZ4,
        task_event: Callable[[int, bytes], None] | None = None,
        replicas: int = 1,
        replicas_synchronous: bool = False,
        replicas_remote: bool = False,
    ) -> AsyncIterator[ResultPartition]:
        """Open a result partition on the TaskManager; it is finished, or failed, at the end.

        ::

            async with client.open_result_partition(1, 0, 4) as partition:
                ...

        Args:
            shuffle_id: Names the partition within the application, with the map attempt.
            map_attempt_id: Names one task's output; unique in the shuffle.
            num_subpartitions: Number of subpartitions, at least 1.
            partition_type: Stored and read later, or read while it is written.
            consumption: When a consumer may begin; by default, as soon as the type allows.
            max_segments: Most segments of memory; by default, a fair share of it.
            buffer_timeout_seconds: Replaces the one of the configuration.
            codec: Compression of a stored partition.
            task_event: Called with the type and the bytes of each event that a reader sends back
                while a pipelined partition is written. If it raises, the partition fails.
            replicas: Number of TaskManagers that keep a stored partition, 1 to 8. The one that
                it is written to copies it to others, on other hosts.
            replicas_synchronous: Whether the partition is complete only when its copies are made,
                or cannot be made.
            replicas_remote: Whether the partition gets a copy in the remote tier, from which every
                TaskManager with the same remote tier serves it.

        Raises:
            InvalidPartitionType: Type and consumption do not go together.
            InvalidRequest: The number of replicas is out of range, or the partition is pipelined.
            InsufficientNetworkBuffers: The memory is promised to others.
            SluiceError: The TaskManager refused the partition, or could not complete it.
        """
        if consumption is None:
            consumption = (
                ConsumptionConstraint.WHEN_REGISTERED
                if partition_type.is_pipelined
                else ConsumptionConstraint.WHEN_FINISHED
            )
        checked_partition_type(partition_type, consumption)
        _check_replicas(replicas, partition_type, remote=replicas_remote)
        timeout = (
            self._buffer_timeout_seconds
            if buffer_timeout_seconds is None
            else buffer_timeout_seconds
        )
        await self._choose_taskmanager()
        location = PartitionLocation(
            shuffle_id, map_attempt_id, int(partition_type), self.taskmanager_id, *self.address
        )
        flusher = None if location.is_stored else self._flusher(timeout)
        writer = await self._open_writer(
            location,
            PartitionSettings(
                num_subpartitions,
                consumption,
                max_segments,
                flusher,
                codec,
                task_event,
                replicas,
                replicas_synchronous,
                replicas_remote,
            ),
        )
        partition = ResultPartition(location, writer, timeout)
        self._open_partitions.add(partition)
        try:
            async with partition:
                yield partition
        finally:
            self._open_partitions.discard(partition)
            self._one_closed()

    @asynccontextmanager
    async def open_gate(
        self,
        locations: Sequence[PartitionLocation | None],
        subpartition: int,
        end_subpartition: int | None = None,
        *,
        shuffle_id: int | None = None,
        alternatives: Sequence[Sequence[PartitionLocation]] = (),
    ) -> AsyncIterator[ClientGate]:
        """Open a gate over partitions of one shuffle, a channel for each.

        ::

            async with client.open_gate(locations, 2) as gate:
                async for word in gate.records(StringSerializer()):
                    ...

        Partitions need not exist yet: the TaskManagers wait for them, up to a deadline.

        Args:
            locations: The locations of the partitions, as their producers gave them. None stands
                for a pipelined partition whose producer is not known yet: its channel stays empty
                until :meth:`~sluice.shuffle.client.client_gate.ClientGate.update_channel` names it.
            subpartition: The subpartition to read, or the first of a range (of stored partitions).
            end_subpartition: The subpartition behind the last.
            shuffle_id: The shuffle; needed if no location is known.
            alternatives: For each location those of copies of the same stored partition, in the
                order to try them. A channel whose TaskManager is lost, damaged or unreachable
                continues there, after what was read; a partition that has moved is followed.

        Raises:
            InvalidRequest: There are no locations, or those of several shuffles or types; or the
                alternatives are of other partitions.
            InsufficientNetworkBuffers: The memory is promised to others.
        """
        if not locations:
            raise InvalidRequest("A gate needs partitions to read", value=0, limit=1)
        known = [location for location in locations if location is not None]
        shuffles = {location.shuffle_id for location in known}
        if shuffle_id is not None:
            shuffles.add(shuffle_id)
        stored = {location.is_stored for location in known}
        if len(known) < len(locations):
            stored.add(False)
        if len(shuffles) != 1 or len(stored) > 1:
            raise InvalidRequest(
                "The partitions of a gate must be of one shuffle, and all stored or all pipelined",
                value=f"shuffles {sorted(shuffles)}",
                remedy="Open several gates, and a UnionInputGate over them; "
                "give shuffle_id if no producer is known",
            )
        (shuffle,) = shuffles
        if alternatives:
            _check_alternatives(locations, alternatives)
        wanted = SubpartitionRange(
            ShuffleKey(self.application_id, shuffle),
            subpartition,
            subpartition + 1 if end_subpartition is None else end_subpartition,
        )
        is_stored = stored == {True}
        gate = ClientGate(self._make_gate(wanted, is_stored=is_stored), is_stored=is_stored)
        try:
            for index, location in enumerate(locations):
                gate.add_channel(location, alternatives[index] if index < len(alternatives) else ())
            self._open_gates.add(gate)
            yield gate
        finally:
            gate.close()
            self._open_gates.discard(gate)
            self._one_closed()

    @abc.abstractmethod
    async def close(self) -> None:
        """Close everything; partitions that are not finished fail. Idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # ---- for subclasses ----------------------------------------------------------------------

    @abc.abstractmethod
    async def _choose_taskmanager(self) -> None:
        """Update the TaskManager that the next partition is written to.

        Raises:
            SluiceError: None can be reached.
        """

    @abc.abstractmethod
    async def _open_writer(
        self, location: PartitionLocation, settings: PartitionSettings
    ) -> BufferWritingPartition:
        """Open the writer of a partition.

        Raises:
            SluiceError: It cannot be opened; nothing is left behind.
        """

    @abc.abstractmethod
    def _make_gate(self, wanted: SubpartitionRange, *, is_stored: bool) -> InputGate:
        """Make a gate without channels."""

    @abc.abstractmethod
    def _one_closed(self) -> None:
        """Record that a partition or a gate is closed."""

    def _close_flushers(self) -> None:
        for flusher in self._flushers.values():
            flusher.close()

    def _flusher(self, interval_seconds: float) -> OutputFlusher | None:
        if interval_seconds <= 0:
            return None
        flusher = self._flushers.get(interval_seconds)
        if flusher is None:
            flusher = self._flushers[interval_seconds] = OutputFlusher(interval_seconds)
        return flusher
