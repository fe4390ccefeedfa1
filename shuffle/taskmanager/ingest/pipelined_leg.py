"""All pipelined partitions that one connection writes, by number."""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from sluice.protocol.errors import SluiceError, UnexpectedMessage
from sluice.protocol.messages import (
    DATA,
    FinishPartition,
    OpenPipelinedPartition,
    PartitionFinished,
    PartitionOpened,
    PipelinedData,
)
from sluice.shuffle.errors import ProducerFailed, internal_error
from sluice.shuffle.taskmanager.ingest.pipelined_producer import PipelinedProducer
from sluice.transport.connection import Connection

if TYPE_CHECKING:
    from sluice.shuffle.taskmanager.ingest.written_output import ProducerServices

_log = logging.getLogger(__name__)


class PipelinedLeg:
    """Takes what a client sends for its pipelined partitions.

    Args:
        connection: The connection to the client.
        services: The TaskManager's parts.
        fail: Ends a partition with an error that the client is told; calls :meth:`remove`.
        has_failed: Tells whether a number is that of a failed partition: what comes for it is late.
    """

    def __init__(
        self,
        connection: Connection,
        services: "ProducerServices",
        fail: Callable[[int, SluiceError], None],
        has_failed: Callable[[int], bool],
    ) -> None:
        self.partitions: dict[int, PipelinedProducer] = {}
        """Those that are not finished."""
        self._connection = connection
        self._services = services
        self._fail = fail
        self._has_failed = has_failed
        self._finishing: dict[PipelinedProducer, asyncio.Task[None]] = {}
        self._arriving: PipelinedProducer | None = None
        """Whose memory the payload arrives in; it may have failed meanwhile."""

    def open(self, message: OpenPipelinedPartition) -> None:
        """Open a partition and grant its first credit."""
        number = message.partition
        try:
            producer = PipelinedProducer(
                self._services, self._connection, message, lambda error: self._fail(number, error)
            )
        except SluiceError as error:
            self._fail(number, error)
            return
        self.partitions[number] = producer
        self._services.counters.pipelined_partitions_opened += 1
        self._connection.send(PartitionOpened(number))
        producer.start()

    def payload_buffer(self, message: PipelinedData, length: int) -> memoryview | None:
        """Supply the place for a buffer or an event; None for what is late.

        Raises:
            UnexpectedMessage: The partition was never opened.
        """
        producer = self._producer(message.partition)
        if producer is None:
            return None
        try:
            place = producer.payload_buffer(message, length)
        except SluiceError as error:
            self._fail(message.partition, error)
            return None
        self._arriving = producer
        return place

    def received(self, message: PipelinedData, length: int) -> None:
        """Take what has arrived.

        Raises:
            UnexpectedMessage: The partition was never opened.
        """
        arriving, self._arriving = self._arriving, None
        producer = self._producer(message.partition)
        if producer is None or (length and arriving is not producer):
            # The partition failed while this was on its way, or has come in the place of one.
            if arriving is not None:
                arriving.drop_arriving()
            self._services.counters.late_messages.bump("PipelinedData")
            return
        if message.data_type == DATA:
            counters = self._services.counters
            counters.producer_bytes_in += length
            counters.producer_buffers_in += 1
        try:
            producer.received(message, length)
        except SluiceError as error:
            producer.drop_arriving()
            self._fail(message.partition, error)

    def finish(self, message: FinishPartition) -> None:
        """End a partition that is open here, and acknowledge it."""
        producer = self.partitions[message.partition]
        try:
            producer.begin_finish(message)
        except SluiceError as error:
            self._fail(message.partition, error)
            return
        task = asyncio.get_running_loop().create_task(self._complete(producer))
        if not task.done():
            self._finishing[producer] = task

    def remove(self, number: int, why: str, value: str | None = None) -> None:
        """Give a partition up, if there is one of that number: its readers fail."""
        producer = self.partitions.pop(number, None)
        if producer is None:
            return
        self._services.counters.pipelined_partitions_failed += 1
        finishing = self._finishing.pop(producer, None)
        if finishing is not None:
            finishing.cancel()
        producer.fail(ProducerFailed(why, value=value, map_attempt_id=producer.map_attempt_id))

    def writable(self) -> None:
        """The connection can be written again."""
        for producer in self.partitions.values():
            producer.writable()

    def connection_lost(self, error: SluiceError) -> None:
        """Give up everything that is not finished."""
        if self._arriving is not None:
            self._arriving.drop_arriving()
            self._arriving = None
        for number in list(self.partitions):
            self.remove(number, "The producer's connection was lost", str(error))

    async def _complete(self, producer: PipelinedProducer) -> None:
        number = producer.number
        failure: SluiceError | None = None
        try:
            await producer.finish()
        except SluiceError as error:
            failure = error
        except Exception as error:  # noqa: BLE001
            # A bug of ours must end this partition and be seen, not leave the producer waiting.
            _log.exception("internal error while finishing a pipelined partition")
            failure = internal_error(error)
        self._finishing.pop(producer, None)
        if self.partitions.get(number) is not producer:
            return
        if failure is not None:
            self._fail(number, failure)
            return
        del self.partitions[number]
        self._services.counters.pipelined_partitions_finished += 1
        self._connection.send(PartitionFinished(number))

    def _producer(self, number: int) -> PipelinedProducer | None:
        """Find a partition; None if it has failed and this message is late.

        Raises:
            UnexpectedMessage: It was never opened.
        """
        producer = self.partitions.get(number)
        if producer is None and not self._has_failed(number):
            raise UnexpectedMessage("Pipelined partition is not open", value=number)
        return producer
