"""The producer leg: routes the messages of a client to the outputs that it writes.

One data message takes these steps::

    Connection ─▶ ProducerHandler ─▶ IncomingOutput ─▶ ReceivedRegion or PipelinedCredit
                  finds the output   StoredOutput or   supplies the memory for the payload,
                                     PipelinedOutput   and takes it when it has arrived
"""

from collections.abc import Callable, Iterator
from typing import Final

from ....protocol.errors import SluiceError, UnexpectedMessage
from ....protocol.framing import PayloadMemory
from ....protocol.schema import (
    ROLE_COPIER,
    AbortPartition,
    AttachRegionArea,
    BeginRegion,
    CloseRequest,
    CopyChecksum,
    CopyOf,
    FinishPartition,
    MemberReport,
    Message,
    OpenPartition,
    OpenPipelinedPartition,
    PartitionResumed,
    PipelinedData,
    RegionData,
    ReplicatePartition,
    ReplicateToRemote,
    ResumePartition,
    SecureRegion,
    SharedRegion,
    TraceContext,
    WatchConsumption,
)
from ....transport.connection import Connection
from ...names import MapAttemptKey, ShuffleKey
from ..bounds.segment_pressure import Unmoved
from .incoming_output import IncomingOutput, OpenOutputs, ProducerServices
from .output_states import DataMessage, OutputMessage, StoredState
from .pipelined_output import PipelinedOutput
from .stored_output import StoredOutput


