"""A map output that is received region by region, secured, and committed to the store."""

import asyncio
from functools import partial
from typing import Final

from ....protocol.errors import SluiceError, UnexpectedMessage
from ....protocol.framing import PayloadMemory
from ....protocol.schema import (
    BeginRegion,
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
    ResumePartition,
    SecureRegion,
    SharedRegion,
)
from ....transport.loop import start_task
from ...errors import MapOutputMismatch, PartitionReleased, failure_of
from ...names import MapAttemptKey
from ..bounds.progress import OURS, Mark
from ..store.errors import DuplicateMapOutput, ReleasedDuringCommit
from ..store.stored_outputs import MapOutput, release_regions
from .incoming_output import IncomingOutput, OpenOutputs
from .incoming_region import IncomingRegion, ReceivedRegion, ReceiveSettings, release_unsecured
from .output_states import (
    STORED,
    DataMessage,
    MessageType,
    OutputMessage,
    StoredState,
    after_stored,
    not_allowed,
)
from .region_opener import RegionAnnouncement, RegionOpener, check_secured, check_totals
from .wait_times import Waiter

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
        self.total_bytes = 0
        """Bytes of the complete regions."""
        self._store: Final = services.store
        settings = ReceiveSettings(
            services.verify_checksums,
            connection.max_payload_bytes,
            connection.large_payload_bytes,
            id(connection),
        )
        self._opener: Final = RegionOpener(services, self.attempt, self.num_subpartitions, settings)
        self._credit = 0
        self._failure: SluiceError | None = None
        self._receiving = False
        """True while a payload arrives in memory of a region: it must stay that region's."""
        self._stranded: ReceivedRegion | None = None
        """The region of a failed map output in whose memory a payload still arrives."""
        self._region: ReceivedRegion | None = None
        """The region that is being received."""
        self._written: list[IncomingRegion] = []
        self._secured = 0
        self._origin, self._replicas, self._synchronous = "", 1, False
        self._resumable = False
        """Whether another connection can take the map output over."""
        self._securing: asyncio.Task[None] | None = None
        self._commit: asyncio.Task[None] | None = None
        self._aborts = 0
        """AbortPartition messages that came when the commit could not be called back."""

    @property
    def regions(self) -> int:
        """Regions so far, the one that is being received included."""
        return self._secured + len(self._written)

    @property
    def is_committing(self) -> bool:
        """True when the regions belong to the store, and only the commit is not answered yet."""
        return self.state is StoredState.COMMITTING

    @property
    def available_credit(self) -> int:
        """Credits that the producer has left."""
        return self._credit

    @property
    def progress(self) -> Mark | None:
        """Changes when the region under way moves; a frame that has begun has its own deadline."""
        region = self._region
        if region is None:
            return None
        if self._credit <= 0 or self._receiving:
            return OURS
        return self.regions, region.received_bytes, self._credit

    def open(self) -> None:
        """Acknowledge the map output, which begins with its first region."""
        self._outputs.add(self)
        self._connection.send(PartitionOpened(self.number))

    def resume(self) -> None:
        """Go on behind the secured regions; a connection that still writes loses them."""
        self._make_resumable()
        secured = self._store.open_output(self.attempt)
        if secured is not None:
            self._secured = len(secured.regions)
            self.total_bytes = secured.total_bytes
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
            SluiceError: An earlier part of the map output could not be written.
        """
        if self._failure is not None:
            raise self._failure
        region = self._region
        if region is None or type(message) is not RegionData:
            if self.state is StoredState.COMMITTING:
                return self._outputs.discarded()
            raise not_allowed(self.state, type(message), self.map_attempt_id)
        place = region.payload_buffer(message.offset, length)
        self._receiving = True
        return place

    def data_received(self, message: DataMessage, length: int) -> None:
        """Take the bytes that have arrived.

        Raises:
            MapOutputMismatch: No region is open, or no byte came.
            ChecksumMismatch: The region is complete and its checksum is wrong.
            SluiceError: An earlier part of the map output could not be written.
        """
        region = self._region
        if region is None and self.state is StoredState.COMMITTING:
            self._outputs.count_late(message)
            return
        self._receiving = False
        counters = self._counters
        counters.producer_bytes_in += length
        counters.producer_buffers_in += 1
        self._credit -= 1
        if self._failure is not None:
            raise self._failure
        if region is None:
            raise not_allowed(self.state, type(message), self.map_attempt_id)
        if length == 0:
            raise MapOutputMismatch(
                "RegionData without data", value=0, limit=1, map_attempt_id=self.map_attempt_id
            )
        if region.received(length):
            self._region = None
            self.state = StoredState.OPEN
            self._region_complete(region)
        if self._credit == 0:
            self._note_wait()

    def received(self, message: OutputMessage) -> None:
        """Take a message of the producer; one that comes during the commit is late.

        Raises:
            MapOutputMismatch: Not allowed in this state, or the numbers of the message are wrong.
            DuplicateMapOutput: Another connection has secured regions of the map output.
            UnexpectedMessage: A second FinishPartition.
            SluiceError: A region cannot be received.
        """
        if self.state is StoredState.COMMITTING:
            return
        if type(message) is BeginRegion or type(message) is SharedRegion:
            self._begin_region(message)
        elif type(message) is SecureRegion:
            if not self._resumable:
                if self._store.open_output(self.attempt) is not None:
                    raise DuplicateMapOutput(*self.key, self.map_attempt_id)
                self._make_resumable()
            self._securing = start_task(self._answer_secured(message))
        elif type(message) is ReplicatePartition:
            self.state = self._after(ReplicatePartition)
            self._replicas, self._synchronous = message.replicas, message.synchronous
        elif type(message) is CopyOf:
            self.state = self._after(CopyOf)
            self._services.partitions.require_unreleased(*self.attempt)
            if self._store.lookup(*self.attempt) is not None:  # before its bytes are sent
                raise DuplicateMapOutput(*self.key, self.map_attempt_id)
            self._origin, self._replicas = message.origin, message.replicas
        elif type(message) is FinishPartition:
            if self._commit is not None:
                raise UnexpectedMessage("FinishPartition came twice", value=2, limit=1)
            self._commit = start_task(self._answer_commit(message))

    def grant(self, credit: int) -> None:
        """Grant the producer credit."""
        self._credit += credit
        super().grant(credit)

    def _begin_region(self, message: RegionAnnouncement) -> None:
        """Begin a region and grant its first credit, or copy it out of the region area."""
        self._opener.check_limit(message)
        if type(message) is SharedRegion:
            area = self._outputs.attached_area.area
            self.state = self._after(SharedRegion)
            copied = self._opener.copy(message, self.regions, area)
            self._written.append(copied)
            self.total_bytes += copied.length
            self._counters.producer_bytes_in += copied.length
            self._counters.region_area_bytes_in += copied.length
        elif type(message) is BeginRegion:
            after = self._after(BeginRegion)
            region = self._opener.receive(message, self.regions, self.grant, self._write_failed)
            self._written.append(region)
            if region.length == 0:
                self._region_complete(region)
            else:
                self._region = region
                self.state = after
                if not self._connection.other_segment_size_bytes:
                    opened = RegionOpened(self.number, message.region, region.payload_bytes)
                    self._connection.send(opened)
                region.begin()
            self._note_wait()
            self._outputs.progress.watch()
        self._counters.regions_written += 1

    async def _answer_secured(self, message: SecureRegion) -> None:
        failure: SluiceError | None = None
        try:
            await self.secure(message)
        except Exception as error:  # noqa: BLE001
            failure = failure_of(error, "securing a map output")
        if not self._outputs.contains(self):
            return
        if failure is not None:
            self._outputs.fail(self.number, failure)
        else:
            self._connection.send(RegionSecured(self.number, message.region))

    async def _answer_commit(self, message: FinishPartition) -> None:
        """Commit the map output, and acknowledge it once it outlives this process."""
        try:
            output = await self.complete(message)
            self.state = StoredState.COMMITTING
            await self._services.commit(output)
        except Exception as error:  # noqa: BLE001
            failure = failure_of(error, "committing a map output")
            if self._outputs.contains(self):
                self._commit = None
                self._outputs.fail(self.number, failure)
                self._answer_aborts()
            return
        self._commit = None
        self._counters.map_outputs_committed += 1
        self._end(drop=False)
        self._connection.send(PartitionFinished(self.number))
        self._answer_aborts()

    def _answer_aborts(self) -> None:
        for _ in range(self._aborts):
            self._outputs.answer_abort(self.number)

    # ---- securing and finishing ------------------------------------------------------------------

    async def secure(self, message: SecureRegion) -> None:
        """Let all regions so far outlive the process.

        Raises:
            MapOutputMismatch: Another region is the last one, or it is not complete.
            SluiceError: A region could not be written, or not be secured.

        Cancellation: safe; regions that were secured by then stay in the store.
        """
        after = self._after(SecureRegion)
        check_secured(message, self.regions, self.map_attempt_id)
        self.state = after
        for each in self._written:
            await each.flush()
        if self.state is not StoredState.SECURING:
            return
        regions = [each.finish() for each in self._take_written()]
        self._secured += len(regions)
        try:
            secured = self._store.secure(self.attempt, self.num_subpartitions, regions)
        except SluiceError:
            release_regions(regions)
            raise
        secured.add_done_callback(partial(release_unsecured, regions))
        await asyncio.shield(secured)
        if self.state is StoredState.SECURING:
            self.state = StoredState.OPEN

    async def complete(self, message: FinishPartition) -> MapOutput:
        """Wait until all regions are written, and put the map output together.

        Returns:
            The map output, to be committed. It owns the regions' extents.

        Raises:
            MapOutputMismatch: The totals differ, or a region is incomplete.
            SluiceError: A region could not be written.

        Cancellation: safe; abort afterwards.
        """
        after = self._after(FinishPartition)
        check_totals(message, self.total_bytes, self.regions, self.map_attempt_id)
        self.state = after
        for each in self._written:
            await each.flush()
        if self.state is not StoredState.FINISHING:
            raise MapOutputMismatch(
                "Map output was aborted while it was finished", map_attempt_id=self.map_attempt_id
            )
        written = [each.finish() for each in self._take_written()]
        if self._secured:
            secured = self._store.open_output(self.attempt)
            if secured is None or len(secured.regions) != self._secured:
                release_regions(written)
                raise ReleasedDuringCommit(*self.key, self.map_attempt_id)
            secured.taken = True
            written = [*secured.regions, *written]
        return MapOutput(
            self.key,
            self.map_attempt_id,
            self.num_subpartitions,
            tuple(written),
            self._origin,
            self._replicas,
            is_synchronous=self._synchronous,
        )

    # ---- the end ---------------------------------------------------------------------------------

    def abort(self) -> None:
        """Give the map output up because its producer says so; not during the commit."""
        if self.state is StoredState.COMMITTING:
            self._aborts += 1
        else:
            super().abort()

    def give_up(self, why: str, value: str | None) -> None:
        """Free the map output and its secured regions; it has no readers yet."""
        self._end(drop=True)

    def connection_lost(self, error: SluiceError) -> None:
        """Free the map output, but keep its secured regions until the producer comes back."""
        if self._resumable:
            self._resumable = False
            if self.state is StoredState.COMMITTING:  # its commit goes on
                self._services.resumable.forget(self.attempt, drop=False)
            else:
                self._services.resumable.park(self.attempt)
        self._end(drop=True)

    def drop_arriving(self) -> None:
        """Give back the memory of a payload that arrives too late, or not whole. Idempotent."""
        self._receiving = False
        stranded, self._stranded = self._stranded, None
        if stranded is not None:
            stranded.abort()

    def _end(self, *, drop: bool) -> None:
        """Give back everything that does not belong to the store.

        Args:
            drop: Whether the map output is given up with its secured regions, not committed.
        """
        self._outputs.remove(self)
        self.credit_wait.end()
        if self._securing is not None:
            self._securing.cancel()
        if self._resumable:
            self._services.resumable.forget(self.attempt, drop=drop)
        if self._commit is not None:
            self._commit.cancel()
        if self.state is not StoredState.COMMITTING:
            self.state = StoredState.ABORTED
            region, self._region = self._region, None
            for each in self._take_written():
                if each is region and self._receiving:
                    region.stop()
                    self._stranded = region  # until the transport writes there no longer
                else:
                    each.abort()
            if drop:
                self._counters.map_outputs_aborted += 1
        self._opener.close()

    def _make_resumable(self) -> None:
        self._services.resumable.attach(self.attempt, self._taken_over)
        self._resumable = True

    def _taken_over(self) -> None:
        """Let go: the producer goes on with the map output on another connection."""
        if self._outputs.contains(self):
            self._resumable = False
            error = PartitionReleased("Map output was resumed on another connection")
            self._outputs.fail(self.number, error)

    # ---- inner workings --------------------------------------------------------------------------

    def _write_failed(self, error: SluiceError) -> None:
        if self._failure is None:
            self._failure = error
            if not self._receiving:  # otherwise the payload that arrives is answered with it
                self._outputs.fail(self.number, error)

    def _region_complete(self, region: ReceivedRegion) -> None:
        region.verify()
        self.total_bytes += region.length

    def _note_wait(self) -> None:
        """Begin to count the producer's wait if it has more to send and no credit."""
        if self.state is not StoredState.IN_REGION:
            self._credit = 0  # credit that is left of a complete region is void
        elif self._credit == 0:
            self.credit_wait.begin()

    def _take_written(self) -> list[IncomingRegion]:
        written, self._written = self._written, []
        return written

    def _after(self, message: MessageType) -> StoredState:
        return after_stored(self.state, message, self.map_attempt_id)
