"""The producer leg: map outputs and pipelined partitions that clients write to this TaskManager."""

import asyncio
import logging
from collections.abc import Callable

from sluice.protocol.errors import ChannelInUse, SluiceError, UnexpectedMessage
from sluice.protocol.framing import PayloadMemory
from sluice.protocol.limits import FEATURE_LARGE_PAYLOADS, RECEIVE_TAIL_BYTES
from sluice.protocol.messages import (
    AbortPartition,
    AddCredit,
    AttachRegionArea,
    BeginRegion,
    CloseRequest,
    FinishPartition,
    Message,
    OpenPartition,
    OpenPipelinedPartition,
    PartitionAborted,
    PartitionFinished,
    PartitionOpened,
    PartitionResumed,
    PipelinedData,
    RegionData,
    RegionOpened,
    RegionSecured,
    ResumePartition,
    SecureRegion,
    SharedRegion,
)
from sluice.protocol.remote_error import error_response
from sluice.shuffle.errors import LimitExceeded, PartitionReleased, ShuttingDown, internal_error
from sluice.shuffle.memory import LocalBufferPool
from sluice.shuffle.names import MapAttemptKey, ShuffleKey
from sluice.shuffle.taskmanager.ingest.attached_area import RegionAreaLeg
from sluice.shuffle.taskmanager.ingest.map_output_writer import MapOutputWriter, WriterState
from sluice.shuffle.taskmanager.ingest.pipelined_leg import PipelinedLeg
from sluice.shuffle.taskmanager.ingest.pipelined_producer import PipelinedProducer
from sluice.shuffle.taskmanager.ingest.waiting import Waiter
from sluice.shuffle.taskmanager.ingest.written_output import ProducerServices, WrittenOutput
from sluice.shuffle.taskmanager.store.errors import DuplicateMapOutput
from sluice.transport.connection import Connection

_log = logging.getLogger(__name__)

MOST_FAILED_PARTITIONS = 1024
"""Failed partition numbers remembered per connection, so that what is late is known as late."""


