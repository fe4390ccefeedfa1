"""Clients that misbehave, beside the applications that do not."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING

from sluice.protocol.errors import SluiceError
from sluice.protocol.schema import BeginRegion, OpenPartition
from sluice.transport.address import Address
from tests.simulation.loop import Process
from tests.simulation.processes import DATA_PORT
from tests.support.wire_clients import Client, consumer, open_gate, producer

if TYPE_CHECKING:
    from tests.simulation.plan import Fault
    from tests.simulation.processes import Member
    from tests.simulation.world import World

APPLICATION_ID = "bad"
SHUFFLE_ID = 1


class _Noise(asyncio.Protocol):
    """Sends bytes that are not of the protocol."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.WriteTransport):
            transport.write(self._data)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return memory for what is answered."""
        return memoryview(bytearray(4096))

    def buffer_updated(self, count: int) -> None:
        """Ignore it."""


async def misbehave(world: World, member: Member, fault: Fault) -> None:
    """Do something bad to a TaskManager for a while."""
    generator = random.Random(f"tenant {fault.at} of {world.plan.seed}")
    process = Process("bad tenant", "10.0.2.1")
    work = generator.choice((_send_noise, _stay_unfinished, _never_read))
    world.trace(f"{work.__name__} at {member}")
    task = world.loop.create_task(
        work(world, Address(member.host, DATA_PORT), generator, fault.seconds),
        context=process.context,
    )
    await asyncio.wait({task})
    error = task.exception()
    if error is not None and not isinstance(error, (SluiceError, TimeoutError, OSError)):
        world.failed("a bad tenant", error)
    world.network.process_died(process, silently=False)


async def _send_noise(
    world: World, address: Address, generator: random.Random, seconds: float
) -> None:
    """Send random bytes."""
    for _ in range(5):
        data = generator.randbytes(generator.choice((1, 40, 100_000)))
        await world.loop.create_connection(partial(_Noise, data), *address)
    await asyncio.sleep(seconds)


async def _stay_unfinished(
    world: World, address: Address, generator: random.Random, seconds: float
) -> None:
    """Begin map outputs and regions, and send no data."""
    clients: list[Client] = []
    for _ in range(5):
        client = await producer(address, APPLICATION_ID)
        clients.append(client)
        client.send(OpenPartition(0, SHUFFLE_ID, generator.getrandbits(20), 1))
        client.send(BeginRegion(0, 0, 0, [100_000], 0))
    await asyncio.sleep(seconds)
    for client in clients:
        if client.lost is None:
            client.vanish()


async def _never_read(
    world: World, address: Address, generator: random.Random, seconds: float
) -> None:
    """Open gates on the data of another application, and read nothing that comes."""
    for _ in range(5):
        client = await consumer(address, APPLICATION_ID)
        client.stop_reading()
        ids = [generator.randrange(1, 9) for _ in range(3)]
        open_gate(client, SHUFFLE_ID, [(client.ack, list(dict.fromkeys(ids)))], 0, 1)
    await asyncio.sleep(seconds)
