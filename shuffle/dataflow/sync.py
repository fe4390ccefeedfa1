"""The Python API without asyncio, for code such as a function of ``mapPartitions``.

::

    with SyncShuffleClient("unix:/run/sluice/taskmanager.sock", "wordcount") as client:
        with client.open_result_partition(1, 0, 4, StringSerializer(), HashSelector(key)) as out:
            for word in words:
                out.emit(word)
        with client.open_gate(locations, 2) as gate:
            for word in gate.records(StringSerializer()):
                ...

An event loop runs in a thread of its own. A call to it and back takes tens of microseconds, so
records are handed over in batches, in both directions. Every call waits at most
``timeout_seconds``; then it raises :class:`~sluice.transport.errors.DeadlineExceeded`.
"""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from ...protocol.errors import SluiceError
from ...protocol.events import Event
from ...protocol.identity import Credential
from ...protocol.schema import EVENT, PRIORITY_EVENT
from ...transport.address import Address
from ..client.client import ShuffleClient
from ..client.client_gate import ClientGate
from ..client.config import ClientConfig
from ..client.loop_thread import LoopThread
from ..client.partition_location import PartitionLocation
from ..client.result_partition import ResultPartition
from ..errors import InvalidRequest, PartitionReleased
from ..partition.partition_type import ConsumptionConstraint, ResultPartitionType
from ..records.record_reader import ChannelEvent, ChannelRecords
from ..records.selectors import ChannelSelector
from ..records.serializers import ValueSerializer

if TYPE_CHECKING:
    from ..records.record_writer import RecordWriter

T = TypeVar("T")
R = TypeVar("R")

DEFAULT_TIMEOUT_SECONDS: Final = 600.0
BATCH_RECORDS: Final = 512
"""Records that are handed over to the event loop together."""


