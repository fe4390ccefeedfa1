"""An output that a client writes on the producer leg, and all outputs of one connection."""

import abc
import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeAlias

from ....protocol.errors import ChannelInUse, ErrorCode, SluiceError, UnexpectedMessage
from ....protocol.framing import PayloadMemory
from ....protocol.remote_error import error_response
from ....protocol.schema import (
    AddCredit,
    MemberReport,
    OpenPartition,
    OpenPipelinedPartition,
    PartitionAborted,
    ResumePartition,
)
from ....transport.connection import Connection
from ...counters import Counters
from ...errors import LimitExceeded, ShuttingDown
from ...gate.local_input_channel import TaskEventDispatcher
from ...histogram import Histogram
from ...memory import NetworkBufferPool, ScratchMemory
from ...names import MapAttemptKey, shuffle_key
from ..bounds.accounts import QuotaExceeded, Resource
from ..bounds.progress import Mark, ProgressWatch
from ..config.network_memory_config import NetworkMemoryConfig
from ..serve.result_partition_manager import ResultPartitionManager
from ..store.region_area import RegionAreas
from ..store.shuffle_store import ShuffleStore
from ..store.stored_outputs import MapOutput
from .attached_area import AttachedArea
from .output_states import DataMessage, MessageType, OutputMessage
from .resumable_outputs import ResumableOutputs
from .wait_times import Waiter, Waiting

if TYPE_CHECKING:
    from ..tracing.traced_span import TracedSpan
    from ..tracing.tracing import Tracing

MAX_FAILED_OUTPUTS: Final = 1024
"""Numbers of failed outputs that a connection remembers, to tell late messages from wrong ones."""

OpeningMessage: TypeAlias = OpenPartition | ResumePartition | OpenPipelinedPartition


def _ignore(_: MemberReport) -> None:
    """Do nothing."""


def _nothing() -> None:
    """Do nothing: no service waits for an idle connection."""


def _no_copies(output: MapOutput) -> "asyncio.Future[None] | None":
    """Wait for nothing: no copies are made."""
    return None


@dataclass(slots=True)
class ProducerServices:
    """The parts of a TaskManager that its producer legs use."""

    store: ShuffleStore
    partitions: ResultPartitionManager
    network_pool: NetworkBufferPool
    task_events: TaskEventDispatcher
    resumable: ResumableOutputs
    region_areas: RegionAreas
    counters: Counters
    config: NetworkMemoryConfig
    verify_checksums: bool
    draining: bool = False
    on_idle: Callable[[], None] = _nothing
    """Called when a connection has no output left to write."""
    copies_of: Callable[[MapOutput], "asyncio.Future[None] | None"] = _no_copies
    """Called with a committed map output. Returns a shared future that ends when its producer need
    no longer wait for copies; None: it need not wait."""
    map_output_credit_wait: Waiting = field(default_factory=Waiting)
    pipelined_credit_wait: Waiting = field(default_factory=Waiting)
    commits: Histogram = field(default_factory=Histogram)
    """How long producers waited for the commits that succeeded."""
    open_outputs: Waiting = field(default_factory=Waiting)
    """The time for which outputs are open, all together."""
    tracing: "Tracing | None" = None
    """Makes the spans of map outputs; None if traces are off."""
    on_member_report: Callable[[MemberReport], None] = _ignore
    """Called with the report of a TaskManager that watches this one."""

    async def commit(
        self, output: MapOutput, began: float, span: "TracedSpan | None" = None
    ) -> None:
        """Commit a map output, and wait for its copies if they are synchronous.

        Args:
            output: The map output.
            began: The monotonic time at which its producer asked for it.
            span: The map output's span; None if it is not traced.

        Raises:
            SluiceError: It could not be made durable. A copy that cannot be made is not an error.

        Cancellation: safe; the commit and the copies continue.
        """
        if span is None or self.tracing is None:
            await self.partitions.commit(output)
        else:
            await self._commit_traced(output, span, self.tracing)
        copied = self.copies_of(output)
        if copied is not None:
            await asyncio.shield(copied)
        self.commits.record(monotonic() - began)

    async def _commit_traced(
        self, output: MapOutput, span: "TracedSpan", tracing: "Tracing"
    ) -> None:
        attempt = MapAttemptKey(output.key, output.map_attempt_id)
        if output.has_copies and not output.origin:
            tracing.keep_for_copies(attempt, span)
        try:
            with span.child("commit"):
                await self.partitions.commit(output)
        except BaseException:
            tracing.forget(attempt)
            raise


