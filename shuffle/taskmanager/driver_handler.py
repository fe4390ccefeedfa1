"""The driver leg: releases shuffles and applications, and keeps an application alive."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ...protocol.errors import SluiceError, UnexpectedMessage
from ...protocol.limits import FEATURE_LOST_OUTPUTS, MAX_LOST_ATTEMPTS
from ...protocol.messages import (
    ApplicationReleased,
    CloseRequest,
    Message,
    OutputsLost,
    ReleaseApplication,
    ReleaseShuffle,
    ShuffleReleased,
)
from ...transport.connection import Connection
from ..names import ShuffleKey
from .applications import Applications
from .serve.result_partition_manager import ResultPartitionManager
from .store.output_index import Lost

if TYPE_CHECKING:
    from asyncio import Future


class DriverHandler:
    """Serves the driver of one application.

    Args:
        connection: The connection to the driver.
        partitions: Knows the application's partitions.
        applications: Releases an application that has ended.
        on_lost: Called when the connection is gone.
    """

    def __init__(
        self,
        connection: Connection,
        partitions: ResultPartitionManager,
        applications: Applications,
        on_lost: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._partitions = partitions
        self._applications = applications
        self._on_lost = on_lost
        # Behind the HelloAck, which is sent when this handler is made.
        asyncio.get_running_loop().call_soon(self._tell_all)

    def _tell_all(self) -> None:
        self.tell(self._partitions.lost_of(self._connection.application_id))

    def tell(self, lost: Lost) -> None:
        """Tell the driver which of its map outputs are lost, if it understands that."""
        if self._connection.closing or not self._connection.features & FEATURE_LOST_OUTPUTS:
            return
        for key, attempts in lost.items():
            if key.application_id == self._connection.application_id:
                for first in range(0, len(attempts), MAX_LOST_ATTEMPTS):
                    some = list(attempts[first : first + MAX_LOST_ATTEMPTS])
                    self._connection.send(OutputsLost(key.shuffle_id, some))

    @property
    def holds_anything(self) -> bool:
        """False: nothing is open on this leg."""
        return False

    def payload_buffer(self, message: Message, length: int) -> memoryview | None:
        """Refuse the payload: no message of this leg has one.

        Raises:
            UnexpectedMessage: Always.
        """
        raise UnexpectedMessage("Payload on a driver leg", value=type(message).__name__)

    def message_received(self, message: Message, payload_length: int) -> None:
        """Release the shuffle or the application that the driver names."""
        application_id = self._connection.application_id
        if type(message) is ReleaseShuffle:
            freed = self._partitions.release_shuffle(ShuffleKey(application_id, message.shuffle_id))
            self._answer(ShuffleReleased(message.shuffle_id, freed))
        elif type(message) is ReleaseApplication:
            self._partitions.application_ends(application_id)
            freed = self._applications.release(application_id)
            self._answer(ApplicationReleased(freed))
        elif type(message) is CloseRequest:
            self._connection.close()

    def _answer(self, answer: Message) -> None:
        """Tell the driver of a release when a restart of this TaskManager will not undo it."""
        released = self._partitions.released()
        if released is None:
            self._connection.send(answer)
        else:
            released.add_done_callback(partial(self._answer_later, answer))

    def _answer_later(self, answer: Message, released: "Future[None]") -> None:
        error = None if released.cancelled() else released.exception()
        if self._connection.closing:
            return
        if isinstance(error, SluiceError):
            self._connection.fail(error)  # the driver connects anew and says it again
        else:
            self._connection.send(answer)

    def writable(self) -> None:
        """Do nothing: answers are small and never wait."""

    def connection_lost(self, error: SluiceError) -> None:
        """Forget the driver; its application lives on until its deadline."""
        self._on_lost()
