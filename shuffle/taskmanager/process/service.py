"""Runs a TaskManager as a process: signals, exit code, and the steps of the stop."""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ....transport import descriptors
from ....transport import loop as event_loop
from ....transport.access import SecretUnusable, read_secrets
from ....transport.errors import code_field
from ....transport.loop import start_task
from ..config.taskmanager_config import ConfigError, TaskManagerConfig
from ..taskmanager import TaskManager
from .signals import FAILURE, STORAGE_SECONDS, ProcessSignals, closing_seconds, end_process

if TYPE_CHECKING:
    from .controlled import Supervised
    from .service_manager import ServiceManager

logger = logging.getLogger(__name__)


def run(
    config: TaskManagerConfig,
    load_again: Callable[[], TaskManagerConfig],
    supervised: "Supervised | None" = None,
    manager: "ServiceManager | None" = None,
) -> int:
    """Run a TaskManager until SIGTERM or SIGINT.

    Args:
        config: All settings.
        load_again: Reads the configuration again; may raise ConfigError.
        supervised: The supervisor of which this is a data process.
        manager: The service manager to notify.

    A signal starts these steps:

    1. Drain, for ``drain_timeout_seconds`` at most: new map outputs are refused, and transfers that
       have begun may end. With ``drain_migrate`` all map outputs move to other TaskManagers.
    2. Flush and close connections, then close the storage. Both have deadlines of their own.

    After the deadlines, or at a second signal, the process ends at once with exit code 1, even if
    its threads hang. Committed data is safe in either case. The process must end after this
    function: the deadline applies until then.

    If the lock of a directory is gone, the TaskManager does not drain and the exit code is 1,
    because another TaskManager may use the directory then. A data process ends with its supervisor,
    so that the next supervisor finds its directories unlocked.

    SIGHUP loads the TLS files again, and the quotas, log level and format, cluster secrets and
    revoked tokens of the configuration. The limit of open files becomes the highest that the
    process may have.

    Returns:
        The exit code: 0 after an orderly end.

    Raises:
        SluiceError: The TaskManager could not start.
    """
    descriptors.raise_limit()
    signals = ProcessSignals(config.drain_timeout_seconds + closing_seconds(config))
    signals.start()
    serving = _serve(config, load_again, signals, supervised, manager)
    return event_loop.run(serving, config.transport.event_loop)


async def _serve(
    config: TaskManagerConfig,
    load_again: Callable[[], TaskManagerConfig],
    signals: ProcessSignals,
    supervised: "Supervised | None",
    manager: "ServiceManager | None",
) -> int:
    stop = asyncio.Event()
    unlocked = asyncio.Event()
    taskmanager = TaskManager(config, unlocked.set, serves_http=supervised is None)
    loop = asyncio.get_running_loop()
    reload = _Reloads(taskmanager, load_again).request

    def on_stop() -> None:
        stop.set()
        if manager is not None:
            manager.stopping(config.drain_timeout_seconds + closing_seconds(config))

    signals.notify(loop, on_stop, reload)
    try:
        await taskmanager.start()
        if manager is not None:
            manager.ready(lambda: taskmanager.state)
        answering = start_task(_answer(supervised, taskmanager, signals.stop, reload, load_again))
        drained = start_task(_drain_at(stop, taskmanager, config))
        ended = start_task(unlocked.wait())
        await asyncio.wait({drained, ended}, return_when=asyncio.FIRST_COMPLETED)
        for each in (drained, ended):
            each.cancel()
        signals.end_within(closing_seconds(config))
        await taskmanager.stop()
        answering.cancel()
        if unlocked.is_set():
            return FAILURE
        await drained
    except BaseException:
        signals.end_within(STORAGE_SECONDS)
        raise
    return 0


async def _answer(
    supervised: "Supervised | None",
    taskmanager: TaskManager,
    stop: Callable[[], None],
    reload: Callable[[], None],
    share: Callable[[], TaskManagerConfig],
) -> None:
    """Answer the supervisor, if there is one, and end with it."""
    if supervised is not None:
        await supervised.serve(taskmanager, stop, reload, lambda: taskmanager.apply(share()))
        end_process("the supervisor is gone; committed data is safe")


class _Reloads:
    """Reloads TLS files, quotas and secrets, in a thread and one reload at a time."""

    def __init__(
        self, taskmanager: TaskManager, load_again: Callable[[], TaskManagerConfig]
    ) -> None:
        self._taskmanager = taskmanager
        self._load_again = load_again
        self._wanted = False
        self._task: asyncio.Task[None] | None = None

    def request(self) -> None:
        """Reload; if a reload is under way, reload once more after it."""
        if self._taskmanager.state == "starting":
            logger.info("SIGHUP received: the files are being read for the first time")
            return
        self._wanted = True
        if self._task is None or self._task.done():
            self._task = start_task(self._run())

    async def _run(self) -> None:
        while self._wanted:
            self._wanted = False
            await self._reload()

    async def _reload(self) -> None:
        environment = self._taskmanager.environment
        tls = environment.listener.tls
        if tls is None:
            logger.info("SIGHUP received: loading the quotas and the secrets again")
        else:
            logger.info("SIGHUP received: loading the quotas, the secrets and the TLS files again")
            await asyncio.to_thread(tls.reload)  # logs the result
        try:
            config = await asyncio.to_thread(self._load_again)
        except ConfigError as error:
            for problem in error.problems:
                logger.error(
                    "the quotas and the secrets stay as they are: %s",
                    problem,
                    extra=code_field(error),
                )
            return
        self._taskmanager.apply(config)
        logger.info("the quotas are those of the configuration now")
        try:
            secrets = await asyncio.to_thread(read_secrets, config.auth)
            proves_another = environment.access.replace_secrets(secrets)
        except SecretUnusable as error:
            logger.error(
                "the secrets and the revoked tokens stay as they are: %s",
                error,
                extra=code_field(error),
            )
            return
        if proves_another:
            environment.peers.retire()  # so that no reader needs the old secret for long
        environment.listener.close_revoked()
        if secrets is not None:
            logger.info(
                "%d cluster secrets are accepted now, %d tokens are revoked",
                len(secrets.accepted),
                len(secrets.revoked),
            )


async def _drain_at(
    stop: asyncio.Event, taskmanager: TaskManager, config: TaskManagerConfig
) -> None:
    """Wait for the signal, then drain.

    Cancellation: safe.
    """
    await stop.wait()
    drain_seconds = config.drain_timeout_seconds
    try:
        async with asyncio.timeout(drain_seconds):
            await taskmanager.drain(to_stop=True, migrate=config.drain_migrate)
    except TimeoutError:
        logger.warning("drain timed out after %g s; aborting transfers", drain_seconds)
        if config.drain_migrate:
            logger.warning("%s", taskmanager.environment.copies.migration.progress)
