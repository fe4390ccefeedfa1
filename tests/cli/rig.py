"""TaskManagers that serve a given status, and the command line in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.testing import CliRunner, Result

from sluice.cli import main as cli
from sluice.shuffle.taskmanager.config.http_config import HttpConfig
from sluice.shuffle.taskmanager.http.http_server import HttpServer
from tests.support.fakes import no_drain
from tests.support.http_servers import serving

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from sluice.shuffle.taskmanager.http.http_access import HttpAccess
    from sluice.shuffle.taskmanager.status.status import TaskManagerStatus

NOWHERE = "127.0.0.1:1"
"""A port that refuses connections."""


def taskmanager_serving(
    status: TaskManagerStatus, access: Callable[[], HttpAccess] | None = None
) -> AbstractContextManager[int]:
    """Serve a status; yield the port."""

    async def start():
        config = HttpConfig(http_host="127.0.0.1", http_port=0)
        server = HttpServer(config, lambda: status, no_drain, access)
        return await server.start(), server.close

    return serving(start)


def run(*arguments: object, env: dict[str, str] | None = None) -> Result:
    """Run the command line; an exception that it does not expect fails the test."""
    runner = CliRunner(env=env)
    return runner.invoke(cli.main, [str(each) for each in arguments], catch_exceptions=False)