class IncomingOutput:
    """One output while a client writes it; the leg calls a method for each message to it.

    An error that a method raises fails the output and is sent to the client.

    Args:
        outputs: All outputs of the connection.
        message: The message that opens this one.
        messages: The messages that it takes.
        credit_wait: Counts the time that the client waits for credit.
    """

    def __init__(
        self,
        outputs: "OpenOutputs",
        message: OpeningMessage,
        messages: frozenset[MessageType],
        credit_wait: Waiter,
    ) -> None:
        self.number: Final = message.partition
        self.key: Final = shuffle_key(outputs.connection.application_id, message.shuffle_id)
        self.map_attempt_id: Final = message.map_attempt_id
        self.messages: Final = messages
        self.credit_wait: Final = credit_wait
        self._outputs: Final = outputs
        self._connection: Final = outputs.connection
        self._services: Final = outputs.services
        self._counters: Final = outputs.services.counters

    @property
    @abc.abstractmethod
    def available_credit(self) -> int:
        """Credits that the client has left."""

    @property
    def progress(self) -> Mark | None:
        """The mark of a region that was announced and is not complete; None without one."""
        return None

    @abc.abstractmethod
    def payload_buffer(self, message: DataMessage, length: int) -> PayloadMemory:
        """Supply the memory for a payload that arrives."""

    @abc.abstractmethod
    def data_received(self, message: DataMessage, length: int) -> None:
        """Take data; the payload has arrived in the memory supplied for it."""

    @abc.abstractmethod
    def received(self, message: OutputMessage) -> None:
        """Take a message that has no payload."""

    @abc.abstractmethod
    def drop_arriving(self) -> None:
        """Free the memory of a payload that arrives too late, or not whole. Idempotent."""

    def abort(self) -> None:
        """Abort the output for its client, and answer."""
        self.give_up("The producer gave its partition up", None)
        self._outputs.answer_abort(self.number)

    @abc.abstractmethod
    def give_up(self, why: str, value: str | None) -> None:
        """Free the output, which is neither finished nor committed.

        Args:
            why: The reason, for the readers that it may have already.
            value: The value of the error.
        """

    def connection_lost(self, error: SluiceError) -> None:
        """Free the output, or keep the part with which its client can resume it."""
        self.give_up("The producer's connection was lost", str(error))

    def writable(self) -> None:
        """Send messages that had to wait for the connection."""

    def grant(self, credit: int) -> None:
        """Grant the client credit."""
        self.credit_wait.end()
        self._counters.credits_sent += credit
        self._connection.send(AddCredit(self.number, credit))


