"""Pipelined partitions: one task writes while others read, each through its TaskManager.

Readers of hybrid partitions may come late; some of full ones leave and start again.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final

from sluice.protocol.errors import SluiceError
from sluice.protocol.schema import (
    PARTITION_HYBRID_FULL,
    PARTITION_HYBRID_SELECTIVE,
    PARTITION_PIPELINED_BOUNDED,
)
from sluice.shuffle.taskmanager.hybrid.hybrid_full_subpartition import HybridFullSubpartition
from sluice.shuffle.taskmanager.hybrid.hybrid_selective_subpartition import (
    HybridSelectiveSubpartition,
)
from sluice.transport.address import Address
from tests.simulation.processes import DATA_PORT
from tests.support.pipelined_clients import PipelinedReader, PipelinedWriter
from tests.support.wire_clients import consumer, producer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluice.protocol.schema import HelloAck
    from sluice.shuffle.taskmanager.store.tiers.tier import Extent
    from sluice.shuffle.taskmanager.wiring import NetworkEnvironment
    from tests.simulation.processes import Member
    from tests.simulation.workload import Application
    from tests.simulation.world import World

MAX_SUBPARTITIONS: Final = 3
MAX_BUFFERS: Final = 30
MAX_LATE_SECONDS: Final = 3.0
KINDS: Final = (PARTITION_PIPELINED_BOUNDED, PARTITION_HYBRID_SELECTIVE, PARTITION_HYBRID_FULL)

Buffers = list[tuple[int, bytes]]
"""The buffers of a partition in the order of writing, each with its subpartition."""


async def exchange(
    world: World, application: Application, attempt: int, at: Member, through: Member
) -> SluiceError | TimeoutError | None:
    """Write a pipelined partition while it is read, and compare; return the first error.

    Args:
        world: The simulation.
        application: The application.
        attempt: The name of the partition in the current shuffle.
        at: The TaskManager with the partition.
        through: The TaskManager whose gates read it.
    """
    ack = application.driver.acks.get(at.index)
    if ack is None:
        return TimeoutError("the driver does not know the TaskManager yet")
    generator = random.Random(f"pipelined {application.application_id} {attempt} {world.plan.seed}")
    subpartitions = generator.randint(1, MAX_SUBPARTITIONS)
    buffers = [
        (generator.randrange(subpartitions), generator.randbytes(generator.choice((1, 300, 4000))))
        for _ in range(generator.randint(0, MAX_BUFFERS))
    ]
    shuffle_id, application_id = application.shuffle_id, application.application_id
    kind = generator.choice(KINDS)
    what = f"pipelined {application_id}/{shuffle_id}/{attempt} ({kind}) of {at} through {through}"

    async def write() -> None:
        client = await producer(Address(at.host, DATA_PORT), application_id)
        try:
            writer = await PipelinedWriter.open(
                client, attempt, subpartitions, shuffle_id=shuffle_id, partition_type=kind
            )
            for subpartition, data in buffers:
                await writer.send(subpartition, data)
            await writer.finish()
        finally:
            if client.lost is None:
                client.connection.close()

    async def read(subpartition: int) -> bytes:
        if kind != PARTITION_PIPELINED_BOUNDED:
            await asyncio.sleep(generator.choice((0.0, generator.uniform(0.0, MAX_LATE_SECONDS))))
        if kind == PARTITION_HYBRID_FULL:
            for _ in range(generator.randrange(3)):
                most = generator.randrange(MAX_BUFFERS)
                await _read(application_id, through, ack, attempt, shuffle_id, subpartition, most)
        return await _read(application_id, through, ack, attempt, shuffle_id, subpartition)

    ended = await asyncio.gather(
        write(), *(read(each) for each in range(subpartitions)), return_exceptions=True
    )
    _check(world, what, buffers, ended[1:])
    for error in ended:
        if isinstance(error, (SluiceError, TimeoutError)):
            world.trace(f"{what} failed: {error}")
            return error
        if isinstance(error, BaseException):
            raise error
    world.trace(f"{what} written and read")
    return None


async def _read(
    application_id: str,
    through: Member,
    ack: HelloAck,
    attempt: int,
    shuffle_id: int,
    subpartition: int,
    most: int | None = None,
) -> bytes:
    """Read a subpartition to its end, or at most ``most`` messages.

    Raises:
        SluiceError: It failed.
    """
    client = await consumer(Address(through.host, DATA_PORT), application_id)
    try:
        reader = PipelinedReader(client, [(ack, attempt)], subpartition, shuffle_id=shuffle_id)
        while reader.open and (most is None or len(reader.received[0]) < most):
            await reader.read_one()
        for error in reader.errors.values():
            raise error
        return reader.data()
    finally:
        if client.lost is None:
            client.connection.close()


def _check(world: World, what: str, buffers: Buffers, read: Sequence[object]) -> None:
    """Compare the bytes of complete reads with the written ones."""
    for subpartition, found in enumerate(read):
        expected = b"".join(data for each, data in buffers if each == subpartition)
        if isinstance(found, bytes) and found != expected:
            world.violation(
                f"wrong bytes of subpartition {subpartition} of {what}: {len(found)} bytes, "
                f"expected {len(expected)}"
            )


def spilled(environment: NetworkEnvironment, application_id: str) -> set[Extent]:
    """Return what the hybrid partitions of an application have in the tiers of a TaskManager."""
    partitions: list[Any] = [
        partition
        for key, _, partition in environment.partitions.pipelined
        if key.application_id == application_id
    ]
    extents: set[Extent] = set()
    for subpartition in (each for partition in partitions for each in partition.subpartitions):
        if isinstance(subpartition, HybridFullSubpartition):
            runs = [kept.run for kept in subpartition._kept._kept]
        elif isinstance(subpartition, HybridSelectiveSubpartition):
            runs = list(subpartition._spilled)
        else:
            continue
        extents.update(each.extent for run in runs for each in run.slices)
    return extents
