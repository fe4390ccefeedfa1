"""The serving side of a peer leg: partition requests of another TaskManager."""

import asyncio
import logging
from collections.abc import Callable

from protocol.errors import SluiceError
from protocol.messages import CloseRequest, Message, PartitionRequest
from shuffle.counters import Counters
from shuffle.errors import internal_error
from shuffle.network.serving import ReadPool, ServingHandler
from shuffle.network.view_reader import CreditBasedViewReader
from shuffle.partition.manager import ResultPartitionManager
from shuffle.storage.outputs import ShuffleKey
from transport.connection import Connection

_log = logging.getLogger(__name__)


class PartitionRequestServerHandler(ServingHandler):
    """Answers partition requests.

    Args:
        connection: The connection to the other TaskManager.
        partitions: Finds what is asked for.
        read_pool: Memory for reads of the disk tier.
        counters: The TaskManager's counters.
        on_lost: Called when the connection is gone.
    """

    def __init__(
        self,
        connection: Connection,
        partitions: ResultPartitionManager,
        read_pool: ReadPool,
        counters: Counters,
        on_lost: Callable[[], None],
    ) -> None:
        super().__init__(connection, read_pool, counters, on_lost, connection.max_payload_bytes)
        self._partitions = partitions
        self._waiting: dict[CreditBasedViewReader, asyncio.Task[None]] = {}

    def request_received(self, message: Message) -> None:
        """Take a partition request."""
        if type(message) is PartitionRequest:
            reader = self.new_reader(message.channel, message.initial_credit)
            self._waiting[reader] = asyncio.get_running_loop().create_task(
                self._open(reader, message)
            )
        elif type(message) is CloseRequest:
            self.connection.close()

    def sent(self, reader: CreditBasedViewReader, length: int) -> None:
        """Count a data buffer that was sent."""
        self.counters.peer_bytes_out += length
        self.counters.peer_buffers_out += -(-length // self.credit_bytes)

    def close_channel(self, channel: int) -> bool:
        """Close a channel; a request that still waits for its partition is given up."""
        reader = self.readers.get(channel)
        if reader is not None and reader in self._waiting:
            self._waiting.pop(reader).cancel()
        return super().close_channel(channel)

    def connection_lost(self, error: SluiceError) -> None:
        """Give everything back."""
        waiting, self._waiting = self._waiting, {}
        for task in waiting.values():
            task.cancel()
        super().connection_lost(error)

    async def _open(self, reader: CreditBasedViewReader, request: PartitionRequest) -> None:
        try:
            key = ShuffleKey(request.application_id, request.shuffle_id)
            reader.attach(
                await self._partitions.request_view(
                    key,
                    request.map_attempt_ids,
                    request.start_subpartition,
                    request.end_subpartition,
                    self.connection.large_payload_bytes,
                    self.read_pool,
                    reader.data_available,
                    self.credit_bytes,
                )
            )
        except SluiceError as error:
            reader.fail(error)
        except Exception as error:  # noqa: BLE001
            _log.exception("internal error while answering %s", self.connection.remote)
            reader.fail(internal_error(error))
        finally:
            self._waiting.pop(reader, None)
