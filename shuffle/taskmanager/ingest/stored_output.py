"""A map output that is received region by region, secured, and committed to the store."""

from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

from ....protocol.errors import SluiceError, UnexpectedMessage
from ....protocol.framing import PayloadMemory
from ....protocol.schema import (
    BeginRegion,
    CopyChecksum,
    CopyOf,
    FinishPartition,
    OpenPartition,
    PartitionFinished,
    PartitionOpened,
    PartitionResumed,
    RegionData,
    RegionOpened,
    RegionSecured,
    ReplicatePartition,
    ReplicateToRemote,
    ResumePartition,
    SecureRegion,
    SharedRegion,
)
from ....transport.loop import start_task
from ...errors import MapOutputMismatch, PartitionReleased, failure_of
from ...names import MapAttemptKey
from ..bounds.accounts import Resource
from ..bounds.progress import OURS, Mark
from ..store.errors import DuplicateMapOutput
from ..store.stored_outputs import MapOutput, Region
from .incoming_output import IncomingOutput, OpenOutputs
from .incoming_region import IncomingRegion, ReceivedRegion, ReceiveSettings
from .output_states import (
    STORED,
    STORED_END,
    DataMessage,
    OutputMessage,
    StoredState,
    after_stored,
    not_allowed,
)
from .region_opener import RegionOpener, check_secured, check_totals
from .resumable_outputs import Resumption
from .wait_times import Waiter

if TYPE_CHECKING:
    import asyncio

    from ...memory import LocalBufferPool
    from ..tracing.traced_span import TracedSpan

_MESSAGES: Final = frozenset(STORED)


