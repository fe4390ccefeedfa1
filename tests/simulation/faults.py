"""Carries out the faults of a plan, and ends them all."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Final

from tests.simulation.loop import FIRST_SECOND
from tests.simulation.plan import BUCKET_KINDS, KILL_AFTER
from tests.simulation.tenants import misbehave

if TYPE_CHECKING:
    from tests.simulation.plan import Fault
    from tests.simulation.processes import Member
    from tests.simulation.world import World


HANGS: Final = "disk hangs"

RETURN_PROBES: Final = 5
"""Probes after which a disk that works again takes data."""

MAX_WAIT_SECONDS: Final = 15.0
"""Longest time that a fault waits for an answer of a TaskManager."""


class Faults:
    """The faults of a simulation.

    Args:
        world: The simulation.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._running: list[asyncio.Task[None]] = []
        self.kinds: Counter[str] = Counter()
        """Faults that act now, by kind."""
        self.begun = 0
        """Faults that have begun."""
        self._other_ended_at = 0.0
        """Virtual time at which a fault that is no hanging disk ended last."""
        self._promises: dict[int, list[asyncio.Future[None]]] = {}
        """Completed when a TaskManager answers a commit or a release."""

    async def run(self) -> None:
        """Begin each fault at its time, and wait until all have ended."""
        for fault in self._world.plan.faults:
            await asyncio.sleep(max(0.0, FIRST_SECOND + fault.at - self._world.loop.time()))
            self._world.trace(f"FAULT {fault}")
            self._running.append(asyncio.create_task(self._carry_out(fault)))
        if self._running:
            await asyncio.wait(self._running)
        for task in self._running:
            if task.exception() is not None:
                self._world.failed("a fault", task.exception())

    async def heal(self) -> None:
        """End everything that is still broken."""
        world = self._world
        world.trace("the faults are over")
        for member in world.members:
            member.heal()
            world.network.slow_hosts.discard(member.host)
            if member.process is None:
                await member.start()

    def promised(self, index: int) -> None:
        """Record that a TaskManager has answered a commit or a release."""
        for waiting in self._promises.pop(index, ()):
            waiting.set_result(None)

    @property
    def only_hanging_disks(self) -> bool:
        """Whether only hanging disks disturb the cluster, and all other disks are back."""
        probes = RETURN_PROBES * self._world.plan.settings["health_check_seconds"]
        if self._world.loop.time() - self._other_ended_at < probes:
            return False
        return all(kind == HANGS for kind, count in self.kinds.items() if count)

    async def _carry_out(self, fault: Fault) -> None:
        self.kinds[fault.kind] += 1
        self.begun += 1
        await self._act(fault)
        self.kinds[fault.kind] -= 1
        if fault.kind != HANGS:
            self._other_ended_at = self._world.loop.time()

    async def _act(self, fault: Fault) -> None:
        world = self._world
        member = world.members[fault.member]
        other = world.members[fault.other]
        network = world.network
        if fault.kind in ("kill", "power cut"):
            member.kill(power=fault.kind == "power cut")
            await asyncio.sleep(fault.seconds)
            await member.start()
        elif fault.kind == KILL_AFTER:
            promised = world.loop.create_future()
            self._promises.setdefault(fault.member, []).append(promised)
            await asyncio.wait({promised}, timeout=MAX_WAIT_SECONDS)
            generator = random.Random(f"kill after {fault.at} of {world.plan.seed}")
            await asyncio.sleep(generator.choice((0.0, 0.001, 0.01)))
            member.kill()
            await asyncio.sleep(fault.seconds)
            await member.start()
        elif fault.kind in ("restart", "leave"):
            await member.stop(migrate=fault.kind == "leave")
            await asyncio.sleep(fault.seconds)
            if fault.kind == "leave" and member.process is None and member.has_moved:
                member.wipe()
            await member.start()
        elif fault.kind == "drain":
            await member.drain(fault.seconds)
        elif fault.kind in ("partition", "one way"):
            network.block(member.host, other.host, both=fault.kind == "partition")
            await asyncio.sleep(fault.seconds)
            network.unblock(member.host, other.host)
        elif fault.kind == "driver cut":
            application = world.applications[fault.other % len(world.applications)]
            network.block(member.host, application.process.host)
            await asyncio.sleep(fault.seconds)
            network.unblock(member.host, application.process.host)
        elif fault.kind == "isolate":
            hosts = [each.host for each in world.members if each is not member]
            hosts += [each.process.host for each in world.applications]
            for host in hosts:
                network.block(member.host, host)
            await asyncio.sleep(fault.seconds)
            for host in hosts:
                network.unblock(member.host, host)
        elif fault.kind in ("reset", "half-open"):
            self._break(member, is_silent=fault.kind == "half-open")
        elif fault.kind == "slow host":
            network.slow_hosts.add(member.host)
            await asyncio.sleep(fault.seconds)
            network.slow_hosts.discard(member.host)
        elif fault.kind == "clock":
            member.jump_clock(fault.seconds * 1000 * (-1) ** fault.other)
        elif fault.kind in BUCKET_KINDS:
            world.bucket.faults[fault.kind] += 1
            await asyncio.sleep(fault.seconds)
            world.bucket.faults[fault.kind] -= 1
        elif fault.kind == "bad tenant":
            await misbehave(world, member, fault)
        else:
            await self._break_disk(member, fault)

    def _break(self, member: Member, *, is_silent: bool) -> None:
        """Break about half of the connections of a TaskManager."""
        network = self._world.network
        for each in list(network.transports):
            if each.host == member.host and network.random.random() < 0.5:
                if is_silent:
                    each.forget()
                else:
                    each.reset()
                    each.peer.reset()

    async def _break_disk(self, member: Member, fault: Fault) -> None:
        disk = member.disks[fault.other % len(member.disks)]
        if fault.kind == "bit flip":
            self._world.trace(f"{member}: {disk.flip_bit()}")
            self._world.oracle.damaged(member.index)
            return
        if fault.kind == HANGS:
            disk.hang()
            await asyncio.sleep(fault.seconds)
            disk.go_on()
            return
        name = {
            "disk slow": "is_slow",
            "disk full": "is_full",
            "disk fails": "fails",
        }[fault.kind]
        setattr(disk, name, True)
        if name == "fails":
            self._world.oracle.damaged(member.index)
        await asyncio.sleep(fault.seconds)
        setattr(disk, name, False)
