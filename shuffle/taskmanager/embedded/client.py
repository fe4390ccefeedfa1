"""The client of tasks that run in a TaskManager's own process, on its event loop.

Such a task writes into the TaskManager's segments. A reader on the same TaskManager reads these
segments, without a socket and without a copy; readers elsewhere get them over TCP, as from any
TaskManager.
"""

from typing import TYPE_CHECKING, Final, NamedTuple

from ....protocol.identity import Credential
from ....protocol.limits import MAX_LARGE_PAYLOAD_BYTES
from ....transport.access import Access
from ....transport.address import Address
from ...client.partition_location import PartitionLocation
from ...client.shuffle_environment import PartitionSettings, ShuffleEnvironment
from ...counters import Counters
from ...errors import PartitionReleased, ShuttingDown
from ...gate.input_gate import InputGate
from ...names import ShuffleKey, SubpartitionRange
from ...partition.result_partition_writer import BufferWritingPartition
from ...partition.stored_result_partition import StoredResultPartition
from ..drivers.applications import Applications
from ..ingest.incoming_output import ProducerServices
from ..serve.read_pool import ReadPool
from ..serve.taskmanager_channel_opener import GateLimits, GateServices, TaskManagerChannelOpener
from .embedded_handshake import admit
from .pipelined_partition import EmbeddedPipelinedPartition
from .store_sink import StoreSink

if TYPE_CHECKING:
    from collections.abc import Callable


PROCESS: Final = "this process"
"""Name of the reader of an embedded task's gate; readers elsewhere have an address."""


class EmbeddedServices(NamedTuple):
    """The parts of a TaskManager that its embedded tasks use.

    Attributes:
        address: Address at which other TaskManagers reach this one.
        access: Who may use it.
        applications: The applications that are connected.
        producers: What writers use.
        gates: What gates use.
    """

    address: Address
    access: Access
    applications: Applications
    producers: ProducerServices
    gates: GateServices

    @property
    def counters(self) -> Counters:
        """The TaskManager's counters."""
        return self.producers.counters


class EmbeddedClient(ShuffleEnvironment):
    """Opens result partitions and input gates in the TaskManager of this process.

    Made by :meth:`~sluice.shuffle.taskmanager.taskmanager.TaskManager.client`. Its partitions and
    gates take their memory from the TaskManager's pool, by the keys of ``[memory]``.

    Args:
        services: The parts of the TaskManager.
        application_id: Partitions are found, and released, by application.
        credential: What its tasks prove; None: nothing.
        buffer_timeout_seconds: Time after which a buffer that is not full is sent; 0: after every
            call, -1: only full buffers are sent.
        closed: Called when the client is closed.

    Raises:
        AuthenticationFailed: The application may not use this TaskManager.
    """

    def __init__(
        self,
        services: EmbeddedServices,
        application_id: str,
        credential: Credential | None,
        buffer_timeout_seconds: float,
        closed: "Callable[[EmbeddedClient], None]",
    ) -> None:
        self._namespace = admit(services.access, application_id, credential)
        gates = services.gates
        super().__init__(
            application_id,
            gates.taskmanager_id,
            services.address,
            gates.network_pool,
            services.counters,
            buffer_timeout_seconds,
        )
        self._services = services
        self._read_pool = ReadPool(
            gates.network_pool,
            f"reads of {self._namespace}",
            gates.config.read_segments_per_connection,
        )
        self._closed: Callable[[EmbeddedClient], None] | None = closed
        services.applications.connected(self._namespace)

    @property
    def namespace(self) -> str:
        """The name by which the TaskManager knows the application."""
        return self._namespace

    @property
    def gates(self) -> list[InputGate]:
        """The gates that its tasks read, for status."""
        return [each.gate for each in self._open_gates]

    @property
    def partitions(self) -> list[PartitionLocation]:
        """The partitions that its tasks write, for status."""
        return [each.location for each in self._open_partitions]

    async def close(self) -> None:
        """Fail the partitions that are not finished, and close the gates. Idempotent.

        Finished partitions stay with the TaskManager until they are read.

        Cancellation: safe; regions that are being written are aborted at their end.
        """
        if self._closed is None:
            return
        closed, self._closed = self._closed, None
        self._close_flushers()
        partitions = list(self._open_partitions)
        for partition in partitions:
            partition.fail(PartitionReleased("The client was closed", value=self.application_id))
            partition.writer.close()
        for gate in list(self._open_gates):
            gate.close()
        self._read_pool.destroy()
        self._services.applications.disconnected(self._namespace)
        closed(self)
        for partition in partitions:
            await partition.writer.wait_closed()

    # ---- inside ----------------------------------------------------------------------------------

    async def _choose_taskmanager(self) -> None:
        """Do nothing: it is always this one."""

    async def _open_writer(
        self, location: PartitionLocation, settings: PartitionSettings
    ) -> BufferWritingPartition:
        if self._closed is None:
            raise PartitionReleased("The client is closed", value=self.application_id)
        producers = self._services.producers
        if producers.draining:
            raise ShuttingDown("TaskManager is draining", remedy="Write to another TaskManager")
        key = ShuffleKey(self._namespace, location.shuffle_id)
        if not location.is_stored:
            return EmbeddedPipelinedPartition(producers, key, location, settings)
        num_subpartitions = settings.num_subpartitions
        pool = self.network_pool.create_local_pool(
            f"map output {location.map_attempt_id} of shuffle {key.shuffle_id} of "
            f"{self._namespace}",
            1,
            settings.max_segments,
            kind="map_output",
        )
        sink = StoreSink(
            producers,
            key,
            location.map_attempt_id,
            num_subpartitions,
            settings.replicas,
            synchronous=settings.replicas_synchronous,
            to_remote=settings.replicas_remote,
        )
        try:
            return StoredResultPartition(
                pool.name, num_subpartitions, pool, sink, codec=settings.codec
            )
        except BaseException:
            pool.destroy()
            raise

    def _make_gate(self, wanted: SubpartitionRange, *, is_stored: bool) -> InputGate:
        gates = self._services.gates
        config = gates.config
        limits = GateLimits(
            buffer_bytes=MAX_LARGE_PAYLOAD_BYTES if is_stored else None,
            remote_channels=config.max_open_channels_per_gate if is_stored else None,
            floating_buffers=config.floating_buffers_per_stored_gate if is_stored else None,
        )
        shuffle = ShuffleKey(self._namespace, wanted.shuffle.shuffle_id)
        counters = self._services.counters
        opener = TaskManagerChannelOpener(
            f"gate {counters.gates_opened + 1} of {PROCESS}",  # unique in this process
            gates,
            wanted._replace(shuffle=shuffle),
            self._read_pool,
            limits,
        )
        counters.gates_opened += 1
        return InputGate(opener)

    def _one_closed(self) -> None:
        self._services.producers.on_idle()