class ProducerHandler:
    """Serves the map outputs and pipelined partitions of one connection.

    Args:
        connection: The connection to the executor.
        services: The TaskManager's parts.
        on_lost: Called when the connection is gone.
    """

    def __init__(
        self, connection: Connection, services: ProducerServices, on_lost: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._services = services
        self._on_lost = on_lost
        self._partitions: dict[int, WrittenOutput] = {}
        self._failed: dict[int, None] = {}
        self._pipelined = PipelinedLeg(
            connection, services, self._fail, lambda number: number in self._failed
        )
        self._region_area = RegionAreaLeg(connection, services.region_areas)
        self._discard: memoryview | None = None
        self._lost = False

    @property
    def open_writers(self) -> list[MapOutputWriter]:
        """The map outputs being written, for status."""
        return [each.writer for each in self._partitions.values() if each.writer is not None]

    @property
    def is_busy(self) -> bool:
        """Whether it is writing anything."""
        return bool(self._partitions or self._pipelined.partitions)

    @property
    def available_credit(self) -> int:
        """Credits that its map outputs have left, for status."""
        return sum(each.credit for each in self._partitions.values())

    @property
    def open_pipelined(self) -> list[PipelinedProducer]:
        """The pipelined partitions being written, for status."""
        return list(self._pipelined.partitions.values())

    # ---- sluice.transport.connection.ConnectionHandler ------------------------------------------

    def payload_buffer(self, message: Message, length: int) -> PayloadMemory:
        """Supply the place for what comes, or a place to throw away what is late."""
        if type(message) is RegionData:
            writer = self._writer(message.partition)
            if writer is not None:
                try:
                    return writer.payload_buffer(message.offset, length)
                except SluiceError as error:
                    self._fail(message.partition, error)
        elif type(message) is PipelinedData:
            place = self._pipelined.payload_buffer(message, length)
            if place is not None:
                return place
        else:
            raise UnexpectedMessage("Payload on a producer leg", value=type(message).__name__)
        if self._discard is None:
            largest = max(
                self._connection.large_payload_bytes, self._services.config.segment_size_bytes
            )
            self._discard = memoryview(bytearray(largest + RECEIVE_TAIL_BYTES))
        return self._discard

    def message_received(self, message: Message, payload_length: int) -> None:
        """Take what the producer sends."""
        if type(message) is RegionData:
            self._data_received(message, payload_length)
        elif type(message) is PipelinedData:
            self._pipelined.received(message, payload_length)
        elif type(message) is BeginRegion or type(message) is SharedRegion:
            self._begin_region(message)
        elif type(message) is OpenPartition:
            if self._may_open(message.partition):
                self._open(message)
                self._connection.send(PartitionOpened(message.partition))
        elif type(message) is OpenPipelinedPartition:
            if self._may_open(message.partition):
                self._pipelined.open(message)
        elif type(message) is FinishPartition:
            if message.partition in self._pipelined.partitions:
                self._pipelined.finish(message)
            else:
                self._finish(message)
        elif type(message) is SecureRegion:
            self._secure(message)
        elif type(message) is ResumePartition:
            self._resume(message)
        elif type(message) is AbortPartition:
            self._abort(message.partition)
        elif type(message) is AttachRegionArea:
            self._region_area.attach(message)
        elif type(message) is CloseRequest:
            self._connection.close()

    def writable(self) -> None:
        """Send what pipelined partitions have kept; answers are small and wait for nothing."""
        self._pipelined.writable()

    def connection_lost(self, error: SluiceError) -> None:
        """Give up everything that is not committed or finished, but for what may be resumed."""
        self._lost = True
        for number, partition in list(self._partitions.items()):
            if partition.resumable and partition.attempt is not None:
                partition.resumable = False
                if partition.writer is not None:
                    self._services.resumable.park(partition.attempt)
                else:  # its commit goes on
                    self._services.resumable.forget(partition.attempt, drop=False)
            self._remove(number, aborted=True)
        self._region_area.detach()
        self._pipelined.connection_lost(error)
        self._on_lost()

    # ---- messages --------------------------------------------------------------------------------

    def _may_open(self, number: int, *, begun: bool = False) -> bool:
        """Tell whether a partition may be opened; if not it has failed.

        Args:
            number: Its number.
            begun: Whether a part of it is here already.

        Raises:
            ChannelInUse: There is one of that number.
        """
        if number in self._partitions or number in self._pipelined.partitions:
            raise ChannelInUse("Partition number is in use on this connection", value=number)
        self._failed.pop(number, None)
        if self._services.draining and not begun:
            self._fail(
                number,
                ShuttingDown("TaskManager is draining", remedy="Write to another TaskManager"),
            )
            return False
        open_partitions = len(self._partitions) + len(self._pipelined.partitions)
        most = self._services.config.max_partitions_per_connection
        if open_partitions >= most:
            self._fail(
                number,
                LimitExceeded(
                    "Too many partitions are being written on one connection",
                    value=open_partitions + 1,
                    limit=most,
                    remedy="Finish some first, use another connection, or raise "
                    "max_partitions_per_connection",
                ),
            )
            return False
        return True

    def _open(self, message: OpenPartition | ResumePartition) -> MapOutputWriter:
        number = message.partition
        services = self._services
        partition = WrittenOutput(Waiter(services.map_output_credit_wait))
        connection = self._connection
        counters = services.counters

        def pool() -> LocalBufferPool:
            if partition.pool is None:
                most = services.config.write_segments_per_partition
                partition.pool = services.network_pool.create_local_pool(
                    f"map output {message.map_attempt_id}", 1, most, kind="map_output"
                )
            return partition.pool

        def grant(credit: int) -> None:
            counters.credits_sent += credit
            partition.credit += credit
            partition.credit_wait.end()
            connection.send(AddCredit(number, credit))

        def opened(region: int, payload_bytes: int) -> None:
            if connection.features & FEATURE_LARGE_PAYLOADS:
                connection.send(RegionOpened(number, region, payload_bytes))

        partition.writer = MapOutputWriter(
            services.store,
            ShuffleKey(connection.application_id, message.shuffle_id),
            message.map_attempt_id,
            message.num_subpartitions,
            payload_bytes=connection.max_payload_bytes,
            large_payload_bytes=connection.large_payload_bytes,
            verify_checksums=services.verify_checksums,
            pool=pool,
            opened=opened,
            grant=grant,
            failed=lambda error: self._fail(number, error),
            resumed=type(message) is ResumePartition,
        )
        partition.attempt = partition.writer.attempt
        self._partitions[number] = partition
        return partition.writer

    def _resume(self, message: ResumePartition) -> None:
        """Open a map output behind what is secured of it, or say that it is committed."""
        number = message.partition
        services = self._services
        attempt = MapAttemptKey(
            ShuffleKey(self._connection.application_id, message.shuffle_id), message.map_attempt_id
        )
        pending = services.store.pending(attempt)
        if pending is not None:  # the connection before this one left it behind: see what comes
            pending.add_done_callback(lambda _: None if self._lost else self._resume(message))
            return
        committed = services.store.lookup(*attempt)
        if committed is not None:
            regions, total_bytes = len(committed.regions), committed.total_bytes
            self._connection.send(PartitionResumed(number, regions, total_bytes, True))
            return
        if not self._may_open(number, begun=services.store.open_output(attempt) is not None):
            return
        services.resumable.attach(attempt, lambda: self._taken_over(number))
        writer = self._open(message)
        self._partitions[number].resumable = True
        self._connection.send(
            PartitionResumed(number, writer.regions, writer.total_bytes, committed=False)
        )

    def _taken_over(self, number: int) -> None:
        """The producer of a map output goes on with it on another connection."""
        partition = self._partitions.get(number)
        if partition is not None:
            partition.resumable = False
            self._fail(number, PartitionReleased("Map output was resumed on another connection"))

    def _secure(self, message: SecureRegion) -> None:
        number = message.partition
        writer = self._writer(number)
        if writer is None:
            return
        partition = self._partitions[number]
        if not partition.resumable:
            if self._services.store.open_output(writer.attempt) is not None:
                self._fail(number, DuplicateMapOutput(*writer.key, writer.map_attempt_id))
                return
            self._services.resumable.attach(writer.attempt, lambda: self._taken_over(number))
            partition.resumable = True
        partition.securing = asyncio.get_running_loop().create_task(
            self._secure_region(message, partition, writer)
        )

    async def _secure_region(
        self, message: SecureRegion, partition: WrittenOutput, writer: MapOutputWriter
    ) -> None:
        failure: SluiceError | None = None
        try:
            await writer.secure(message.region)
        except SluiceError as error:
            failure = error
        except Exception as error:  # noqa: BLE001
            # A bug of ours must end this map output and be seen, not leave the producer waiting.
            _log.exception("internal error while securing a map output")
            failure = internal_error(error)
        if self._partitions.get(message.partition) is not partition:
            return
        if failure is not None:
            self._fail(message.partition, failure)
        else:
            self._connection.send(RegionSecured(message.partition, message.region))

    def _begin_region(self, message: BeginRegion | SharedRegion) -> None:
        writer = self._writer(message.partition)
        if writer is None:
            return
        most = self._services.config.max_regions_per_partition
        if message.region >= most:
            self._fail(
                message.partition,
                LimitExceeded(
                    "Map output has too many regions",
                    value=message.region + 1,
                    limit=most,
                    remedy="Write larger regions, or raise max_regions_per_partition",
                    map_attempt_id=writer.map_attempt_id,
                ),
            )
            return
        counters = self._services.counters
        try:
            if type(message) is SharedRegion:
                copied = writer.copy_region(
                    *message[1:5], self._region_area.area, message.area_offset
                )
                counters.producer_bytes_in += copied
                counters.region_area_bytes_in += copied
            else:
                writer.begin_region(*message[1:5])
                self._note_wait(self._partitions[message.partition])
            counters.regions_written += 1
        except SluiceError as error:
            self._fail(message.partition, error)

    def _data_received(self, message: RegionData, length: int) -> None:
        writer = self._writer(message.partition)
        if writer is None:
            self._services.counters.late_messages.bump("RegionData")
            return
        counters = self._services.counters
        counters.producer_bytes_in += length
        counters.producer_buffers_in += 1
        partition = self._partitions[message.partition]
        partition.credit -= 1
        try:
            writer.data_received(message.offset, length)
        except SluiceError as error:
            self._fail(message.partition, error)
            return
        if partition.credit == 0:
            self._note_wait(partition)

    def _finish(self, message: FinishPartition) -> None:
        writer = self._writer(message.partition)
        if writer is None:
            return
        partition = self._partitions[message.partition]
        if partition.commit is not None:
            self._fail(
                message.partition, UnexpectedMessage("FinishPartition came twice", value=2, limit=1)
            )
            return
        partition.commit = asyncio.get_running_loop().create_task(
            self._commit(message, partition, writer)
        )

    async def _commit(
        self, message: FinishPartition, partition: WrittenOutput, writer: MapOutputWriter
    ) -> None:
        """Commit a map output, and acknowledge it once it outlives this process."""
        try:
            output = await writer.finish(message.total_bytes, message.regions)
            partition.writer = None  # what it wrote belongs to the store now
            await self._services.partitions.commit(output)
        except SluiceError as error:
            self._commit_failed(message.partition, partition, error)
            return
        except Exception as error:  # noqa: BLE001
            # A bug of ours must end this map output and be seen, not leave the producer waiting.
            _log.exception("internal error while committing a map output")
            self._commit_failed(message.partition, partition, internal_error(error))
            return
        partition.commit = None
        self._services.counters.map_outputs_committed += 1
        self._remove(message.partition, aborted=False)
        self._connection.send(PartitionFinished(message.partition))
        self._answer_aborts(message.partition, partition)

    def _commit_failed(self, number: int, partition: WrittenOutput, error: SluiceError) -> None:
        if self._partitions.get(number) is partition:
            partition.commit = None
            self._fail(number, error)
            self._answer_aborts(number, partition)

    def _abort(self, number: int) -> None:
        """Give a map output up, unless its row is on its way into the journal.

        That cannot be called back: the commit is answered first, then the abort.
        """
        partition = self._partitions.get(number)
        if partition is not None and partition.commit is not None and partition.writer is None:
            partition.aborts += 1
            return
        self._remove(number, aborted=True)
        self._pipelined.remove(number, "The producer gave its partition up")
        self._failed.pop(number, None)
        self._connection.send(PartitionAborted(number))

    def _answer_aborts(self, number: int, partition: WrittenOutput) -> None:
        for _ in range(partition.aborts):
            self._failed.pop(number, None)
            self._connection.send(PartitionAborted(number))

    # ---- inner workings --------------------------------------------------------------------------

    def _note_wait(self, partition: WrittenOutput) -> None:
        """Begin to count the producer's wait if it has more to send and no credit."""
        writer = partition.writer
        if writer is None or writer.state is not WriterState.IN_REGION:
            partition.credit = 0  # what is left of a complete region is void
        elif partition.credit == 0:
            partition.credit_wait.begin()

    def _writer(self, number: int) -> MapOutputWriter | None:
        """Find a map output; None if it has failed and this message is late.

        Raises:
            UnexpectedMessage: It was never opened.
        """
        partition = self._partitions.get(number)
        if partition is not None:
            return partition.writer
        if number in self._failed:
            return None
        raise UnexpectedMessage("Partition is not open", value=number)

    def _fail(self, number: int, error: SluiceError) -> None:
        self._remove(number, aborted=True)
        self._pipelined.remove(number, "The producer failed", f"{error.code.name}: {error}")
        if len(self._failed) >= MOST_FAILED_PARTITIONS:
            del self._failed[next(iter(self._failed))]
        self._failed[number] = None
        self._services.counters.errors_by_code.bump(error.code.name)
        self._connection.send(error_response(number, error))

    def _remove(self, number: int, *, aborted: bool) -> None:
        partition = self._partitions.pop(number, None)
        if partition is None:
            return
        partition.credit_wait.end()
        if partition.securing is not None:
            partition.securing.cancel()
        if partition.resumable and partition.attempt is not None:
            self._services.resumable.forget(partition.attempt, drop=aborted)
        if partition.commit is not None:
            partition.commit.cancel()
        if partition.writer is not None:
            partition.writer.abort()
            if aborted:
                self._services.counters.map_outputs_aborted += 1
        if partition.pool is not None:
            partition.pool.destroy()
        if not self.is_busy:
            self._services.on_idle()
