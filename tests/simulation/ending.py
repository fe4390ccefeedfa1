"""The end of a simulation: everything works again, and everything is released."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from sluice.protocol.schema import ROLE_COPIER
from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.taskmanager.bounds.accounts import Resource
from tests.simulation.plan import BUCKET_KINDS, KILL_AFTER
from tests.support.mini_cluster import network_leftovers, storage_leftovers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
    from sluice.shuffle.taskmanager.wiring import NetworkEnvironment
    from tests.simulation.oracle import Output
    from tests.simulation.processes import Member
    from tests.simulation.workload import Application
    from tests.simulation.world import World

CALM_SECONDS: Final = 15.0
"""Time during which the load goes on after the last fault."""

RECOVERY_SECONDS: Final = 150.0
"""Time within which work that is repeated succeeds after the last fault."""

EXPIRY_SECONDS: Final = 260.0
"""Time within which nothing is left of an application that has ended or whose driver was killed:
TaskManagers with copies may keep it for each other for some deadlines, one after the other."""

MAX_LATE_SECONDS: Final = 0.1
"""About the time that a task needs to write a map output."""

MAX_READS: Final = 15
"""Most outputs of an application that are read at the end; the indexes show all of them."""

RETRY_SECONDS: Final = 2.0

_CHARGES: Final = Resource.MEMORY_TIER_BYTES, Resource.DISK_TIER_BYTES

_LEAVE_OBJECTS: Final = {*BUCKET_KINDS, KILL_AFTER, "kill", "power cut", "restart", "leave"}
"""Faults that may leave released objects in the bucket until the application ends: a listing fails,
or the TaskManager that knows of them is away."""


async def end(world: World) -> None:
    """Check what must be true after the last fault, then end all applications."""
    await asyncio.sleep(CALM_SECONDS)
    world.load_ends = world.oracle.is_calm = True
    world.trace("the load ends")
    for member in world.members:
        if member.taskmanager is None:
            world.violation(f"{member} does not run after the last fault")
        elif _needs_restart(member.taskmanager.environment.store):
            await member.stop()  # as its operator does, after its log and its status say so
            await member.start()
    deadline = world.loop.time() + RECOVERY_SECONDS
    for number, member in enumerate(world.members):
        application = world.applications[number % len(world.applications)]
        await _repeat(world, f"a write at {member}", deadline, application, _write(member))
        await _repeat(world, f"a stream at {member}", deadline, application, _stream(member, world))
    await _read_all(world, deadline)
    await _until_copied(world, deadline)
    await _until_charged(world, deadline)
    world.oracle.check_holders()
    world.oracle.check_bucket()
    generator = random.Random(f"end of {world.plan.seed}")
    for application in world.applications:
        if generator.random() < 0.5:  # otherwise its end releases everything
            key = ShuffleKey(application.application_id, application.shuffle_id)
            member = generator.choice(world.members)  # which still makes copies of the last output
            await _in_context(world, application, application.write(member))
            world.oracle.released(key)
            application.driver.release(key.shuffle_id)
    await asyncio.sleep(RETRY_SECONDS)
    world.oracle.look()
    if world.plan.has_bucket:
        await _until_released(world, world.loop.time() + RECOVERY_SECONDS)
    await _end_applications(world, generator)
    await _until_clean(world)
    for member in world.members:
        await member.stop()


def _needs_restart(store: ShuffleStore) -> bool:
    """Return whether a directory stays out until a restart: a sync of its arena failed."""
    return any(tier.sync_failed for tier in store._tiers.tiers())


def _write(member: Member) -> Callable[[Application], Awaitable[BaseException | None]]:
    return lambda application: application.write(member)


def _stream(
    member: Member, world: World
) -> Callable[[Application], Awaitable[BaseException | None]]:
    through = world.members[(member.index + 1) % len(world.members)]
    return lambda application: application.stream(member, through)


async def _repeat(
    world: World,
    what: str,
    deadline: float,
    application: Application,
    work: Callable[[Application], Awaitable[BaseException | None]],
) -> None:
    """Repeat an operation until it succeeds or the deadline has passed."""
    while True:
        error = await _in_context(world, application, work(application))
        if error is None:
            return
        if world.loop.time() > deadline:
            world.violation(f"{what} fails {RECOVERY_SECONDS} s after the last fault: {error}")
            return
        await asyncio.sleep(RETRY_SECONDS)


def _in_context(
    world: World, application: Application, work: Awaitable[BaseException | None]
) -> asyncio.Task[BaseException | None]:
    """Do the work of an application in its process."""
    context = application.process.context.copy()
    return world.loop.create_task(_awaited(work), context=context)


async def _awaited(work: Awaitable[BaseException | None]) -> BaseException | None:
    return await work


async def _read_all(world: World, deadline: float) -> None:
    """Read a subpartition of outputs at TaskManagers that have them."""
    world.oracle.look()
    for application in world.applications:
        mine = [
            (output, holder)
            for output in world.oracle.readable()
            if output.key.application_id == application.application_id
            for holder in _holders(world, output)
        ]
        generator = random.Random(world.plan.seed)
        for output, holder in generator.sample(mine, min(MAX_READS, len(mine))):
            what = f"a read of {output} at tm{holder}"
            await _repeat(world, what, deadline, application, _read(output, holder, world))


def _holders(world: World, output: Output) -> list[int]:
    """Return the numbers of the TaskManagers that must serve a map output."""
    is_in_bucket = world.bucket.has(output) and not output.earlier
    return [each.index for each in world.members] if is_in_bucket else sorted(output.seen)


def _read(
    output: Output, holder: int, world: World
) -> Callable[[Application], Awaitable[BaseException | None]]:
    subpartition = output.map_attempt_id % output.subpartitions
    through = world.members[(output.map_attempt_id + holder) % len(world.members)]

    async def read(application: Application) -> BaseException | None:
        if output.is_released:  # by its driver, which ends meanwhile
            return None
        return await application.read(output, subpartition, holder, through)

    return read


async def _end_applications(world: World, generator: random.Random) -> None:
    """End all applications while tasks still write, and perhaps while hosts are apart."""
    first, second = (member.host for member in generator.sample(world.members, 2))
    is_apart = generator.random() < 0.5
    if is_apart:
        world.network.block(first, second)
    late: list[asyncio.Task[BaseException | None]] = []
    for application in world.applications:
        world.oracle.ended(application.application_id)
        for member in world.members:
            write = application.write(member, is_late=True)
            late.append(_in_context(world, application, write))
    await asyncio.sleep(generator.uniform(0.0, MAX_LATE_SECONDS))
    for application in world.applications:
        if generator.random() < 0.3:
            world.trace(f"the driver of {application.application_id} is killed")
            application.driver.vanish()
        else:
            application.driver.end()
    await asyncio.wait(late)
    await asyncio.sleep(RETRY_SECONDS)
    if is_apart:
        world.network.unblock(first, second)


async def _until_released(world: World, deadline: float) -> None:
    """Wait until the bucket has no released map output; report those that it has."""
    in_calm = bool(_LEAVE_OBJECTS & {each.kind for each in world.plan.faults})
    while kept := world.oracle.released_in_bucket(in_calm=in_calm):
        if world.loop.time() > deadline:
            world.violation(f"the bucket has {', '.join(kept)} after the release")
            return
        await asyncio.sleep(RETRY_SECONDS)


async def _until_copied(world: World, deadline: float) -> None:
    """Wait until all outputs have their copies; report those that lack some."""
    while lacking := world.oracle.lacking_copies():
        if world.loop.time() > deadline:
            for text in lacking:
                world.violation(text)
            return
        await asyncio.sleep(RETRY_SECONDS)


async def _until_charged(world: World, deadline: float) -> None:
    """Wait until the accounts of applications agree with the stores; report where they do not."""
    while wrong := _wrong_charges(world):
        if world.loop.time() > deadline:
            world.violation(", ".join(wrong))
            return
        await asyncio.sleep(RETRY_SECONDS)


def _wrong_charges(world: World) -> list[str]:
    """Return the applications that are charged other bytes than their map outputs take."""
    wrong: list[str] = []
    for member in world.members:
        if member.taskmanager is None:
            continue
        environment = member.taskmanager.environment
        for application in world.applications:
            account = environment.accounts.of(application.application_id)
            charged = sum(account.amount(each) for each in _CHARGES)
            used = world.oracle.used_bytes(environment, application.application_id)
            if charged != used:
                wrong.append(
                    f"{member} charges {charged} bytes to {application.application_id}, not {used}"
                )
    return wrong


async def _until_clean(world: World) -> None:
    """Wait until no TaskManager, and no bucket, has anything left; report what one has."""
    deadline = world.loop.time() + EXPIRY_SECONDS
    for member in world.members:
        if member.taskmanager is None:
            continue
        environment = member.taskmanager.environment
        while left := _left(environment):
            if world.loop.time() > deadline:
                left += [
                    f"{each.role} {each.application_id} {each.remote} {type(handler).__name__}"
                    for each, handler in environment.handlers.items()
                ]
                if kept := sorted(environment.store.applications()):
                    left.append(f"kept after their end: {', '.join(kept)}")
                world.violation(f"{member} has {', '.join(left)}")
                break
            await asyncio.sleep(RETRY_SECONDS)
    orphan_seconds = world.plan.settings.get("remote_orphan_seconds", 0.0)
    while names := world.bucket.leftovers():
        if world.loop.time() > deadline + orphan_seconds:
            world.violation(f"the bucket has {', '.join(names[:4])}, {len(names)} in all")
            break
        await asyncio.sleep(RETRY_SECONDS)


def _left(environment: NetworkEnvironment) -> list[str]:
    """Return what is left, without the connections on which TaskManagers watch each other."""
    left = network_leftovers(environment)
    if all(
        each.role == ROLE_COPIER and not each.application_id for each in environment.handlers
    ) and len(environment.handlers) == len(environment.listener.connections):
        left = [each for each in left if not each.startswith(("connections:", "handlers:"))]
    left += [f"the account of {each.application_id}" for each in environment.accounts.in_use()]
    return [*left, *storage_leftovers(environment)]