class OpenOutputs:
    """The outputs that one connection writes, by the numbers that its client gave them.

    Args:
        connection: The connection to the client.
        services: The parts of the TaskManager.
    """

    def __init__(self, connection: Connection, services: ProducerServices) -> None:
        self.connection: Final = connection
        self.services: Final = services
        self.account: Final = services.store.accounts.of(connection.application_id)
        self.attached_area: Final = AttachedArea(connection, services.region_areas)
        self.by_number: Final[dict[int, IncomingOutput]] = {}
        self.closed = False
        """True when the connection is lost."""
        self.resuming: Final[dict[int, ResumePartition]] = {}
        """Map outputs to resume when their commits, which are under way, are done."""
        self.progress: Final = ProgressWatch(
            services.config.region_progress_timeout_seconds, self._regions, self._late
        )
        """The deadline of the regions that are received."""
        self.watched: Final[set[IncomingOutput]] = set()
        """Finished pipelined partitions whose client is told when they are consumed."""
        self._failed: dict[int, None] = {}
        self._scratch: Final = ScratchMemory()

    def find(self, message: DataMessage | OutputMessage) -> IncomingOutput | None:
        """Return the output of a message; None if it has failed and the message is late.

        Raises:
            UnexpectedMessage: No output that takes such messages was opened by that number.
        """
        output = self.by_number.get(message.partition)
        if output is None:
            if message.partition in self._failed:
                return None
        elif type(message) in output.messages:
            return output
        raise UnexpectedMessage(
            f"{type(message).__name__} is for a partition that is not open", value=message.partition
        )

    def contains(self, output: IncomingOutput) -> bool:
        """Return whether an output is open: not finished, failed or aborted."""
        return self.by_number.get(output.number) is output

    def may_open(self, number: int, *, stored: bool, begun: bool = False) -> bool:
        """Return whether an output may be opened; if not, its number has failed.

        Args:
            number: Its number.
            stored: Whether it is a map output.
            begun: Whether it has secured regions here.

        Raises:
            ChannelInUse: An output with that number is open.
        """
        if not self._may_have(number):
            return False
        if self.services.draining and not begun:
            self.fail(
                number,
                ShuttingDown("TaskManager is draining", remedy="Write to another TaskManager"),
            )
            return False
        try:
            self.account.require_room(Resource.OPEN_PARTITIONS)
            if stored:
                self.account.require_room(Resource.MAP_OUTPUTS)
        except QuotaExceeded as error:
            self.fail(number, error)
            return False
        return True

    def _may_have(self, number: int) -> bool:
        if number in self.by_number or number in self.resuming:
            raise ChannelInUse("Partition number is in use on this connection", value=number)
        self._failed.pop(number, None)
        most = self.services.config.max_partitions_per_connection
        open_now = len(self.by_number) + len(self.resuming)
        if open_now >= most:
            self.fail(
                number,
                LimitExceeded(
                    "Too many partitions are being written on one connection",
                    value=open_now + 1,
                    limit=most,
                    remedy="Finish some first, or raise max_partitions_per_connection",
                ),
            )
        return open_now < most

    def resume_behind(
        self,
        commit: "asyncio.Future[None]",
        message: ResumePartition,
        resume: Callable[[ResumePartition], None],
    ) -> None:
        """Resume a map output when a commit, or the wait for its copies, has ended.

        Args:
            commit: Ends with the commit.
            message: The message of the client, which may cancel it by an AbortPartition.
            resume: Called with the message.

        Raises:
            ChannelInUse: The number is in use.
        """

        def ended(_: "asyncio.Future[None]") -> None:
            if self.resuming.get(message.partition) is message:
                self.stop_resuming(message.partition)
                resume(message)

        if self._may_have(message.partition):
            self.resuming[message.partition] = message
            commit.add_done_callback(ended)

    def stop_resuming(self, number: int) -> None:
        """Free a number."""
        if self.resuming.pop(number, None) is not None and not self.by_number:
            self.services.on_idle()

    def add(self, output: IncomingOutput) -> None:
        """Register an output that :meth:`may_open` allowed."""
        self.account.hold(Resource.OPEN_PARTITIONS)
        self.services.open_outputs.change(1, monotonic())
        self.by_number[output.number] = output

    def fail(self, number: int, error: SluiceError) -> None:
        """Free the output with a number, if it is open, and send the error to the client."""
        output = self.by_number.get(number)
        if output is not None:
            output.give_up("The producer failed", f"{error.code.name}: {error}")
        if len(self._failed) >= MAX_FAILED_OUTPUTS:
            del self._failed[next(iter(self._failed))]
        self._failed[number] = None
        self.services.counters.errors_by_code.bump(error.code.name)
        self.connection.send(error_response(number, error))

    def remove(self, output: IncomingOutput) -> None:
        """Unregister an output that has ended, and free its number."""
        if self.contains(output):
            del self.by_number[output.number]
            self.services.open_outputs.change(-1, monotonic())
            self.progress.forget(output)
            self.account.give_back(Resource.OPEN_PARTITIONS)
            if not self.by_number:
                self.services.on_idle()

    def _regions(self) -> Iterator[tuple[IncomingOutput, Mark]]:
        """Yield the map outputs that are in a region."""
        for output in self.by_number.values():
            mark = output.progress
            if mark is not None:
                yield output, mark

    def _late(self, output: IncomingOutput) -> None:
        """Reclaim the space of a region that does not come."""
        if not self.contains(output):
            return  # it ended with one before it
        self.services.counters.progress_deadlines.bump("region")
        self.fail(
            output.number,
            SluiceError(
                "A region was announced and its bytes did not come; its space was reclaimed",
                code=ErrorCode.DEADLINE_EXCEEDED,
                value=f"partition {output.number}",
                limit=f"{self.progress.timeout_seconds} s without a byte",
                remedy="Announce a region when its bytes are there, or raise "
                "region_progress_timeout_seconds",
                map_attempt_id=output.map_attempt_id,
            ),
        )

    def close(self) -> None:
        """Stop the deadline of regions: the connection is gone. Idempotent."""
        self.closed = True
        self.resuming.clear()
        self.watched.clear()
        self.progress.close()

    def answer_abort(self, number: int) -> None:
        """Acknowledge an abort: messages for the number are no longer late."""
        self._failed.pop(number, None)
        self.connection.send(PartitionAborted(number))

    def count_late(self, message: DataMessage) -> None:
        """Count data for an output that had failed, or was complete, when it arrived."""
        self.services.counters.late_messages.bump(type(message).__name__)

    def discarded(self, length: int) -> PayloadMemory:
        """Return memory for a payload that is discarded."""
        return self._scratch.take(length)
