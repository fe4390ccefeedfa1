"""Several data processes as one TaskManager: one status, one HTTP port, one drain, one stop.

The supervisor holds no data. It starts the processes, starts one again that has ended, and is the
only one of them that serves HTTP. If it is killed, the processes end.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging
import sys
import time
from typing import TYPE_CHECKING

from msgspec import structs

from ....protocol.errors import SluiceError
from ....transport import loop as event_loop
from ....transport.access import Access, SecretUnusable, read_secrets
from ....transport.errors import code_field
from ....transport.loop import run_together, start_task
from ...counters import BoundedCounts
from ...wait_status import merged_waits
from ..config.taskmanager_config import ConfigError, TaskManagerConfig
from ..http.http_served import MAX_DRAIN_WAIT_SECONDS, LiveSettings, Operations
from ..http.http_server import HttpServer
from ..metrics.published_snapshot import DataLoopSilent
from ..process import output
from ..process.control import Request
from ..process.signals import FAILURE, ProcessSignals, closing_seconds
from ..status.recent import merged_samples
from ..store.health.directories import require_private
from .combined_status import combine, process_status
from .data_process import DataProcess, DataProcessEnded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..http.cluster_members import ClusterMembers
    from ..http.http_access import HttpAccess
    from ..process.audit_file import AuditFile
    from ..process.service_manager import ServiceManager
    from ..status.status import TaskManagerState, TaskManagerStatus
    from ..store.shuffle_page import ShufflePage, ShuffleQuery

logger = logging.getLogger(__name__)

ENDING_SECONDS = 5.0
"""Time beyond their own deadline in which the data processes must have ended."""


class ProcessesBehind(SluiceError):
    """Data processes that serve have not taken a change over."""


class Supervisor:
    """A TaskManager that consists of several data processes.

    Args:
        config: All settings; each process takes its share.
        processes: How many processes there are.
        command: The command of this TaskManager.
    """

    def __init__(self, config: TaskManagerConfig, processes: int, command: Sequence[str]) -> None:
        self.config = config = config.with_addresses()
        self.state: TaskManagerState = "starting"
        self._processes = [
            DataProcess(
                index, processes, command, lambda: self.config.model_dump_json(), self._on_ready
            )
            for index in range(processes)
        ]
        self._started_at = time.monotonic()
        self._version = importlib.metadata.version("sluice-shuffle")
        self._access = Access.open(config.auth, lambda _: False)
        self._refused = BoundedCounts()
        self._dropped = BoundedCounts()
        self._audit: AuditFile | None = None
        self._http = HttpServer(
            config.http,
            self.status,
            lambda migrate: self.drain(migrate=migrate),
            self._http_access,
            self._dropped,
            Operations(
                self.undrain,
                self.inspect,
                self._cluster_members,
                LiveSettings(lambda: self.config, self.change),
            ),
        )
        # The HTTP thread waits for the whole of it.
        self._answer_seconds = config.http.http_answer_timeout_seconds / 2
        self.http_port = 0
        self._draining: asyncio.Task[None] | None = None
        self._migrates = False
        self._stops = False

    async def start(self) -> None:
        """Start all processes, and serve HTTP when all of them serve.

        Raises:
            SluiceError: One of them could not start, and has logged the reason; or the HTTP port
                cannot be used. All have ended.

        Cancellation: kills all processes.
        """
        try:
            await asyncio.to_thread(self._make_directories)
            for each in self._processes:
                each.start()
            await asyncio.gather(*(each.first_start for each in self._processes))
            if (path := self.config.http.audit_log_path) is not None:
                from ..process.audit_file import AuditFile  # most TaskManagers have none

                self._audit = await asyncio.to_thread(AuditFile.open, path)
            self.http_port = await self._http.start()
        except BaseException:
            for each in self._processes:
                each.kill()
            await self._ended()
            self._close_audit()
            raise
        self.state = "ready"
        status = await self.status()
        logger.info(
            "TaskManager %s is ready: data port %s, HTTP port %d, socket %s, %d map outputs "
            "adopted, data path %s, %d processes",
            status.taskmanager_id,
            status.address,
            self.http_port,
            status.socket_path,
            status.counters.map_outputs_adopted,
            status.data_path,
            len(self._processes),
        )

    async def status(self) -> TaskManagerStatus:
        """Ask all processes for a snapshot, and combine them.

        A process that does not answer in time counts with its last one.

        Raises:
            DataLoopSilent: None of them answers.

        Cancellation: safe.
        """
        await self._ask_all(Request())
        if not any(each.ready.is_set() and not each.is_silent for each in self._processes):
            raise DataLoopSilent(self._answer_seconds)
        first = self._processes[0].status
        running = [each.status for each in self._processes if each.ready.is_set()]
        whole = combine(running, [each.remains for each in self._processes])
        whole.counters.http_dropped = BoundedCounts(self._dropped)
        whole.counters.http_refused = BoundedCounts(self._refused)
        whole.counters.audit_lines_dropped = 0 if self._audit is None else self._audit.dropped_lines
        waits, waits_omitted = merged_waits(whole.waits, whole.waits_omitted)
        return structs.replace(
            whole,
            waits=waits,
            waits_omitted=waits_omitted,
            recent=merged_samples(whole.recent),
            taskmanager_id=first.taskmanager_id,
            address=first.address,
            socket_path=first.socket_path,
            version=self._version,
            state=self.state,
            uptime_seconds=time.monotonic() - self._started_at,
            processes=tuple(
                process_status(
                    each.index,
                    each.pid,
                    each.starts - 1,
                    each.status,
                    each.last_exit,
                    is_silent=each.is_silent,
                )
                for each in self._processes
            ),
        )

    async def drain(self, *, migrate: bool = False) -> None:
        """Let all processes drain, and wait until nothing is being written or read.

        A process that does not run is waited for: it may have map outputs.

        Args:
            migrate: Whether all of them move their map outputs to other TaskManagers.

        Raises:
            SluiceError: A process failed to.

        Cancellation: ends the wait and not the draining.
        """
        self.state = "draining"
        self._http.forget()
        # First, so that no process moves anything to another one.
        await self._ask_all(Request("drain"))
        if self._draining is None or self._draining.done() or migrate > self._migrates:
            self._end_drain()
            self._migrates = migrate
            self._draining = start_task(self._drain_all(migrate))
        draining = self._draining
        await asyncio.wait({draining})
        if not draining.cancelled():  # by an undrain, or a stop
            draining.result()

    async def _drain_all(self, migrate: bool) -> None:
        request = Request("drain", migrate, MAX_DRAIN_WAIT_SECONDS)
        drained: dict[DataProcess, int] = {}
        """The starts of each process that has drained."""

        async def drain(process: DataProcess) -> None:
            busy = True
            while busy:
                await process.ready.wait()
                starts = process.starts
                with contextlib.suppress(DataProcessEnded, TimeoutError):
                    busy = (await process.ask(request, self._answer_seconds)).busy
            drained[process] = starts

        def behind() -> list[DataProcess]:
            return [
                each
                for each in self._processes
                if not each.ready.is_set() or drained.get(each) != each.starts
            ]

        while left := behind():  # a process may end after it has drained
            await run_together(drain(each) for each in left)

    def _end_drain(self) -> None:
        if self._draining is not None:
            self._draining.cancel()

    async def undrain(self) -> None:
        """Let all processes take new work again, unless the TaskManager stops."""
        if self.state == "draining" and not self._stops:
            self.state = "ready"
            self._migrates = False
            self._end_drain()
            await self._ask_all(Request("undrain"))
            self._http.forget()

    async def inspect(self, query: ShuffleQuery) -> ShufflePage:
        """Return map outputs of a shuffle in all processes, region by region.

        Raises:
            UnknownShuffle: No process knows the application, or several have the name.
            DataLoopSilent: A process that serves has not answered.
            SluiceError: A process has ended before it answered, or failed to.

        Cancellation: safe.
        """
        from . import inspection  # most supervisors are never asked

        return await inspection.inspect(self._processes, query, self._answer_seconds)

    async def change(self, changes: Mapping[str, object]) -> None:
        """Let all processes use another log level, or their shares of other quotas, until SIGHUP.

        A process that is started again uses them too.

        Args:
            changes: ``log_level`` or ``quotas``, valid values by name.

        Raises:
            ProcessesBehind: Some serve and have not said that they use it.

        Cancellation: safe; all processes get the change.
        """
        self.config = self.config.model_copy(update=changes)
        output.change(self.config.log_level, self.config.log_format)
        behind = await self._ask_all(Request("change", config=self.config.model_dump_json()))
        if behind:
            raise ProcessesBehind(
                f"Not every data process has taken the change over: {'; '.join(behind)}",
                remedy="Send it again, and see the processes with: sluice status",
            )

    async def reload(self, load_again: Callable[[], TaskManagerConfig]) -> None:
        """Let all processes load their files again, with the quotas and secrets as they are now.

        What else has changed is for the next start. A configuration with mistakes is not used.

        Cancellation: safe.
        """
        request = Request("reload")
        try:
            self.config = self.config.reloaded(await asyncio.to_thread(load_again))
            request = Request("reload", config=self.config.model_dump_json())
            output.change(self.config.log_level, self.config.log_format)
        except ConfigError as error:
            for problem in error.problems:
                logger.error(
                    "the configuration stays as it is: %s", problem, extra=code_field(error)
                )
        await self._ask_all(request)
        try:
            self._access.replace_secrets(await asyncio.to_thread(read_secrets, self.config.auth))
        except SecretUnusable as error:
            logger.error(
                "the secrets of the HTTP port stay as they are: %s", error, extra=code_field(error)
            )

    async def stop(self) -> bool:
        """Stop all processes in order, each of which drains; return whether all did.

        Cancellation: kills them.
        """
        self._stops = True
        self._end_drain()
        self.state = "draining"
        self._http.forget()
        await self._ask_all(Request("drain"))
        for each in self._processes:
            each.stop()
        in_order = await self._ended()
        self.state = "stopped"
        await self._http.close()
        await asyncio.to_thread(self._close_audit)
        logger.info("The TaskManager has stopped")
        return in_order

    def _close_audit(self) -> None:
        if self._audit is not None:
            self._audit.close()

    async def _ended(self) -> bool:
        await run_together(each.ended() for each in self._processes)
        return all(each.ended_in_order for each in self._processes)

    async def _ask_all(self, request: Request) -> list[str]:
        """Ask all processes that serve; return why others of them have not done it.

        One that ends meanwhile is not among those: it starts again with the present configuration.
        """
        behind: list[str] = []

        async def ask(process: DataProcess) -> None:
            try:
                await process.ask(request, self._answer_seconds)
            except TimeoutError:
                seconds = self._answer_seconds
                behind.append(f"data process {process.index} has not answered for {seconds:g} s")
            except DataProcessEnded:
                pass
            except SluiceError as error:
                behind.append(str(error))

        await run_together(ask(each) for each in self._processes if each.ready.is_set())
        return behind

    def _on_ready(self, process: DataProcess) -> None:
        """Let a process that has started again do what the others were told meanwhile."""
        config = self.config.model_dump_json()
        if process.configured != config:
            process.tell(Request("change", config=config))
        if self.state == "draining":
            process.tell(Request("drain", self._migrates))

    def _make_directories(self) -> None:
        """Make the directories that contain those of the processes. Blocks.

        A directory that cannot be used is left to the processes, which say so.
        """
        storage = self.config.storage
        for directory in (*storage.data_directories, storage.memory_directory):
            if directory is not None:
                with contextlib.suppress(OSError, SluiceError):
                    require_private(directory, 0o700)

    def _http_access(self) -> HttpAccess:
        from ..http.http_access import HttpAccess  # runs in the HTTP thread, as its import does

        host = self.config.transport.reachable_host()
        return HttpAccess.of(self.config, self._access.secrets, host, self._refused)

    def _cluster_members(self) -> ClusterMembers:
        from ..http.cluster_members import ClusterMembers  # as above

        return ClusterMembers.of(self.config, self._access.secrets)


def run(
    config: TaskManagerConfig,
    processes: int,
    load_again: Callable[[], TaskManagerConfig],
    manager: ServiceManager | None = None,
) -> int:
    """Run a TaskManager of several data processes until SIGTERM or SIGINT.

    A signal stops the processes as :func:`~..process.service.run` says; one during the start takes
    effect after it. A second one ends them at once. SIGHUP reloads what it reloads in one process.

    Args:
        config: All settings.
        processes: How many data processes there are.
        load_again: Reads the configuration again; may raise ConfigError.
        manager: The service manager to notify.

    Returns:
        The exit code: 0 after an orderly end.

    Raises:
        SluiceError: The TaskManager could not start.
    """
    signals = ProcessSignals(stop_seconds(config))
    signals.start()
    command = [sys.executable, *sys.orig_argv[1:]]
    supervising = _supervise(config, processes, command, load_again, signals, manager)
    return event_loop.run(supervising, "asyncio")


def stop_seconds(config: TaskManagerConfig) -> float:
    """Return the time that a stop may take after its signal."""
    return config.drain_timeout_seconds + closing_seconds(config) + ENDING_SECONDS


async def _supervise(
    config: TaskManagerConfig,
    processes: int,
    command: Sequence[str],
    load_again: Callable[[], TaskManagerConfig],
    signals: ProcessSignals,
    manager: ServiceManager | None,
) -> int:
    stop = asyncio.Event()
    supervisor = Supervisor(config, processes, command)
    reloading: set[asyncio.Task[None]] = set()

    def reload() -> None:
        if supervisor.state == "starting":
            logger.info("SIGHUP received: the files are being read for the first time")
            return
        task = start_task(supervisor.reload(load_again))
        reloading.add(task)
        task.add_done_callback(reloading.discard)

    signals.notify(asyncio.get_running_loop(), stop.set, reload)
    await supervisor.start()
    if manager is not None:
        manager.ready(lambda: supervisor.state)
    await stop.wait()
    if manager is not None:
        manager.stopping(stop_seconds(config))
    return 0 if await supervisor.stop() else FAILURE