class StoredOutput(IncomingOutput):
    """The output of one map attempt while it is received.

    Args:
        outputs: All outputs of the connection.
        message: The message that opens this one; :meth:`open` or :meth:`resume` is next.
    """

    def __init__(self, outputs: OpenOutputs, message: OpenPartition | ResumePartition) -> None:
        super().__init__(
            outputs, message, _MESSAGES, Waiter(outputs.services.map_output_credit_wait)
        )
        connection, services = outputs.connection, outputs.services
        self.attempt: Final = MapAttemptKey(self.key, message.map_attempt_id)
        self.num_subpartitions: Final = message.num_subpartitions
        self.state = StoredState.OPEN
        self.regions = 0
        """Regions so far, including the one that is being received."""
        self.total_bytes = 0
        """Bytes of the complete regions."""
        settings = ReceiveSettings(
            services.verify_checksums,
            connection.max_payload_bytes,
            connection.large_payload_bytes,
            id(connection),
        )
        self._opener: Final = RegionOpener(services, self.attempt, self.num_subpartitions, settings)
        self._credit = 0
        self._region: ReceivedRegion | None = None
        """The region that is being received: in IN_REGION, ARRIVING and STRANDED."""
        self._written: list[IncomingRegion] = []
        """The regions that are neither secured nor committed."""
        self._resumption: Resumption | None = None
        """Lets another connection take over the secured regions; None without such regions."""
        self._storing: asyncio.Task[None] | None = None
        """Secures the regions, or commits the map output."""
        self._origin, self._replicas, self._synchronous = "", 1, False
        self._to_remote = False
        self._checksum: int | None = None
        """The checksum of the map output that is copied, if its sender tells it."""
        self.span: TracedSpan | None = None
        """The span of the map output; None if it is not traced."""

    @property
    def available_credit(self) -> int:
        """Credits that the producer has left."""
        return self._credit

    @property
    def written(self) -> tuple[IncomingRegion, ...]:
        """The regions that are neither secured nor committed, for status."""
        return tuple(self._written)

    @property
    def region(self) -> ReceivedRegion | None:
        """The region that is being received, for status."""
        return self._region

    @property
    def is_storing(self) -> bool:
        """Whether its regions are being secured or committed, for status."""
        return self._storing is not None

    @property
    def pool(self) -> "LocalBufferPool":
        """The segments for writes to the disk tier, for status."""
        return self._opener.pool

    @property
    def progress(self) -> Mark | None:
        """Changes when the region makes progress; a payload that arrives has its own deadline."""
        region = self._region
        if region is None:
            return None
        if self._credit <= 0 or self.state is StoredState.ARRIVING:
            return OURS
        return self.regions, region.received_bytes, self._credit

    def open(self) -> None:
        """Acknowledge the map output, which begins with its first region."""
        self._outputs.add(self)
        self._connection.send(PartitionOpened(self.number))

    def resume(self) -> None:
        """Continue after the secured regions; a connection that still writes loses them.

        Raises:
            NotPermitted: Another process has begun the map output.
        """
        resumption = self._resumption = self._attach()
        self.regions, self.total_bytes = resumption.regions, resumption.total_bytes
        self._outputs.add(self)
        self._connection.send(
            PartitionResumed(self.number, self.regions, self.total_bytes, committed=False)
        )

    # ---- messages --------------------------------------------------------------------------------

    def payload_buffer(self, message: DataMessage, length: int) -> PayloadMemory:
        """Supply the memory for the next bytes of the region.

        Raises:
            MapOutputMismatch: No region is open, or they are not its next bytes.
            CreditExceeded: No credit was granted for them.
        """
        region = self._region
        if region is None or type(message) is not RegionData:
            if self.state is StoredState.COMMITTING:
                return self._outputs.discarded(length)
            raise not_allowed(self.state, type(message), self.map_attempt_id)
        place = region.payload_buffer(message.offset, length)
        self.state = StoredState.ARRIVING
        return place

    def data_received(self, message: DataMessage, length: int) -> None:
        """Take the bytes that have arrived.

        Raises:
            MapOutputMismatch: No region is open, or no byte came.
            ChecksumMismatch: The region is complete and its checksum is wrong.
        """
        region = self._region
        if region is None:
            if self.state is StoredState.COMMITTING:
                self._outputs.count_late(message)
                return
            raise not_allowed(self.state, type(message), self.map_attempt_id)
        if length == 0:
            raise MapOutputMismatch(
                "RegionData without data", value=0, limit=1, map_attempt_id=self.map_attempt_id
            )
        counters = self._counters
        counters.producer_bytes_in += length
        counters.producer_buffers_in += 1
        self._credit -= 1
        self.state = StoredState.IN_REGION
        if region.received(length):
            self._region_complete(region)
        if self._credit == 0:
            self._note_wait()

    def received(self, message: OutputMessage) -> None:
        """Take a message of the producer; one that comes during the commit is late.

        Raises:
            MapOutputMismatch: Not allowed in this state, or the numbers of the message are wrong.
            DuplicateMapOutput: Another connection has secured regions of the map output, or it is
                a copy that is here.
            OtherMapOutput: It is a copy, and a map output of its name has other bytes.
            QuotaExceeded: It is a copy, and the application has as many map outputs as it may.
            UnexpectedMessage: A second FinishPartition.
            SluiceError: A region cannot be received.
        """
        if self.state is StoredState.COMMITTING:
            return
        if self.state is StoredState.FINISHING and type(message) is FinishPartition:
            raise UnexpectedMessage("FinishPartition came twice", value=2, limit=1)
        self.state = after_stored(self.state, type(message), self.map_attempt_id)
        if type(message) is BeginRegion:
            self._begin_region(message)
        elif type(message) is SharedRegion:
            self._copy_region(message)
        elif type(message) is SecureRegion:
            check_secured(message, self.regions, self.map_attempt_id)
            resumption = self._resumption
            if resumption is None:
                if self._services.store.open_output(self.attempt) is not None:
                    raise DuplicateMapOutput(*self.key, self.map_attempt_id)
                resumption = self._resumption = self._attach()
            self._storing = start_task(self._store(partial(self._secure, message, resumption)))
        elif type(message) is FinishPartition:
            check_totals(message, self.total_bytes, self.regions, self.map_attempt_id)
            self._storing = start_task(self._store(partial(self._commit, monotonic())))
        elif type(message) is ReplicatePartition:
            self._replicas = message.replicas
            self._synchronous |= message.synchronous
        elif type(message) is ReplicateToRemote:
            self._to_remote = True
            self._synchronous |= message.synchronous
        elif type(message) is CopyChecksum:
            self._checksum = message.crc32c
        elif type(message) is CopyOf:
            partitions = self._services.partitions
            partitions.require_unreleased(*self.attempt)
            partitions.require_new_copy(self.attempt, message.origin, self._checksum)
            self._outputs.account.require_room(Resource.MAP_OUTPUTS)
            self._origin, self._replicas = message.origin, message.replicas

    def grant(self, credit: int) -> None:
        """Grant the producer credit."""
        self._credit += credit
        super().grant(credit)

    # ---- regions ---------------------------------------------------------------------------------

    def _begin_region(self, message: BeginRegion) -> None:
        """Begin a region, and grant its first credit."""
        failed = partial(self._outputs.fail, self.number)
        region = self._opener.receive(message, self.regions, self.grant, failed)
        self._add(region)
        if region.length == 0:
            self._region_complete(region)
        else:
            self._region = region
            if not self._connection.other_segment_size_bytes:
                opened = RegionOpened(self.number, message.region, region.payload_bytes)
                self._connection.send(opened)
            region.begin()
        self._note_wait()
        self._outputs.progress.watch()

    def _copy_region(self, message: SharedRegion) -> None:
        """Copy a region out of the region area."""
        region = self._opener.copy(message, self.regions, self._outputs.attached_area.area)
        self._add(region)
        self.total_bytes += region.length
        self._counters.producer_bytes_in += region.length
        self._counters.region_area_bytes_in += region.length

    def _add(self, region: IncomingRegion) -> None:
        self._written.append(region)
        self.regions += 1
        self._counters.regions_written += 1

    def _region_complete(self, region: ReceivedRegion) -> None:
        self._region = None
        self.state = StoredState.OPEN
        region.verify()
        self.total_bytes += region.length

    def _note_wait(self) -> None:
        """Begin to count the producer's wait if it has more to send and no credit."""
        if self._region is None:
            self._credit = 0  # credit that is left of a complete region is void
        elif self._credit == 0:
            self.credit_wait.begin()

    # ---- securing and committing -----------------------------------------------------------------

    async def _store(self, work: Callable[[], Awaitable[None]]) -> None:
        """Secure the regions or commit the map output; :meth:`_end` cancels it."""
        try:
            await work()
        except Exception as error:  # noqa: BLE001
            self._storing = None
            self._outputs.fail(self.number, failure_of(error, "storing a map output"))

    async def _secure(self, message: SecureRegion, resumption: Resumption) -> None:
        await resumption.secure(self.num_subpartitions, await self._flushed())
        self.state = StoredState.OPEN
        self._connection.send(RegionSecured(self.number, message.region))

    async def _commit(self, began: float) -> None:
        regions = await self._flushed()
        if self._resumption is not None:
            regions = self._resumption.take(regions)
        output = MapOutput(
            self.key,
            self.map_attempt_id,
            self.num_subpartitions,
            tuple(regions),
            self._origin,
            self._replicas,
            is_synchronous=self._synchronous,
            to_remote=self._to_remote,
        )
        self.state = StoredState.COMMITTING
        await self._services.commit(output, began, self.span)
        self._storing = None
        self._counters.map_outputs_committed += 1
        self._end_span(output, None)
        self._end(drop=False)
        self._connection.send(PartitionFinished(self.number))

    async def _flushed(self) -> list[Region]:
        """Wait until all regions are written, and take them."""
        for each in self._written:
            await each.flush()
        return [each.finish() for each in self._take_written()]

    # ---- the end ---------------------------------------------------------------------------------

    def abort(self) -> None:
        """Abort the map output, and answer; during the commit, answer after it."""
        if self.state is StoredState.COMMITTING and self._storing is not None:
            self._storing.add_done_callback(self._answer_abort)
        else:
            super().abort()

    def _answer_abort(self, commit: "asyncio.Task[None]") -> None:
        if not commit.cancelled():  # otherwise the connection is lost
            self._outputs.answer_abort(self.number)

    def give_up(self, why: str, value: str | None) -> None:
        """Free the map output and its secured regions; it has no readers yet."""
        self._end_span(None, why if value is None else f"{why}: {value}")
        self._end(drop=True)

    def connection_lost(self, error: SluiceError) -> None:
        """Free the map output, but keep its secured regions until the producer comes back."""
        if self._resumption is not None and self.state is not StoredState.COMMITTING:
            self._resumption.park()
            self._resumption = None
        self._end_span(None, error)
        self._end(drop=False)  # a commit continues

    def drop_arriving(self) -> None:
        """Free the memory of a payload that arrives after the end. Idempotent."""
        if self.state is StoredState.STRANDED and self._region is not None:
            self.state = StoredState.ABORTED
            self._region.abort()
            self._region = None

    def _end_span(self, output: MapOutput | None, error: SluiceError | str | None) -> None:
        """End the span of the map output; ``output`` is None if it is not committed."""
        if self.span is None:
            return
        extents = [] if output is None else [region.extent for region in output.regions]
        self.span.end(
            {
                "sluice.bytes": self.total_bytes,
                "sluice.regions": self.regions,
                "sluice.tiers": sorted({str(each.tier.place) for each in extents if each}),
                "sluice.credit_wait_seconds": self.credit_wait.seconds,
            },
            error,
        )

    def _end(self, *, drop: bool) -> None:
        """Free everything that does not belong to the store.

        Args:
            drop: Whether secured regions are released.
        """
        self._outputs.remove(self)
        self.credit_wait.end()
        if self._storing is not None:
            self._storing.cancel()
        if self._resumption is not None:
            self._resumption.forget(drop=drop)
        self.state = STORED_END[self.state]
        if self.state is not StoredState.STRANDED:
            self._region = None
        elif self._region is not None:
            self._region.stop()
        for each in self._take_written():
            if each is not self._region:
                each.abort()
        if self.state is not StoredState.COMMITTING:
            self._counters.map_outputs_aborted += 1
        self._opener.close()

    def _attach(self) -> Resumption:
        claim = self._connection.claim
        process = "" if claim is None else claim.process
        return self._services.resumable.attach(self.attempt, process, self._taken_over)

    def _taken_over(self) -> None:
        """Fail here: the producer continues on another connection."""
        self._resumption = None
        error = PartitionReleased("Map output was resumed on another connection")
        self._outputs.fail(self.number, error)

    def _take_written(self) -> list[IncomingRegion]:
        written, self._written = self._written, []
        return written
