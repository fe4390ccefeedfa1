"""The driver leg: releases shuffles and applications, and keeps an application alive.

It also tells the driver which map outputs are lost, copied or moved.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from ....protocol.errors import SluiceError, UnexpectedMessage
from ....protocol.limits import MAX_LOST_ATTEMPTS, MAX_U32
from ....protocol.schema import (
    ApplicationReleased,
    CheckOutputs,
    CloseRequest,
    KnownTaskManager,
    Message,
    MoveNoted,
    OutputsChecked,
    OutputsHeld,
    OutputsLost,
    OutputsMoved,
    OutputsRemote,
    ReleaseApplication,
    ReleaseAttempts,
    ReleaseShuffle,
    ShuffleReleased,
)
from ....transport.connection import Connection
from ...names import MapAttemptKey, ShuffleKey, TaskManagerPlace
from ..replicas.copies import Copies
from ..serve.result_partition_manager import ResultPartitionManager
from ..store.output_index import Lost
from .applications import Applications

if TYPE_CHECKING:
    from asyncio import Future


class UnnotedMove(NamedTuple):
    """A move of map outputs that a driver has not acknowledged.

    Attributes:
        future: Completes when the driver acknowledges, or is gone.
        key: The shuffle.
        place: The TaskManager that has them now.
        map_outputs: Number of map outputs.
        told_at: Time of the message, as of ``time.monotonic()``.
    """

    future: "Future[None]"
    key: ShuffleKey
    place: TaskManagerPlace
    map_outputs: int
    told_at: float


class DriverHandler:
    """Serves the driver of one application.

    Args:
        connection: The connection to the driver.
        partitions: Knows the application's partitions.
        applications: Releases an application that has ended.
        copies: Makes copies at the TaskManagers that the driver names.
        on_lost: Called when the connection is gone.
        is_told_of_remote: Whether the driver understands OutputsRemote.
    """

    def __init__(
        self,
        connection: Connection,
        partitions: ResultPartitionManager,
        applications: Applications,
        copies: Copies,
        on_lost: Callable[[], None],
        *,
        is_told_of_remote: bool = False,
    ) -> None:
        self._connection = connection
        self._partitions = partitions
        self._applications = applications
        self._copies = copies
        self._on_lost = on_lost
        self._is_told_of_remote = is_told_of_remote
        self._moves = itertools.count(1)
        self.unnoted: dict[int, UnnotedMove] = {}
        """Moves that the driver has not acknowledged."""
        # After the HelloAck, which is sent when this handler is made.
        asyncio.get_running_loop().call_soon(self._tell_all)

    def _tell_all(self) -> None:
        application_id = self._connection.application_id
        if self._is_told_of_remote:
            self._partitions.share(application_id)
        # Before the losses: map tasks of lost map outputs with a copy need not run again.
        remote = self._copies.services.store.remote
        if remote is not None:
            for key, attempts in remote.known_of(application_id).items():
                self.tell_remote(key, attempts)
        self.tell_lost(self._partitions.lost_of(application_id))
        for key, attempts in self._copies.replication.held_of(application_id).items():
            self.tell_held(key, attempts)
        for key, places in self._partitions.moved.of(application_id).items():
            by_place = sorted(places, key=lambda attempt: places[attempt])
            for place, moved in itertools.groupby(by_place, key=lambda each: places[each]):
                self.tell_moved(key, place, list(moved))

    def tell_lost(self, lost: Lost) -> None:
        """Notify the driver of its lost map outputs, and first of those with a remote copy."""
        remote = self._copies.services.store.remote
        if not self._connection.closing:
            for key, attempts in lost.items():
                if remote is not None and key.application_id == self._connection.application_id:
                    found = [each for each in attempts if remote.has(MapAttemptKey(key, each))]
                    self.tell_remote(key, found)
                for some in self._parts(key, attempts):
                    self._connection.send(OutputsLost(key.shuffle_id, some))

    def tell_held(self, key: ShuffleKey, map_attempt_ids: Sequence[int]) -> None:
        """Tell the driver that copies of its map outputs are here."""
        if not self._connection.closing:
            for some in self._parts(key, map_attempt_ids):
                self._connection.send(OutputsHeld(key.shuffle_id, some))

    def tell_remote(self, key: ShuffleKey, map_attempt_ids: Sequence[int]) -> None:
        """Tell the driver that map outputs have a copy in the remote tier."""
        if self._is_told_of_remote and not self._connection.closing:
            for some in self._parts(key, map_attempt_ids):
                self._connection.send(OutputsRemote(key.shuffle_id, some))

    def tell_moved(
        self, key: ShuffleKey, place: TaskManagerPlace, map_attempt_ids: Sequence[int]
    ) -> "list[Future[None]]":
        """Tell the driver that map outputs are elsewhere.

        Returns:
            Futures that complete when the driver acknowledges, or is gone.
        """
        noted: list[Future[None]] = []
        if not self._connection.closing:
            for some in self._parts(key, map_attempt_ids):
                move = next(self._moves) & MAX_U32
                self._connection.send(OutputsMoved(move, key.shuffle_id, *place, some))
                future: Future[None] = asyncio.get_running_loop().create_future()
                self.unnoted[move] = UnnotedMove(future, key, place, len(some), monotonic())
                noted.append(future)
        return noted

    def _parts(self, key: ShuffleKey, map_attempt_ids: Sequence[int]) -> Iterator[list[int]]:
        """Cut map attempts into messages, if they are of this driver's application."""
        if key.application_id == self._connection.application_id:
            for first in range(0, len(map_attempt_ids), MAX_LOST_ATTEMPTS):
                yield list(map_attempt_ids[first : first + MAX_LOST_ATTEMPTS])

    @property
    def remote(self) -> str:
        """The driver, for status."""
        return self._connection.label

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
        """Process a release, a place of copies, or a check of map outputs.

        Raises:
            LimitExceeded: The driver names too many TaskManagers.
        """
        application_id = self._connection.application_id
        if type(message) is ReleaseShuffle:
            freed = self._partitions.release_shuffle(ShuffleKey(application_id, message.shuffle_id))
            self._answer(ShuffleReleased(message.shuffle_id, freed))
        elif type(message) is ReleaseAttempts:
            key = ShuffleKey(application_id, message.shuffle_id)
            freed = self._partitions.release_shuffle(key, message.end)
            self._answer(ShuffleReleased(message.shuffle_id, freed))
        elif type(message) is CheckOutputs:
            key = ShuffleKey(application_id, message.shuffle_id)
            missing = self._partitions.missing(key, message.map_attempt_ids)
            self.tell_lost({key: missing})
            self._connection.send(OutputsChecked(message.check))
        elif type(message) is ReleaseApplication:
            self._partitions.application_ends(application_id)
            freed = self._applications.release(application_id)
            self._answer(ApplicationReleased(freed))
        elif type(message) is KnownTaskManager:
            place = TaskManagerPlace(message.taskmanager_id, message.host, message.port)
            self._copies.replication.known(application_id, place)
        elif type(message) is MoveNoted:
            _end(self.unnoted.pop(message.move, None))
        elif type(message) is CloseRequest:
            self._connection.close()

    def _answer(self, answer: Message) -> None:
        """Acknowledge a release when a restart of this TaskManager will not undo it."""
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
            self._connection.fail(error)  # the driver reconnects and repeats the release
        else:
            self._connection.send(answer)

    def writable(self) -> None:
        """Do nothing: answers are small and never wait."""

    def connection_lost(self, error: SluiceError) -> None:
        """Forget the driver; its application lives on until its deadline."""
        for unnoted in self.unnoted.values():
            _end(unnoted)
        self.unnoted.clear()
        self._on_lost()


def _end(unnoted: UnnotedMove | None) -> None:
    if unnoted is not None and not unnoted.future.done():
        unnoted.future.set_result(None)
