"""The load: applications whose tasks write and read map outputs, and release shuffles."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import TYPE_CHECKING, Final

from sluice.protocol.errors import SluiceError
from sluice.protocol.schema import ReplicatePartition, ReplicateToRemote
from sluice.shuffle.names import ShuffleKey
from sluice.transport.address import Address
from tests.simulation.driver import Driver
from tests.simulation.loop import Process
from tests.simulation.oracle import Output
from tests.simulation.pipelined import exchange
from tests.simulation.processes import DATA_PORT
from tests.support.wire_clients import Client, consumer, producer, read_gate, write_map_output

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from tests.simulation.processes import Member
    from tests.simulation.world import World

APPLICATIONS: Final = 2
WRITERS: Final = 2
READERS: Final = 2
PAUSE_SECONDS: Final = 5.0
"""Longest time between two operations of a task."""

DETECTION_SECONDS: Final = 10.5
"""Longest time that a probe takes to find that a directory hangs."""

AGAIN_RATE: Final = 0.5
"""Part of the failed map outputs that are written again elsewhere, by the same name."""

PARTIAL_RATE: Final = 0.4
"""Part of the releases that have a bound: a stage runs again with new map attempts."""

BROKEN_RATE: Final = 0.5
"""Part of the map outputs written to a TaskManager whose disks have faults, if there is one."""

KILL_RATE: Final = 0.1
"""Part of the writers that are killed."""

KILL_SECONDS: Final = 0.1
"""About the time that a writer needs."""

LAST_RATE: Final = 0.5
"""Part of the releases just after the commit of a map output, whose copies are still made, or
during it."""

RELEASE_SECONDS: Final = 8.0, 30.0
"""Bounds of the time until the driver releases a shuffle and begins the next one."""


class Copies:
    """The copies of a map output whose producer waits for them.

    Args:
        world: The simulation.
        output: The map output, before it is written.
    """

    def __init__(self, world: World, output: Output) -> None:
        self._world = world
        self._output = output
        self._before = self._state()

    def check(self) -> None:
        """Check, after the answer, that another TaskManager has it, or that a counter tells.

        A TaskManager that was started again meanwhile may have had it.
        """
        output, now = self._output, self._state()
        if output.is_released or output.earlier or now != self._before:
            return
        if now[-1] is None:  # it ran only in between
            return
        if len(self._world.oracle.holders(output)) < output.replicas:
            self._world.violation(f"{output} is answered without its copies, and no counter tells")
        if self._world.bucket.lacks(output):
            self._world.violation(f"{output} is answered without its copy in the bucket")

    def _state(self) -> list[object]:
        """Return the running TaskManagers, and commits without copies of the one written to."""
        running = [member.taskmanager for member in self._world.members]
        taskmanager = running[self._output.member]
        counters = None if taskmanager is None else taskmanager.environment.counters
        missed = None if counters is None else counters.commits_without_copies
        return [*running, missed]


class Application:
    """One application and its tasks, on a host of its own.

    Args:
        world: The simulation.
        number: Its number, from 0.
    """

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._random = random.Random(f"application {number} of {world.plan.seed}")
        self.application_id = f"app{number}"
        self.process = Process(self.application_id, f"10.0.1.{number + 1}")
        self.driver = Driver(world, self.application_id)
        self.shuffle_id = 1
        self.replicas = self._random.choice((1, 2, 2))
        self.is_synchronous = self._random.random() < 0.5
        generator = random.Random(f"bucket of application {number} of {world.plan.seed}")
        self.to_remote = world.plan.has_bucket and generator.random() < 0.6
        self._attempts = itertools.count(1)
        self._tasks: list[asyncio.Task[Any]] = []
        self.reads = self.writes = self.streams = self.refused = 0

    def start(self) -> None:
        """Start the driver and all tasks."""
        for member in self._world.members:
            self._run(self.driver.run(member))
        for number in range(WRITERS):
            self._run(self._write_often(random.Random(self._random.random()), number))
        for number in range(READERS):
            self._run(self._read_often(random.Random(self._random.random()), number))
        self._run(self._stream_often(random.Random(self._random.random())))
        self._run(self._release_often(random.Random(self._random.random())))

    def _run(self, work: Coroutine[Any, Any, Any]) -> None:
        task = self._world.loop.create_task(work, context=self.process.context.copy())
        self._tasks.append(task)

    def check(self) -> None:
        """Report tasks that ended with an error."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                self._world.failed(f"a task of {self.application_id}", task.exception())

    async def _write_often(self, generator: random.Random, number: int) -> None:
        while not self._world.load_ends:
            await asyncio.sleep(generator.uniform(0.0, PAUSE_SECONDS))
            members = self._world.members
            member = self._choose(generator)
            attempt = next(self._attempts)
            is_killed = generator.random() < KILL_RATE
            dies_after = generator.uniform(0.0, KILL_SECONDS) if is_killed else None
            error = await self.write(member, attempt, dies_after=dies_after)
            if error is not None and generator.random() < AGAIN_RATE:
                others = [each for each in members if each is not member]
                await self.write(generator.choice(others), attempt, again=True)

    def _choose(self, generator: random.Random) -> Member:
        """Return a TaskManager to write to: often one of those whose disks have faults."""
        members = self._world.members
        broken = [each for each in members if each.has_disk_faults]
        return generator.choice(broken if broken and generator.random() < BROKEN_RATE else members)

    async def _read_often(self, generator: random.Random, number: int) -> None:
        while not self._world.load_ends:
            await asyncio.sleep(generator.uniform(0.0, PAUSE_SECONDS))
            mine = [
                output
                for output in self._world.oracle.readable()
                if output.key.application_id == self.application_id
            ]
            if mine:
                output = generator.choice(mine)
                holder = generator.choice(sorted(output.seen) or [output.member])
                if self._world.bucket.has(output) and not output.earlier:
                    holder = self._random.choice(self._world.members).index  # any finds it
                through = generator.choice(self._world.members)
                subpartition = generator.randrange(output.subpartitions)
                await self.read(output, subpartition, holder, through)

    async def _stream_often(self, generator: random.Random) -> None:
        while not self._world.load_ends:
            await asyncio.sleep(generator.uniform(0.0, 2 * PAUSE_SECONDS))
            await self.stream(*generator.choices(self._world.members, k=2))

    async def stream(self, at: Member, through: Member) -> SluiceError | TimeoutError | None:
        """Write and read a pipelined partition; return the first error."""
        error = await exchange(self._world, self, next(self._attempts), at, through)
        if error is None:
            self.streams += 1
        else:
            self.refused += 1
        return error

    async def _release_often(self, generator: random.Random) -> None:
        while not self._world.load_ends:
            await asyncio.sleep(generator.uniform(*RELEASE_SECONDS))
            if self._world.load_ends:
                return
            is_last = generator.random() < LAST_RATE
            if generator.random() < PARTIAL_RATE:
                if is_last:
                    await self._write_last(generator)
                end = next(self._attempts)
                successor = generator.choice(self._world.members), end  # it is not released
                is_first = generator.random() < 0.5
                if is_first:
                    await self.write(*successor)
                self._world.oracle.released(ShuffleKey(self.application_id, self.shuffle_id), end)
                self._world.trace(f"{self.application_id} releases {self.shuffle_id} below {end}")
                self.driver.release(self.shuffle_id, end)
                if not is_first:
                    await self.write(*successor)
                continue
            shuffle_id, self.shuffle_id = self.shuffle_id, self.shuffle_id + 1
            await asyncio.sleep(generator.uniform(0.0, PAUSE_SECONDS))  # writers end
            if is_last:
                await self._write_last(generator, shuffle_id)
            self._world.oracle.released(ShuffleKey(self.application_id, shuffle_id))
            self._world.trace(f"{self.application_id} releases {shuffle_id}")
            self.driver.release(shuffle_id)

    async def _write_last(self, generator: random.Random, shuffle_id: int | None = None) -> None:
        """Write a map output, to its commit or until about then."""
        write = self.write(self._choose(generator), shuffle_id=shuffle_id)
        if generator.random() < 0.5:
            await write
        else:
            self._run(write)
            await asyncio.sleep(generator.uniform(0.0, KILL_SECONDS))

    async def write(
        self,
        member: Member,
        attempt: int | None = None,
        *,
        shuffle_id: int | None = None,
        again: bool = False,
        is_late: bool = False,
        dies_after: float | None = None,
    ) -> SluiceError | TimeoutError | None:
        """Write one map output with new bytes; return the error that the writer got.

        Args:
            member: The TaskManager.
            attempt: Its map attempt; None: a new one.
            shuffle_id: Its shuffle; None: the current one.
            again: Whether it was written before at another TaskManager, which did not answer.
            is_late: Whether the application ends meanwhile: nothing is expected of it.
            dies_after: Seconds after which the writer is killed, unless it has ended.
        """
        if attempt is None:
            attempt = next(self._attempts)
        key = ShuffleKey(self.application_id, self.shuffle_id if shuffle_id is None else shuffle_id)
        seed = f"{self._world.plan.seed} {self.application_id} {attempt} {again}"
        output = Output(key, attempt, member.index, self.replicas, seed)
        output.to_remote = self.to_remote
        if is_late:
            output.is_released = True
        else:
            self._world.oracle.begin(output)
        began, hangs_since = self._world.loop.time(), member.hangs_since
        started = member.taskmanager
        copies = Copies(self._world, output) if self.is_synchronous else None
        to_remote = ReplicateToRemote(0, self.is_synchronous) if self.to_remote else None
        replicate = (
            ReplicatePartition(0, self.replicas, self.is_synchronous) if self.replicas > 1 else None
        )
        try:
            client = await producer(Address(member.host, DATA_PORT), self.application_id)
            if dies_after is not None:
                self._world.loop.call_later(dies_after, _kill, client)
            try:
                await write_map_output(
                    client,
                    key.shuffle_id,
                    attempt,
                    output.regions,
                    replicate=replicate,
                    to_remote=to_remote,
                )
                self._world.oracle.acknowledged(output, started)
                self._world.faults.promised(member.index)
                if copies is not None:
                    copies.check()
            finally:
                if client.lost is None:
                    client.connection.close()
        except (SluiceError, TimeoutError) as error:
            self.refused += 1
            self._world.trace(f"{output} not written at {member}: {error}")
            if (
                dies_after is None
                and not (output.is_released or output.earlier)
                and hangs_since is not None
                and hangs_since == member.hangs_since
                and began - hangs_since
                > DETECTION_SECONDS + self._world.plan.settings["health_check_seconds"]
                and self._world.faults.only_hanging_disks
            ):
                self._world.violation(
                    f"a directory of {member} hangs for {began - hangs_since:.0f} s, the other one "
                    f"works, and a write fails: {error!r}"
                )
            return error
        self.writes += 1
        self._world.trace(f"{output} written at {member}")
        return None

    async def read(
        self, output: Output, subpartition: int, holder: int, through: Member
    ) -> SluiceError | TimeoutError | None:
        """Read a subpartition of an output; return the error that the reader got."""
        ack = self.driver.acks.get(holder)
        if ack is None:
            return None
        what = f"{output}/{subpartition} of tm{holder} through {through}"
        try:
            client = await consumer(Address(through.host, DATA_PORT), self.application_id)
            try:
                sources = [(ack, [output.map_attempt_id])]
                (content,) = await read_gate(
                    client, output.key.shuffle_id, sources, subpartition, subpartition + 1
                )
            finally:
                if client.lost is None:
                    client.connection.close()
        except (SluiceError, TimeoutError) as error:
            self.refused += 1
            self._world.trace(f"{what} not read: {error}")
            return error
        self.reads += 1
        self._world.oracle.check_read(output, subpartition, content, holder, what)
        self._world.trace(f"{what} read")
        return None


def _kill(client: Client) -> None:
    """Kill the process of a client, unless it has ended."""
    if client.lost is None and not client.connection.closing:
        client.vanish()
