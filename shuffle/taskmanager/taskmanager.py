"""The TaskManager daemon: starts and stops the network environment and the HTTP port."""

import asyncio
import contextlib
import importlib.metadata
import logging
import os
import time
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

from ...protocol.errors import SluiceError
from ...protocol.identity import Credential
from ...transport.loop import start_task
from .config.taskmanager_config import TaskManagerConfig
from .http.http_served import LiveSettings, Operations
from .http.http_server import HttpServer
from .process import output
from .status.event_loop_lag import EventLoopLag
from .status.recent import RecentHistory
from .status.room import StorageRoom
from .status.status import TaskManagerState, TaskManagerStatus, data_path
from .wiring import NetworkEnvironment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from .embedded.client import EmbeddedClient
    from .http.cluster_members import ClusterMembers
    from .http.http_access import HttpAccess
    from .process.audit_file import AuditFile
    from .store.shuffle_page import ShufflePage, ShuffleQuery

logger = logging.getLogger(__name__)


class TaskManager:
    """One TaskManager.

    Args:
        config: All its settings.
        on_unlocked: Called when the lock of a directory is gone. The TaskManager refuses new
            work from then on; the caller must stop it.
        serves_http: Whether it has an HTTP port. Data processes have none: their supervisor has it.
    """

    def __init__(
        self,
        config: TaskManagerConfig,
        on_unlocked: "Callable[[], None] | None" = None,
        *,
        serves_http: bool = True,
    ) -> None:
        self.config = config = config.with_addresses()
        self._environment: NetworkEnvironment | None = None
        self._stack = AsyncExitStack()  # ends everything that runs, newest first
        self._on_unlocked = on_unlocked
        self.state: TaskManagerState = "starting"
        self._stops = False
        self._migrating: asyncio.Task[None] | None = None
        self.version = importlib.metadata.version("sluice-shuffle")
        self.http_port = 0
        self._serves_http = serves_http
        self._http: HttpServer | None = None
        self._started_at = time.monotonic()
        self.event_loop_lag = EventLoopLag()
        self._recent: RecentHistory | None = None
        self._room = StorageRoom()
        self._audit: AuditFile | None = None

    @property
    def environment(self) -> NetworkEnvironment:
        """Its network environment, from its start on.

        Raises:
            INTERNAL: It has not started, or failed to.
        """
        if self._environment is None:
            raise SluiceError("The TaskManager is not started", remedy="Await start() first")
        return self._environment

    @classmethod
    @asynccontextmanager
    async def embedded(
        cls, config: TaskManagerConfig | None = None
    ) -> "AsyncIterator[TaskManager]":
        """Run a TaskManager in this process, on the running event loop, for tasks of its own.

        ::

            async with TaskManager.embedded() as taskmanager:
                client = taskmanager.client("app")
                async with client.open_result_partition(1, 0, 4) as partition:
                    ...

        Others reach it like any TaskManager. At the end it drains for ``drain_timeout_seconds``, in
        which finished pipelined partitions are read, then stops.

        Args:
            config: All its settings. By default it takes free ports of the loopback, and its data
                lies in temporary directories that are removed at the end.

        Raises:
            SluiceError: An address or the storage cannot be used.

        Cancellation: the TaskManager stops, without the time to drain.
        """
        from .embedded.temporary_config import temporary_config  # a daemon does not need it

        with temporary_config() if config is None else nullcontext(config) as settings:
            taskmanager = cls(settings)
            await taskmanager.start()
            try:
                yield taskmanager
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(settings.drain_timeout_seconds):
                        await taskmanager.drain(to_stop=True)
            finally:
                await taskmanager.stop()

    def client(
        self,
        application_id: str,
        *,
        credential: str | Credential | None = None,
        buffer_timeout_seconds: float = 0.1,
    ) -> "EmbeddedClient":
        """Make a client for tasks that run in this process, on the event loop of the TaskManager.

        Args:
            application_id: Partitions are found, and released, by application.
            credential: As of :meth:`~sluice.shuffle.client.client.ShuffleClient.connect`. That of
                the process environment is for TaskManagers that have a cluster secret; one without
                cannot check it, and takes no notice of it.
            buffer_timeout_seconds: Time after which a buffer that is not full is sent; 0: after
                every call, -1: only full buffers are sent.

        Raises:
            InvalidCredential: The text or the file has no credential.
            AuthenticationFailed: The application may not use this TaskManager.
        """
        from ..client.credentials import client_credential  # a daemon loads no client

        names = os.environ if self.config.auth.cluster_secret_files else {}
        proven = client_credential(credential, application_id, names)
        return self.environment.client(application_id, proven, buffer_timeout_seconds)

    @property
    def uptime_seconds(self) -> float:
        """Time since this object was made."""
        return time.monotonic() - self._started_at

    async def start(self) -> None:
        """Start serving.

        Raises:
            SluiceError: An address or the storage cannot be used, or the start failed otherwise;
                nothing is left open.
        """
        try:
            await self._start()
        except SluiceError:
            raise
        except Exception as error:
            logger.debug("the start failed", exc_info=True)
            raise SluiceError(
                f"The TaskManager could not start: {type(error).__name__}: {error}",
                remedy="Start it with log_level = debug to see where it failed",
            ) from error

    async def _start(self) -> None:
        async with AsyncExitStack() as stack:
            path = self.config.http.audit_log_path
            if self._serves_http and path is not None:
                from .process.audit_file import AuditFile  # most TaskManagers have none

                self._audit = await asyncio.to_thread(AuditFile.open, path)
                stack.push_async_callback(asyncio.to_thread, self._audit.close)
            environment = await NetworkEnvironment.build(self.config, self._unlocked)
            self._environment = environment
            self._recent = RecentHistory(environment)
            self.event_loop_lag.on_measured = self._recent.measured
            http = None
            if self._serves_http:
                http = HttpServer(
                    self.config.http,
                    self.status,
                    lambda migrate: self.drain(migrate=migrate),
                    lambda: self._http_access(environment),
                    environment.counters.http_dropped,
                    Operations(
                        self.undrain,
                        self.inspect,
                        lambda: self._cluster_members(environment),
                        LiveSettings(lambda: self.config, self.change),
                    ),
                )
                stack.push_async_callback(http.close)  # it shows the state until the end
            stack.callback(self._stopped)
            stack.push_async_callback(environment.close)
            stack.push_async_callback(self._end_migration)
            stack.callback(self.event_loop_lag.stop)
            if http is not None:
                self._http, self.http_port = http, await http.start()
                environment.http_port = self.http_port
                environment.reports.own_changed()
            self.event_loop_lag.start()
            self.state = "ready"
            self._stack = stack.pop_all()
        logger.info(
            "TaskManager %s %s: data port %s, %ssocket %s, %d map outputs adopted, data path %s",
            self.environment.taskmanager_id,
            "is ready" if self._serves_http else "is ready as a data process",
            self._shown_data_port(),
            f"HTTP port {self.http_port}, " if self._serves_http else "",
            self.config.transport.socket_path,
            self.environment.counters.map_outputs_adopted,
            data_path(),
        )
        if self.config.place[0] == 0:
            logger.log(*self._who_may_connect())

    async def inspect(self, query: "ShuffleQuery") -> "ShufflePage":
        """Return map outputs of a shuffle, region by region.

        Raises:
            UnknownShuffle: No application has the name, or several have it.

        Cancellation: safe.
        """
        from .store.shuffle_page import take_page  # most daemons are never asked

        return await take_page(self.environment.store, query)

    def _shown_data_port(self) -> str:
        address, port = self.environment.address, self.environment.listener.port
        return str(address) if address.port == port else f"{address} (here {port})"

    def _http_access(self, environment: NetworkEnvironment) -> "HttpAccess":
        from .http.http_access import HttpAccess  # runs in the HTTP thread, as its import does

        return HttpAccess.of(
            self.config,
            environment.access.secrets,
            environment.address.host,
            environment.counters.http_refused,
        )

    def _cluster_members(self, environment: NetworkEnvironment) -> "ClusterMembers":
        from .http.cluster_members import ClusterMembers  # as above

        return ClusterMembers.of(self.config, environment.access.secrets)

    def _who_may_connect(self) -> tuple[int, str]:
        """Return severity and text of what users of this TaskManager need to know."""
        auth = self.config.auth
        if auth.allow_anonymous:
            return logging.WARNING, (
                "allow_anonymous is set: everyone who reaches a port can read, write and remove "
                "data"
            )
        if auth.cluster_secret_files:
            path = auth.cluster_secret_files[0]
            return logging.INFO, (
                "applications need a credential; make one with: "
                f"sluice token create --secret-file {path} --subject NAME"
            )
        return logging.INFO, (
            "there is no cluster secret: only this host is served; for more hosts: "
            "sluice secret create FILE, and cluster_secret_files = [FILE] on each"
        )

    async def drain(self, *, to_stop: bool = False, migrate: bool = False) -> None:
        """Refuse new map outputs, and wait until nothing is written, read or waits for a reader.

        The TaskManager goes on serving readers afterwards. Cancelling ends the wait and not the
        draining; :meth:`undrain` ends the wait for a move.

        Args:
            to_stop: Whether it is to stop, so that :meth:`undrain` no longer changes anything.
            migrate: Whether to move all map outputs to other TaskManagers before. Those that no
                other one takes stay; the status tells how many, and why.
        """
        self._stops |= to_stop
        if not self.environment.is_draining:
            self.state = "draining"
            self.environment.drain()
            if self._http is not None:
                self._http.forget()
            logger.info("TaskManager %s drains", self.environment.taskmanager_id)
        while migrate:
            if self._migrating is None or self._migrating.done():
                self._migrating = start_task(self.environment.migrate())
            migrating = self._migrating
            await asyncio.wait({migrating})
            if not migrating.cancelled():
                migrating.result()
            elif not self._stops:  # it takes new work again
                return
            if not self.environment.is_busy:
                return
            # Readers take time, in which a receiver may be lost: ask the receivers once more.
            await self.environment.wait_idle()
        await self.environment.wait_idle()

    async def _end_migration(self) -> None:
        if self._migrating is not None:
            self._migrating.cancel()
            await asyncio.gather(self._migrating, return_exceptions=True)
            self._migrating = None

    async def undrain(self) -> None:
        """Take new map outputs again, unless the TaskManager is to stop. Idempotent.

        Map outputs that have moved are read here again too.
        """
        if self.state == "draining" and not self._stops:
            await self._end_migration()
        if self.state == "draining" and not self._stops:  # it may have been told so meanwhile
            self.environment.undrain()
            self.state = "ready"
            if self._http is not None:
                self._http.forget()
            logger.info("TaskManager %s takes new work again", self.environment.taskmanager_id)

    async def change(self, changes: "Mapping[str, object]") -> None:
        """Use another ``log_level``, or other ``quotas``, until SIGHUP loads the configuration.

        Args:
            changes: Valid values by name, for all data processes.
        """
        self.config = self.config.model_copy(update=changes)
        self.apply(self.config)

    def apply(self, config: TaskManagerConfig) -> None:
        """Use the quotas, log level and log format of a configuration for this process."""
        update = {name: getattr(config, name) for name in ("quotas", "log_level", "log_format")}
        self.config = self.config.model_copy(update=update)
        self.environment.set_quotas(config.quotas)
        output.change(config.log_level, config.log_format)

    def _unlocked(self, found: str) -> None:
        """Refuse new work: another TaskManager may start on a directory without a lock."""
        logger.error(
            "storage directory %s, so another TaskManager may take the directory: this one ends. "
            "Exclude the directory from cleaners of temporary files",
            found,
        )
        self._stops = True  # it takes no new work again
        self.state = "draining"
        self.environment.drain()
        if self._http is not None:
            self._http.forget()
        if self._on_unlocked is not None:
            self._on_unlocked()

    def status(self) -> TaskManagerStatus:
        """Take a snapshot of everything."""
        from .status.snapshot import Vitals, take_snapshot  # the HTTP thread has loaded it

        vitals = Vitals(
            self.state,
            self.version,
            self.uptime_seconds,
            self.event_loop_lag,
            self._room,
            self._recent,
            output.dropped_lines(),
            0 if self._audit is None else self._audit.dropped_lines,
        )
        return take_snapshot(self.environment, vitals)

    async def stop(self) -> None:
        """Refuse new map outputs, flush and close connections, close files.

        Idempotent, also before a start and after one that failed. What follows a step that fails
        is closed nevertheless; the last error is raised.
        """
        if self.state == "stopped":
            return
        if self._environment is None:
            self.state = "stopped"
            return
        self._stops = True
        self.state = "draining"
        self._environment.drain()
        if self._http is not None:
            self._http.forget()
        await self._stack.aclose()
        logger.info("TaskManager %s has stopped", self._environment.taskmanager_id)

    def _stopped(self) -> None:
        self.state = "stopped"