class ProducerHandler:
    """Serves the client that writes outputs on one connection.

    Args:
        connection: The connection to the client.
        services: The parts of the TaskManager.
        on_lost: Called when the connection is gone.
    """

    def __init__(
        self, connection: Connection, services: ProducerServices, on_lost: Callable[[], None]
    ) -> None:
        self._connection: Final = connection
        self._services: Final = services
        self._on_lost = on_lost
        self._outputs: Final = OpenOutputs(connection, services)
        self._arriving: IncomingOutput | None = None
        """Owns the memory in which a payload arrives; it may have failed meanwhile."""

    @property
    def stored_outputs(self) -> list[StoredOutput]:
        """The map outputs that are being received, for status."""
        return [
            each
            for each in self._outputs.by_number.values()
            if isinstance(each, StoredOutput) and each.state is not StoredState.COMMITTING
        ]

    @property
    def remote(self) -> str:
        """The client, for status."""
        return self._connection.label

    @property
    def outputs(self) -> list[IncomingOutput]:
        """The outputs that the client writes, those that are committed included."""
        return list(self._outputs.by_number.values())

    @property
    def pipelined_outputs(self) -> list[PipelinedOutput]:
        """The pipelined partitions that are being received, for status."""
        return [
            each for each in self._outputs.by_number.values() if isinstance(each, PipelinedOutput)
        ]

    @property
    def stored_credit(self) -> int:
        """Credits that the map outputs have left, for status."""
        return sum(
            each.available_credit
            for each in self._outputs.by_number.values()
            if isinstance(each, StoredOutput)
        )

    @property
    def is_busy(self) -> bool:
        """True while the client writes any output, or waits for one that is committed."""
        return bool(self._outputs.by_number or self._outputs.resuming)

    @property
    def holds_anything(self) -> bool:
        """Whether an output is open or watched, or an area attached, or a TaskManager watches."""
        if self._connection.role == ROLE_COPIER:
            return True
        outputs = self._outputs
        return self.is_busy or bool(outputs.watched) or outputs.attached_area.is_attached

    @property
    def held_kind(self) -> str:
        """Pipelined partitions: stored ones have the deadline of their regions."""
        return "partition"

    def unmoved(self) -> Iterator[Unmoved]:
        """Yield the pipelined partitions that wait for their client, or for readers to come."""
        for output in self.pipelined_outputs:
            mark = output.unmoved
            if mark is not None:
                yield Unmoved(output.number, self._outputs.account, mark)

    def take_back(self, number: int, error: SluiceError) -> bool:
        """Fail a pipelined partition; False if it is gone already."""
        if number not in self._outputs.by_number:
            return False
        self._outputs.fail(number, error)
        return True

    # ---- sluice.transport.connection.ConnectionHandler ------------------------------------------

    def payload_buffer(self, message: Message, length: int) -> PayloadMemory:
        """Return the memory for a payload; a late one is discarded."""
        if type(message) is not RegionData and type(message) is not PipelinedData:
            raise UnexpectedMessage("Payload on a producer leg", value=type(message).__name__)
        output = self._outputs.find(message)
        if output is not None:
            try:
                place = output.payload_buffer(message, length)
            except SluiceError as error:
                self._outputs.fail(message.partition, error)
            else:
                self._arriving = output
                return place
        return self._outputs.discarded(length)

    def message_received(self, message: Message, payload_length: int) -> None:
        """Hand a message to the output that it is for."""
        if type(message) is RegionData or type(message) is PipelinedData:
            self._data_received(message, payload_length)
        elif (
            type(message) is BeginRegion
            or type(message) is SharedRegion
            or type(message) is SecureRegion
            or type(message) is ReplicatePartition
            or type(message) is ReplicateToRemote
            or type(message) is CopyChecksum
            or type(message) is CopyOf
            or type(message) is WatchConsumption
            or type(message) is FinishPartition
        ):
            self._to_output(message)
        elif type(message) is OpenPartition:
            if not self._connection.application_id:
                raise UnexpectedMessage(
                    "A TaskManager that only watches cannot write", value="OpenPartition"
                )
            # A copy counts when it is known to be new, so that one that is here can be confirmed.
            is_new = self._connection.role != ROLE_COPIER
            if self._outputs.may_open(message.partition, stored=is_new):
                StoredOutput(self._outputs, message).open()
        elif type(message) is OpenPipelinedPartition:
            if self._outputs.may_open(message.partition, stored=False):
                self._open_pipelined(message)
        elif type(message) is ResumePartition:
            self._resume(message)
        elif type(message) is AbortPartition:
            output = self._outputs.by_number.get(message.partition)
            if output is None:
                self._outputs.stop_resuming(message.partition)
                self._outputs.answer_abort(message.partition)
            else:
                output.abort()
        elif type(message) is AttachRegionArea:
            self._outputs.attached_area.attach(message)
        elif type(message) is TraceContext:
            self._trace(message)
        elif type(message) is MemberReport:
            self._reported(message)
        elif type(message) is CloseRequest:
            self._connection.close()

    def writable(self) -> None:
        """Let the outputs send waiting messages; answers are small and never wait."""
        for output in self._outputs.by_number.values():
            output.writable()

    def connection_lost(self, error: SluiceError) -> None:
        """Free every output that is not committed or finished and cannot be resumed."""
        self._outputs.close()
        for output in list(self._outputs.by_number.values()):
            output.connection_lost(error)
        if self._arriving is not None:
            self._arriving.drop_arriving()
            self._arriving = None
        self._outputs.attached_area.detach()
        self._on_lost()

    # ---- inner workings --------------------------------------------------------------------------

    def _data_received(self, message: DataMessage, length: int) -> None:
        output = self._outputs.find(message)
        arriving, self._arriving = self._arriving, None
        if output is None or (length and arriving is not output):
            # The output failed while the payload was on its way, or another has its number now.
            if arriving is not None:
                arriving.drop_arriving()
            self._outputs.count_late(message)
            return
        try:
            output.data_received(message, length)
        except SluiceError as error:
            output.drop_arriving()
            self._outputs.fail(message.partition, error)
        except BaseException:  # a bug, which costs the connection
            output.drop_arriving()
            raise

    def _to_output(self, message: OutputMessage) -> None:
        output = self._outputs.find(message)
        if output is not None:
            try:
                output.received(message)
            except SluiceError as error:
                self._outputs.fail(message.partition, error)

    def _trace(self, message: TraceContext) -> None:
        """Trace the output with this number; ignore a context that is late or early."""
        output = self._outputs.by_number.get(message.number)
        tracing = self._services.tracing
        if tracing is None:
            return
        if isinstance(output, PipelinedOutput):
            output.trace(tracing, message)
        elif isinstance(output, StoredOutput) and output.span is None:
            is_copy = self._connection.role == ROLE_COPIER
            output.span = tracing.map_output(message, output.attempt, is_copy=is_copy)

    def _reported(self, message: MemberReport) -> None:
        """Record the report of a TaskManager that watches this one.

        Raises:
            UnexpectedMessage: It is sent by a TaskManager that writes copies.
        """
        if self._connection.application_id:
            raise UnexpectedMessage(
                "A TaskManager that writes copies cannot report members", value="MemberReport"
            )
        self._services.on_member_report(message)

    def _open_pipelined(self, message: OpenPipelinedPartition) -> None:
        try:
            output = PipelinedOutput(self._outputs, message)
        except SluiceError as error:
            self._outputs.fail(message.partition, error)
            return
        output.open()

    def _resume(self, message: ResumePartition) -> None:
        """Open a map output after its secured regions, or answer that it is committed.

        The answer follows the one to a FinishPartition of an earlier connection.
        """
        store = self._services.store
        attempt = MapAttemptKey(
            ShuffleKey(self._connection.application_id, message.shuffle_id), message.map_attempt_id
        )
        pending = store.pending(attempt)
        committed = store.lookup(*attempt)
        if pending is None and committed is not None:
            pending = self._services.copies_of(committed)
        if pending is not None:
            self._outputs.resume_behind(pending, message, self._resume)
            return
        if committed is not None:
            regions, total_bytes = len(committed.regions), committed.total_bytes
            self._connection.send(PartitionResumed(message.partition, regions, total_bytes, True))
            return
        begun = store.open_output(attempt) is not None
        if self._outputs.may_open(message.partition, stored=True, begun=begun):
            try:
                StoredOutput(self._outputs, message).resume()
            except SluiceError as error:
                self._outputs.fail(message.partition, error)
