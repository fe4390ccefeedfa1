"""The client: it connects one process to its TaskManager and opens partitions and gates there."""

import os
from collections.abc import Sequence
from typing import Self

from ...protocol.errors import SluiceError
from ...protocol.identity import Credential
from ...transport.address import Address
from ..counters import Counters
from ..gate.channel_opener import GateMemory
from ..gate.input_gate import InputGate
from ..legs.producer_leg import ProducerLeg
from ..memory import NetworkBufferPool
from ..names import SubpartitionRange
from ..partition.partition_type import ResultPartitionType, pool_bounds
from ..partition.result_partition_writer import BufferWritingPartition
from .client_channel_opener import ClientChannelOpener
from .client_legs import ClientLegs, LegConnector, is_idle_end
from .config import ClientConfig
from .credentials import client_credential
from .partition_location import PartitionLocation
from .shuffle_environment import PartitionSettings, ShuffleEnvironment


class ShuffleClient(ShuffleEnvironment):
    """Opens result partitions and input gates on one TaskManager. Made by :meth:`connect`.

    It is not for several threads: everything runs on the event loop that connected.
    """

    def __init__(
        self,
        application_id: str,
        config: ClientConfig,
        legs: ClientLegs,
    ) -> None:
        ack = legs.ack
        super().__init__(
            application_id,
            ack.taskmanager_id,
            Address(ack.advertised_host, ack.data_port),
            NetworkBufferPool(config.network_segments, ack.segment_size_bytes),
            legs.counters,
            config.buffer_timeout_seconds,
        )
        self.config = config
        self._legs = legs

    @classmethod
    async def connect(
        cls,
        endpoint: str | Address | Sequence[str | Address],
        application_id: str,
        config: ClientConfig | None = None,
        *,
        credential: str | Credential | None = None,
    ) -> Self:
        """Connect to a TaskManager.

        With a credential both sides prove who they are. Processes that share the data of an
        application name the same application and have the same credential.

        Args:
            endpoint: ``unix:/path`` or ``host:port``; best of a TaskManager on this host. Of
                several, the first that answers is used, and the next one if it becomes silent.
            application_id: Partitions are found, and released, by application.
            config: Memory and deadlines.
            credential: A submit token, or any other text that gives a credential. By default that
                of the variable ``SLUICE_CREDENTIAL``, or of the file that
                ``SLUICE_CREDENTIAL_FILE`` names; without these, none.

        Raises:
            InvalidAddress: The endpoint is neither ``HOST:PORT`` nor ``unix:/PATH``.
            InvalidCredential: The text or the file has no credential.
            AuthenticationFailed: The TaskManager proves nothing; what it refuses is a RemoteError.
            ConnectFailed: The TaskManager did not answer in time.
            SluiceError: The TaskManager refused.

        Cancellation: safe.
        """
        endpoints = [endpoint] if isinstance(endpoint, str | Address) else endpoint
        addresses = [Address.parse(each) if isinstance(each, str) else each for each in endpoints]
        config = ClientConfig() if config is None else config
        proven = client_credential(credential, application_id, os.environ)
        connector = LegConnector(addresses, application_id, config, proven, Counters())
        return cls(application_id, config, await ClientLegs.connect(connector))

    async def close(self) -> None:
        """Close both connections; partitions that are not finished fail. Idempotent.

        Waits until the connections are gone, at most the transport's close deadline.

        Cancellation: safe; the connections continue to close.
        """
        self._close_flushers()
        await self._legs.close()
        self.network_pool.destroy()

    async def _choose_taskmanager(self) -> None:
        await self._legs.live_producer()
        ack = self._legs.ack
        self.taskmanager_id = ack.taskmanager_id
        self.address = Address(ack.advertised_host, ack.data_port)

    async def _open_writer(
        self, location: PartitionLocation, settings: PartitionSettings
    ) -> BufferWritingPartition:
        leg = await self._legs.live_producer()
        try:
            return await self._open_on(leg, location, settings)
        except SluiceError as error:
            if not (leg.connection.closing and is_idle_end(error)):
                raise
        # The TaskManager closed the idle connection while the request was on its way.
        return await self._open_on(await self._legs.live_producer(), location, settings)

    async def _open_on(
        self, leg: ProducerLeg, location: PartitionLocation, settings: PartitionSettings
    ) -> BufferWritingPartition:
        config = self.config
        name = f"partition {location.map_attempt_id} of shuffle {location.shuffle_id}"
        pool = self.network_pool.create_local_pool(
            name,
            *pool_bounds(
                ResultPartitionType(location.partition_type),
                settings.num_subpartitions,
                config.exclusive_buffers_per_channel,
                config.floating_buffers_per_gate,
                settings.max_segments,
            ),
            max_overdraft_buffers=0 if location.is_stored else config.max_overdraft_buffers,
            max_buffers_per_channel=None if location.is_stored else config.max_buffers_per_channel,
            kind="map_output" if location.is_stored else "pipelined",
        )
        try:
            if location.is_stored:  # load only the writer that the task needs
                from .leg_region_sink import open_stored

                return await open_stored(leg, location, settings, pool)
            from .pipelined_writer import open_pipelined

            return await open_pipelined(leg, location, settings, pool)
        except BaseException:
            pool.destroy()
            raise

    def _make_gate(self, wanted: SubpartitionRange, *, is_stored: bool) -> InputGate:
        memory = GateMemory(
            self.network_pool,
            self.config.exclusive_buffers_per_channel,
            self.config.floating_buffers_per_gate,
        )
        name = f"gate of shuffle {wanted.shuffle.shuffle_id}"
        legs = self._legs
        opener = ClientChannelOpener(name, wanted, memory, legs.consumer, legs.live_consumer)
        return InputGate(opener)

    def _one_closed(self) -> None:
        """Do nothing: the TaskManager sees what a client closes."""
