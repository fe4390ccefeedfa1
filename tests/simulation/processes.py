"""TaskManagers as simulated processes: they start, stop, are killed, and lose power."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from sluice.shuffle.taskmanager.taskmanager import TaskManager
from tests.simulation.loop import Process
from tests.support.mini_cluster import taskmanager_config

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tests.simulation.world import World

DATA_PORT = 7337
DATA_DIRECTORIES = 2


def host_of(index: int) -> str:
    """Return the address of a TaskManager by its number."""
    return f"10.0.0.{index + 1}"


class Member:
    """One TaskManager of the cluster, on a host of its own, over all its starts.

    Args:
        world: The simulation.
        index: Its number, from 0.
        settings: Keys of its configuration.
    """

    def __init__(self, world: World, index: int, settings: dict[str, Any]) -> None:
        self.index = index
        self.host = host_of(index)
        self.process: Process | None = None
        self.taskmanager: TaskManager | None = None
        """None while it does not run."""
        self.has_moved = False
        """Whether it said, before it stopped, that all its map outputs have moved."""
        self._world = world
        given = dict(settings)
        if given.pop("names_taskmanagers", False):
            hosts = map(host_of, range(world.plan.members))
            given["taskmanagers"] = tuple(f"{host}:{DATA_PORT}" for host in hosts)
        top = world.directory / f"tm{index}"
        self.disks = [world.disks.add(top / f"data{each}") for each in range(DATA_DIRECTORIES)]
        self.memory = world.disks.add(top / "memory", is_memory=True)
        self._config = taskmanager_config(
            top,
            bind_host=self.host,
            data_port=DATA_PORT,
            allow_anonymous=True,
            data_directories=tuple(disk.path for disk in self.disks),
            memory_directory=self.memory.path,
            **given,
        )
        self._clock_offset = 0.0
        self.boots = 0
        """Number of power cuts of its host."""
        self._stopping: Process | None = None

    def __repr__(self) -> str:
        return f"tm{self.index}"

    @property
    def hangs_since(self) -> float | None:
        """Virtual time since which some of its disks hang while the others work; None: not so."""
        hanging = [disk for disk in self.disks if disk.hangs]
        since = max(disk.changed_at for disk in self.disks)
        return since if 0 < len(hanging) < len(self.disks) else None

    @property
    def has_disk_faults(self) -> bool:
        """Whether one of its disks hangs, fails, or is slow or full."""
        return any(disk.hangs or disk.fails or disk.is_slow or disk.is_full for disk in self.disks)

    async def start(self) -> None:
        """Start it on its directories; an error of the start is traced."""
        if self.process is not None:
            return
        self._world.network.down_hosts.discard(self.host)
        self._world.network.resend()
        self.process = process = Process(f"tm{self.index}", self.host)
        process.clock_offset = self._clock_offset
        process.boot_id = f"boot-{self.boots}"
        self.has_moved = False

        async def start() -> TaskManager:
            taskmanager = TaskManager(self._config, serves_http=False)
            await taskmanager.start()
            return taskmanager

        had_faults = self.has_disk_faults
        started = await self.run(start())
        if process is not self.process:
            return  # killed meanwhile
        if isinstance(started, BaseException):
            self._world.trace(f"{self} does not start: {started}")
            self._end()
        else:
            self.taskmanager = started
            self._world.trace(f"{self} runs")
            self._world.oracle.check_adopted(self, had_faults=had_faults)

    async def stop(self, *, migrate: bool = False) -> None:
        """Stop it in good order, after a drain that may move its map outputs."""
        taskmanager, process = self.taskmanager, self.process
        if taskmanager is None or process is None or process is self._stopping:
            return
        self._stopping = process
        if migrate:
            await self._drain(taskmanager)
        self._world.trace(f"{self} stops")
        began = self._world.loop.time()
        ended = await self.run(taskmanager.stop())
        if self.process is process:
            if isinstance(ended, BaseException):
                self._world.violation(f"{self} does not stop: {ended!r}")
            # A stop waits for a slow disk only for a while; the end of the process closes the rest.
            waits = any(
                disk.hangs or disk.is_slow or disk.changed_at >= began for disk in self.disks
            )
            files, sockets = len(process.descriptors), self._world.network.sockets_of(process)
            if (files or sockets) and not waits:
                self._world.violation(f"{self} stopped with {files} files and {sockets} sockets")
            self._world.network.process_died(process, silently=False)
            self._end()

    async def drain(self, seconds: float) -> None:
        """Drain it, move its map outputs, and let it take work again after a while."""
        taskmanager, process = self.taskmanager, self.process
        if taskmanager is None or process is self._stopping:
            return
        await self._drain(taskmanager)
        await asyncio.sleep(seconds)
        if self.process is process is not self._stopping:
            await self.run(taskmanager.undrain())
            self.has_moved = False
            self._world.trace(f"{self} takes work again")

    async def _drain(self, taskmanager: TaskManager) -> None:
        self._world.trace(f"{self} drains and moves its map outputs")

        async def drain() -> None:
            async with asyncio.timeout(60):
                await taskmanager.drain(migrate=True)

        ended = await self.run(drain())
        self._world.trace(f"{self} drained: {ended if ended is None else repr(ended)}")
        if ended is None and self.taskmanager is taskmanager:
            progress = taskmanager.environment.copies.migration.progress
            self._world.trace(f"{self}: {progress}")
            if not progress.left:
                self.has_moved = True
                self._world.oracle.check_moved(self.index)
            elif self._world.faults.begun == 1 and not self._world.oracle.has_conflict(self.index):
                self._world.violation(f"{self} moves not all, and nothing disturbs: {progress}")

    def kill(self, *, power: bool = False) -> None:
        """Kill it; a power cut takes its host, its memory tier and part of its writes too."""
        if self.process is None:
            return
        network = self._world.network
        self._world.trace(f"{self} {'loses power' if power else 'is killed'}")
        if power:
            network.down_hosts.add(self.host)
        network.process_died(self.process, silently=power)
        network.watch_silence()
        kept = self._world.oracle.synced_at(self) if power else []
        self._world.oracle.dies(self)
        self._end()
        self._world.oracle.killed(self.index)
        if power:
            self.boots += 1
            for disk in (*self.disks, self.memory):
                disk.lose_power()
            self._world.oracle.power_cut(self.index, kept)

    def wipe(self) -> None:
        """Remove all its data: its host is replaced. It must not run."""
        for disk in (*self.disks, self.memory):
            disk.wipe()
        self._world.oracle.damaged(self.index)

    def jump_clock(self, seconds: float) -> None:
        """Set the wall clock of its host."""
        self._clock_offset += seconds
        if self.process is not None:
            self.process.clock_offset = self._clock_offset

    def heal(self) -> None:
        """End the faults of its disks."""
        for disk in self.disks:
            disk.heal()

    async def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the process; return its result or error, None if it was killed."""
        process = self.process
        if process is None:
            work.close()
            return None
        died = self._world.loop.create_future()
        process.deaths.append(died)
        task: Any = self._world.loop.create_task(work, context=process.context.copy())
        task.process = process
        await asyncio.wait({task, died}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return None
        return task.exception() or task.result()

    def _end(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.buried.append(self.taskmanager)
            self._world.loop.bury(process)
            self._world.disks.close_all(process)
            self._world.graveyard.append(process)
            for died in process.deaths:
                if not died.done():
                    died.set_result(None)
        self.taskmanager = None