class SyncShuffleClient:
    """A client for one thread without asyncio. A context manager.

    Args:
        endpoint: The same as that of :meth:`ShuffleClient.connect`.
        application_id: Partitions are found, and released, by application.
        config: Memory and deadlines.
        timeout_seconds: Longest wait of any one call, back pressure included.
        credential: As for :meth:`ShuffleClient.connect`.
    """

    def __init__(
        self,
        endpoint: str | Address | Sequence[str | Address],
        application_id: str,
        config: ClientConfig | None = None,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        credential: str | Credential | None = None,
    ) -> None:
        self.timeout_seconds: Final = timeout_seconds
        self._credential = credential
        self._endpoint = endpoint
        self._application_id = application_id
        self._config = config
        self._thread = LoopThread(f"sluice client of {application_id}")
        self._client: ShuffleClient | None = None

    def __enter__(self) -> Self:
        """Start the thread and connect.

        Raises:
            SluiceError: As :meth:`ShuffleClient.connect`.
        """
        self._thread.start(self.timeout_seconds)
        try:
            self._client = self.call(
                ShuffleClient.connect(
                    self._endpoint,
                    self._application_id,
                    self._config,
                    credential=self._credential,
                ),
                "connect",
            )
        except BaseException:
            self._thread.close(self.timeout_seconds)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and the thread; unfinished partitions fail. Idempotent.

        Raises:
            DeadlineExceeded: The close took longer than ``timeout_seconds``.
        """
        client, self._client = self._client, None
        try:
            if client is not None:
                self.call(client.close(), "close")
        finally:
            self._thread.close(self.timeout_seconds)

    @property
    def client(self) -> ShuffleClient:
        """The asyncio client behind this one; use it on its event loop only.

        Raises:
            InvalidRequest: The context is not entered, or was left.
        """
        if self._client is None:
            raise InvalidRequest("The client is not open", remedy="Use it within its context")
        return self._client

    @contextmanager
    def open_result_partition(  # noqa: PLR0913 - the client's options, without asyncio
        self,
        shuffle_id: int,
        map_attempt_id: int,
        num_subpartitions: int,
        serializer: ValueSerializer[T],
        selector: ChannelSelector[T] | None = None,
        *,
        partition_type: ResultPartitionType = ResultPartitionType.PIPELINED_BOUNDED,
        consumption: ConsumptionConstraint | None = None,
        max_segments: int | None = None,
        buffer_timeout_seconds: float | None = None,
        task_event: Callable[[int, bytes], None] | None = None,
        replicas: int = 1,
        replicas_synchronous: bool = False,
        replicas_remote: bool = False,
    ) -> "Iterator[SyncRecordWriter[T]]":
        """Open a result partition for records; it is finished, or failed, at the end.

        Arguments and errors are those of :meth:`ShuffleClient.open_result_partition` and
        :meth:`ResultPartition.record_writer`. ``task_event`` is called on the thread of the event
        loop, where it must not wait.
        """
        context = self.client.open_result_partition(
            shuffle_id,
            map_attempt_id,
            num_subpartitions,
            partition_type=partition_type,
            consumption=consumption,
            max_segments=max_segments,
            buffer_timeout_seconds=buffer_timeout_seconds,
            task_event=task_event,
            replicas=replicas,
            replicas_synchronous=replicas_synchronous,
            replicas_remote=replicas_remote,
        )
        with self._entered(context, "open or end a partition") as partition:
            writer = SyncRecordWriter(self, partition, serializer, selector)
            yield writer
            writer._hand_over()

    @contextmanager
    def open_gate(
        self,
        locations: Sequence[PartitionLocation],
        subpartition: int,
        end_subpartition: int | None = None,
        *,
        alternatives: Sequence[Sequence[PartitionLocation]] = (),
    ) -> "Iterator[SyncGate]":
        """Open a gate; arguments and errors are those of :meth:`ShuffleClient.open_gate`."""
        context = self.client.open_gate(
            locations, subpartition, end_subpartition, alternatives=alternatives
        )
        with self._entered(context, "open or close a gate") as gate:
            yield SyncGate(self, gate)

    def call(self, work: Coroutine[Any, Any, R], what: str) -> R:
        """Run a coroutine on the client's event loop and wait for it; see :class:`LoopThread`."""
        return self._thread.call(work, self.timeout_seconds, what)

    @contextmanager
    def _entered(self, context: AbstractAsyncContextManager[R], what: str) -> Iterator[R]:
        """Enter and leave an asynchronous context on the event loop."""

        async def enter() -> R:
            return await context.__aenter__()

        async def leave(failure: SluiceError | None) -> None:
            if failure is None:
                await context.__aexit__(None, None, None)
            else:
                await context.__aexit__(type(failure), failure, failure.__traceback__)

        entered = self.call(enter(), what)
        try:
            yield entered
        except BaseException as error:
            # An interrupt would end the event loop, so the context gets another error instead.
            failure = (
                error
                if isinstance(error, SluiceError)
                else PartitionReleased("Its task failed", value=repr(error), remedy="Run it again")
            )
            with suppress(SluiceError):  # the first error is raised below
                self.call(leave(failure), what)
            raise
        self.call(leave(None), what)


