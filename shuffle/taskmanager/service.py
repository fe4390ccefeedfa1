"""Runs a TaskManager as a process: signals, exit code, and the steps of the stop."""

import asyncio
import logging
import signal
from collections.abc import Callable

from ...transport import descriptors
from ...transport import loop as event_loop
from .config import ConfigError, TaskManagerConfig
from .taskmanager import TaskManager

_log = logging.getLogger(__name__)

STORAGE_SECONDS = 10.0
"""Time that threads get to end their writes when everything else has ended."""


def run(config: TaskManagerConfig, load_again: Callable[[], TaskManagerConfig]) -> int:
    """Run a TaskManager until SIGTERM or SIGINT.

    Args:
        config: All settings.
        load_again: Reads the configuration anew; may raise ConfigError.

    A signal starts these steps:

    1. Drain, for ``drain_timeout_seconds`` at most: new map outputs are refused, and transfers that
       have begun may end. With ``drain_migrate`` all map outputs move to other TaskManagers.
    2. Flush and close connections, then close the storage. Both have deadlines of their own.

    When the deadlines are over, or at a second signal, the process ends at once. Committed data is
    safe in either case.

    SIGHUP loads the TLS files again, and the quotas of the configuration. The limit of open files
    becomes the highest that the process may have.

    Returns:
        The exit code: 0 after an orderly end, 1 if a step was cut short.

    Raises:
        SluiceError: The TaskManager could not start.
    """
    descriptors.raise_limit()
    return event_loop.run(_serve(config, load_again), config.transport.event_loop)


async def _serve(config: TaskManagerConfig, load_again: Callable[[], TaskManagerConfig]) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    hurry = asyncio.Event()

    def signalled(number: signal.Signals) -> None:
        _log.info("%s received", number.name)
        if stop.is_set():
            hurry.set()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled, number)
    taskmanager = TaskManager(config)
    loop.add_signal_handler(signal.SIGHUP, _reload, taskmanager, load_again)
    await taskmanager.start()
    await stop.wait()
    drain_seconds = config.drain_timeout_seconds
    stopping = loop.create_task(_stop(taskmanager, config))
    hurried = loop.create_task(hurry.wait())
    done, _ = await asyncio.wait(
        (stopping, hurried),
        timeout=drain_seconds + config.transport.close_timeout_seconds + STORAGE_SECONDS,
        return_when=asyncio.FIRST_COMPLETED,
    )
    hurried.cancel()
    if stopping in done:
        stopping.result()
        return 0
    _log.warning("stopping took longer than it may; committed data is safe")
    stopping.cancel()
    return 1


def _reload(taskmanager: TaskManager, load_again: Callable[[], TaskManagerConfig]) -> None:
    if taskmanager.state == "starting":
        _log.info("SIGHUP received: the files are being read for the first time")
        return
    tls = taskmanager.environment.listener.tls
    if tls is None:
        _log.info("SIGHUP received: loading the quotas again")
    else:
        _log.info("SIGHUP received: loading the quotas and the TLS files again")
        tls.reload()  # logs the result
    try:
        config = load_again()
    except ConfigError as error:
        for problem in error.problems:
            _log.error("the quotas stay as they are: %s", problem)
        return
    taskmanager.environment.set_quotas(config.quotas)
    _log.info("the quotas are those of the configuration now")


async def _stop(taskmanager: TaskManager, config: TaskManagerConfig) -> None:
    drain_seconds = config.drain_timeout_seconds
    try:
        async with asyncio.timeout(drain_seconds):
            await taskmanager.drain(to_stop=True, migrate=config.drain_migrate)
    except TimeoutError:
        _log.warning("transfers are not over after %g s: they are cut off", drain_seconds)
        if config.drain_migrate:
            _log.warning("%s", taskmanager.environment.copies.migration.progress)
    await taskmanager.stop()
