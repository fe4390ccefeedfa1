"""The client: it connects one process to its TaskManager and opens partitions and gates there."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from ...protocol.identity import Credential
from ...protocol.limits import FEATURE_BUFFER_GROUPS, FEATURE_LARGE_PAYLOADS, MAGIC, VERSION
from ...protocol.messages import (
    FLOW_CREDIT,
    ROLE_CONSUMER,
    ROLE_PRODUCER,
    Hello,
    HelloAck,
    OpenPartition,
    OpenPipelinedPartition,
)
from ...transport.connection import Connection, ConnectionHandler
from ...transport.connector import Address, connect
from ..counters import Counters
from ..errors import InvalidRequest
from ..gate.buffer_debloater import debloat_settings
from ..gate.channel_opener import GateMemory
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
from ..partition.stored_result_partition import StoredResultPartition
from .client_channel_opener import ClientChannelOpener
from .client_gate import ClientGate
from .config import ClientConfig, parse_endpoint
from .consumer_leg import ConsumerLeg
from .credentials import client_credential
from .partition_location import PartitionLocation
from .pipelined_writer import PipelinedWriter
from .producer_leg import ProducerLeg
from .region_sender import RegionSender
from .result_partition import ResultPartition


class ShuffleClient:
    """Opens result partitions and input gates on one TaskManager. Made by :meth:`connect`.

    It is not for several threads: everything runs on the event loop that connected.
    """

    def __init__(
        self,
        application_id: str,
        config: ClientConfig,
        producer: ProducerLeg,
        consumer: ConsumerLeg,
        ack: HelloAck,
        counters: Counters,
    ) -> None:
        self.application_id = application_id
        self.config = config
        self.taskmanager_id = ack.taskmanager_id
        self.address = Address(ack.advertised_host, ack.data_port)
        """Address at which other TaskManagers reach this client's TaskManager."""
        self.counters = counters
        self.network_pool = NetworkBufferPool(config.network_segments, ack.segment_size_bytes)
        self._producer = producer
        self._consumer = consumer
        self._flushers: dict[float, OutputFlusher] = {}

    @classmethod
    async def connect(
        cls,
        endpoint: str | Address,
        application_id: str,
        config: ClientConfig | None = None,
        *,
        credential: str | Credential | None = None,
    ) -> Self:
        """Connect to a TaskManager.

        With a credential both sides prove who they are. Processes that share the data of an
        application name the same application and have the same credential.

        Args:
            endpoint: ``unix:/path`` or ``host:port``; best of a TaskManager on this host.
            application_id: Partitions are found, and released, by application.
            config: Memory and deadlines.
            credential: A submit token, or any other text that gives a credential. By default that
                of the variable ``SLUICE_CREDENTIAL``, or of the file that
                ``SLUICE_CREDENTIAL_FILE`` names; without these, none.

        Raises:
            InvalidEndpoint: The endpoint has neither form.
            InvalidCredential: The text or the file has no credential.
            AuthenticationFailed: The TaskManager proves nothing; what it refuses is a RemoteError.
            ConnectFailed: The TaskManager did not answer in time.
            SluiceError: The TaskManager refused.

        Cancellation: safe.
        """
        address = parse_endpoint(endpoint) if isinstance(endpoint, str) else endpoint
        config = ClientConfig() if config is None else config
        proven = client_credential(credential, application_id, os.environ)
        counters = Counters()
        legs: list[ProducerLeg | ConsumerLeg] = []

        def producer(connection: Connection, greeting: Hello | HelloAck) -> ConnectionHandler:
            leg = ProducerLeg(connection, _ack(greeting), config.answer_timeout_seconds)
            legs.append(leg)
            return leg

        def consumer(connection: Connection, greeting: Hello | HelloAck) -> ConnectionHandler:
            leg = ConsumerLeg(connection, _ack(greeting), counters, config.answer_timeout_seconds)
            legs.append(leg)
            return leg

        try:
            for role, features, factory in (
                (ROLE_PRODUCER, FEATURE_LARGE_PAYLOADS, producer),
                (ROLE_CONSUMER, FEATURE_BUFFER_GROUPS, consumer),
            ):
                hello = Hello(
                    MAGIC,
                    VERSION,
                    VERSION,
                    role,
                    application_id,
                    b"",
                    0,
                    FLOW_CREDIT,
                    features,
                    f"python client {os.getpid()}",
                )
                _, ack = await connect(address, hello, factory, config.transport, 0, proven)
        except BaseException:
            for leg in legs:
                leg.close()
                await leg.closed.wait()  # the transport's close deadline bounds it
            raise
        first, second = legs
        if not isinstance(first, ProducerLeg) or not isinstance(second, ConsumerLeg):
            raise TypeError("the legs were opened in another order than they were asked for")
        return cls(application_id, config, first, second, ack, counters)

    @asynccontextmanager
    async def open_result_partition(
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
            max_segments: Most segments of the client's memory; by default, a fair share of it.
            buffer_timeout_seconds: Replaces the one of the configuration.
            codec: Compression of a stored partition.
            task_event: Called with the type and the bytes of each event that a reader sends back
                while a pipelined partition is written. If it raises, the partition fails.

        Raises:
            InvalidPartitionType: Type and consumption do not go together.
            InsufficientNetworkBuffers: The client's memory is promised to others.
            SluiceError: The TaskManager refused the partition, or could not complete it.
        """
        if consumption is None:
            consumption = (
                ConsumptionConstraint.WHEN_REGISTERED
                if partition_type.is_pipelined
                else ConsumptionConstraint.WHEN_FINISHED
            )
        checked_partition_type(partition_type, consumption)
        timeout = (
            self.config.buffer_timeout_seconds
            if buffer_timeout_seconds is None
            else buffer_timeout_seconds
        )
        location = PartitionLocation(
            shuffle_id, map_attempt_id, int(partition_type), self.taskmanager_id, *self.address
        )
        partition = await self._open_result_partition(
            location, num_subpartitions, consumption, max_segments, timeout, codec, task_event
        )
        async with partition:
            yield partition

    @asynccontextmanager
    async def open_gate(
        self,
        locations: Sequence[PartitionLocation],
        subpartition: int,
        end_subpartition: int | None = None,
    ) -> AsyncIterator[ClientGate]:
        """Open a gate over partitions of one shuffle, a channel for each.

        ::

            async with client.open_gate(locations, 2) as gate:
                async for word in gate.records(StringSerializer()):
                    ...

        Partitions need not exist yet: the TaskManagers wait for them, up to a deadline.

        Args:
            locations: The locations of the partitions, as their producers gave them.
            subpartition: The subpartition to read, or the first of a range (of stored partitions).
            end_subpartition: The subpartition behind the last.

        Raises:
            InvalidRequest: There are no locations, or those of several shuffles or types.
            InsufficientNetworkBuffers: The client's memory is promised to others.
        """
        if not locations:
            raise InvalidRequest("A gate needs partitions to read", value=0, limit=1)
        shuffles = {location.shuffle_id for location in locations}
        stored = {location.is_stored for location in locations}
        if len(shuffles) > 1 or len(stored) > 1:
            raise InvalidRequest(
                "The partitions of a gate must be of one shuffle, and all stored or all pipelined",
                value=f"shuffles {sorted(shuffles)}",
                remedy="Open several gates, and a UnionInputGate over them",
            )
        name = f"gate of shuffle {locations[0].shuffle_id}"
        wanted = SubpartitionRange(
            ShuffleKey(self.application_id, locations[0].shuffle_id),
            subpartition,
            subpartition + 1 if end_subpartition is None else end_subpartition,
        )
        memory = GateMemory(
            self.network_pool,
            self.config.exclusive_buffers_per_channel,
            self.config.floating_buffers_per_gate,
        )
        opener = ClientChannelOpener(name, wanted, memory, self._consumer)
        gate = ClientGate(InputGate(opener), is_stored=locations[0].is_stored)
        try:
            for location in locations:
                gate.gate.add_channel(location.source)
            debloat = debloat_settings(self.config, self.network_pool.segment_size_bytes)
            if debloat is not None and not locations[0].is_stored:
                gate.gate.debloat(debloat)
            yield gate
        finally:
            gate.close()

    async def close(self) -> None:
        """Close both connections; partitions that are not finished fail. Idempotent.

        Waits until the connections are gone, at most the transport's close deadline.

        Cancellation: safe; the connections go on closing.
        """
        for flusher in self._flushers.values():
            flusher.close()
        self._producer.close()
        self._consumer.close()
        await asyncio.gather(self._producer.closed.wait(), self._consumer.closed.wait())
        self.network_pool.destroy()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _open_result_partition(
        self,
        location: PartitionLocation,
        num_subpartitions: int,
        consumption: ConsumptionConstraint,
        max_segments: int | None,
        buffer_timeout_seconds: float,
        codec: BlockCodec,
        task_event: Callable[[int, bytes], None] | None,
    ) -> ResultPartition:
        config = self.config
        name = f"partition {location.map_attempt_id} of shuffle {location.shuffle_id}"
        pool = self.network_pool.create_local_pool(
            name,
            1,
            max_segments,
            max_overdraft_buffers=0 if location.is_stored else config.max_overdraft_buffers,
            max_buffers_per_channel=None if location.is_stored else config.max_buffers_per_channel,
            kind="map_output" if location.is_stored else "pipelined",
        )
        writer: PipelinedWriter | StoredResultPartition
        names = (location.shuffle_id, location.map_attempt_id, num_subpartitions)
        leg = self._producer
        try:
            number = leg.new_number()
            if location.is_stored:
                sink = RegionSender(leg, number)
                writer = StoredResultPartition(name, num_subpartitions, pool, sink, codec=codec)
                await leg.open(number, OpenPartition(number, *names), sink)
            else:
                writer = PipelinedWriter(
                    leg,
                    number,
                    num_subpartitions,
                    pool,
                    flusher=self._flusher(buffer_timeout_seconds),
                    task_event=task_event,
                )
                message = OpenPipelinedPartition(
                    number, *names, location.partition_type, int(consumption)
                )
                await leg.open(number, message, writer)
        except BaseException:
            pool.destroy()
            raise
        return ResultPartition(location, writer, buffer_timeout_seconds)

    def _flusher(self, interval_seconds: float) -> OutputFlusher | None:
        if interval_seconds <= 0:
            return None
        flusher = self._flushers.get(interval_seconds)
        if flusher is None:
            flusher = self._flushers[interval_seconds] = OutputFlusher(interval_seconds)
        return flusher


def _ack(greeting: Hello | HelloAck) -> HelloAck:
    if not isinstance(greeting, HelloAck):
        raise TypeError("the side that connects is greeted with a HelloAck")
    return greeting