class SyncRecordWriter(Generic[T]):
    """Writes records from a thread without asyncio.

    Records of :meth:`emit` wait here until there are ``BATCH_RECORDS`` of them; :meth:`flush` hands
    them over sooner. A source that may pause should flush before it does.

    Args:
        client: The client that opened the partition.
        partition: The open partition.
        serializer: Makes the records' bytes, on the thread of the event loop.
        selector: Chooses subpartitions, on that thread too.
    """

    def __init__(
        self,
        client: SyncShuffleClient,
        partition: ResultPartition,
        serializer: ValueSerializer[T],
        selector: ChannelSelector[T] | None,
    ) -> None:
        self.location: Final = partition.location
        """Name and place of the partition; send it to the consumers."""
        self._client = client
        self._partition = partition
        self._writer: RecordWriter[T] = partition.record_writer(serializer, selector)
        self._waiting: list[T] = []

    def emit(self, record: T) -> None:
        """Write a record, together with others once they are a batch.

        Raises:
            DeadlineExceeded: Back pressure lasted too long; fail the partition.
            SluiceError: As :meth:`RecordWriter.emit`, of any record of the batch.
        """
        waiting = self._waiting
        waiting.append(record)
        if len(waiting) >= BATCH_RECORDS:
            self._hand_over()

    def emit_batch(self, records: Sequence[T]) -> None:
        """Write many records; see :meth:`emit`."""
        self._hand_over()
        self._client.call(self._emit(records), "emit")

    def emit_event(self, event: Event, subpartition: int, data_type: int = EVENT) -> None:
        """Put an event behind the records so far; see :meth:`RecordWriter.emit_event`."""
        self._hand_over()
        self._client.call(self._emit_event(event, subpartition, data_type), "emit an event")

    def flush(self) -> None:
        """Send all records written so far."""
        self._hand_over()
        self._client.call(self._flush(), "flush")

    def finish(self) -> None:
        """End the partition now, behind all records; its context does the same when it is left.

        Raises:
            DeadlineExceeded: Its readers take longer; fail the partition.
            SluiceError: As :meth:`ResultPartition.finish`.
        """
        self._hand_over()
        self._client.call(self._partition.finish(), "finish")

    def _hand_over(self) -> None:
        if self._waiting:
            records, self._waiting = self._waiting, []
            self._client.call(self._emit(records), "emit")

    async def _emit(self, records: Sequence[T]) -> None:
        if (pending := self._writer.emit_batch(records)) is not None:
            await pending

    async def _emit_event(self, event: Event, subpartition: int, data_type: int) -> None:
        if data_type != PRIORITY_EVENT:
            await self._partition.writer.wait_available()
        self._writer.emit_event(event, subpartition, data_type)

    async def _flush(self) -> None:
        self._writer.flush_all()


class SyncGate:
    """Reads a gate from a thread without asyncio.

    Args:
        client: The client that opened the gate.
        gate: The open gate.
    """

    def __init__(self, client: SyncShuffleClient, gate: ClientGate) -> None:
        self._client = client
        self._gate = gate

    def records(self, serializer: ValueSerializer[T]) -> Iterator[T]:
        """Read all records to the end; events are skipped.

        Raises:
            DeadlineExceeded: No record or event came for ``timeout_seconds``.
            SluiceError: As :meth:`ClientGate.records`.
        """
        for batch in self.batches(serializer):
            if isinstance(batch, ChannelRecords):
                yield from batch.values

    def batches(self, serializer: ValueSerializer[T]) -> Iterator[ChannelRecords[T] | ChannelEvent]:
        """Read records, a buffer's at a time, and events to the end.

        Raises:
            InvalidRequest: The values borrow the reader's memory, which they would outlive.
            SluiceError: As :meth:`records`.
        """
        if serializer.borrows:
            raise InvalidRequest(
                "Values that borrow the reader's memory cannot change threads",
                value=type(serializer).__name__,
                remedy="Use a serializer that copies, such as BytesSerializer",
            )
        reader = self._gate.reader(serializer)
        while True:
            batch = self._client.call(reader.read_batch(), "read")
            if batch is None:
                return
            yield batch

    def resume_consumption(self, channel_index: int) -> None:
        """Resume a channel after a blocking event; see :meth:`InputGate.resume_consumption`."""

        async def resume() -> None:
            self._gate.gate.resume_consumption(channel_index)

        self._client.call(resume(), "resume consumption")

    def send_task_event(self, event_type: int, payload: bytes = b"") -> None:
        """Send an event to the producers; see :meth:`InputGate.send_task_event`."""

        async def send() -> None:
            self._gate.gate.send_task_event(event_type, payload)

        self._client.call(send(), "send a task event")
