"""The driver of an application: connected to each TaskManager, it releases and notes moves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sluice.protocol.errors import SluiceError
from sluice.protocol.schema import (
    ApplicationReleased,
    KnownTaskManager,
    MoveNoted,
    OutputsMoved,
    ReleaseApplication,
    ReleaseAttempts,
    ReleaseShuffle,
    ShuffleReleased,
)
from sluice.shuffle.names import ShuffleKey
from sluice.transport.address import Address
from tests.simulation.processes import DATA_PORT
from tests.support.wire_clients import Client, driver

if TYPE_CHECKING:
    from sluice.protocol.schema import HelloAck, Message
    from tests.simulation.processes import Member
    from tests.simulation.world import World

RECONNECT_SECONDS = 0.5

Release = tuple[int, int | None]
"""A shuffle, and the end of its map attempts that are released; None: all are."""


class Driver:
    """The driver of one application.

    Args:
        world: The simulation.
        application_id: Its application.
    """

    def __init__(self, world: World, application_id: str) -> None:
        self.application_id = application_id
        self.acks: dict[int, HelloAck] = {}
        """The last answer of each TaskManager, by its number."""
        self._world = world
        self._clients: dict[int, Client] = {}
        self._releases: dict[int, list[Release]] = {}
        """Releases that a TaskManager has not acknowledged yet, in their order."""
        self._released: list[Release] = []
        self._ends = False
        self._vanishes = False
        self.ended: dict[int, None] = {}
        """Numbers of the TaskManagers that have acknowledged the end of the application."""

    async def run(self, member: Member) -> None:
        """Stay connected to one TaskManager until the application has ended there."""
        self._releases[member.index] = self._released[:]
        while member.index not in self.ended and not self._vanishes:
            try:
                await self._serve(member)
            except (SluiceError, TimeoutError) as error:
                self._world.trace(f"{self.application_id} lost {member}: {type(error).__name__}")
            self._clients.pop(member.index, None)
            if member.index not in self.ended and not self._vanishes:
                await asyncio.sleep(RECONNECT_SECONDS)

    async def _serve(self, member: Member) -> None:
        client = await driver(Address(member.host, DATA_PORT), self.application_id)
        try:
            index = member.index
            before = self.acks.get(index)
            is_new = before is None or before.taskmanager_id != client.ack.taskmanager_id
            self.acks[index] = client.ack
            self._clients[index] = client
            for other, ack in self.acks.items():
                if other != index:
                    self._name(client, ack)
                    if is_new and other in self._clients:
                        self._name(self._clients[other], client.ack)
            for release in self._releases[index]:
                self._send_release(client, release)
            if self._ends:
                self._send(client, ReleaseApplication())
            while index not in self.ended:
                message, _ = await client.receive(timeout=1e6)
                self._take(member, client, message)
        finally:
            if client.lost is None:
                client.connection.close()

    def release(self, shuffle_id: int, end: int | None = None) -> None:
        """Release a shuffle, or its map attempts below ``end``, everywhere."""
        self._released.append((shuffle_id, end))
        for index, pending in self._releases.items():
            pending.append((shuffle_id, end))
            if index in self._clients:
                self._send_release(self._clients[index], (shuffle_id, end))

    def _send_release(self, client: Client, release: Release) -> None:
        shuffle_id, end = release
        whole = ReleaseShuffle(shuffle_id)
        self._send(client, whole if end is None else ReleaseAttempts(shuffle_id, end))

    def end(self) -> None:
        """End the application everywhere."""
        self._ends = True
        for client in self._clients.values():
            self._send(client, ReleaseApplication())

    def vanish(self) -> None:
        """Close all connections, and release nothing: the driver was killed."""
        self._vanishes = True
        for client in self._clients.values():
            if client.lost is None:
                client.vanish()

    def _take(self, member: Member, client: Client, message: Message) -> None:
        if isinstance(message, OutputsMoved):
            self._send(client, MoveNoted(message.move))
        elif isinstance(message, ShuffleReleased):
            self._world.trace(f"{member} released {self.application_id}/{message.shuffle_id}")
            pending = self._releases[member.index]
            release = next(each for each in pending if each[0] == message.shuffle_id)
            pending.remove(release)
            key = ShuffleKey(self.application_id, message.shuffle_id)
            self._world.oracle.release_acknowledged(member.index, key, release[1])
            self._world.faults.promised(member.index)
        elif isinstance(message, ApplicationReleased):
            self.ended[member.index] = None

    def _name(self, client: Client, ack: HelloAck) -> None:
        place = ack.taskmanager_id, ack.advertised_host, ack.data_port
        self._send(client, KnownTaskManager(*place))

    def _send(self, client: Client, message: Message) -> None:
        if client.lost is None and not client.connection.closing:
            client.send(message)
