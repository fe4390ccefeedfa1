"""Importing is most of a start: the daemon imports what it needs, and collects no garbage then."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.daemon import ENVIRONMENT, SLUICE, TIMEOUT_SECONDS

NOT_NEEDED = {
    "aiohttp": "the HTTP thread imports it",
    "prometheus_client": "the HTTP thread imports it",
    "sluice.protocol.access_token": "the HTTP thread imports it",
    "sluice.transport.tls": "a TaskManager with TLS imports it",
    "sluice.shuffle.taskmanager.store.tiers.remote_tier": "a store with a remote tier imports it",
    "urllib.request": "commands that ask a TaskManager use it",
    "sluice.shuffle.records": "tasks have records",
    "sluice.shuffle.client.client": "tasks are clients",
    "sluice.shuffle.taskmanager.embedded": "programs with a TaskManager inside use it",
    "sluice.cli.secret_commands": "another command",
    "sluice.cli.status_commands": "another command",
}


def output_of(program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_SECONDS,
        env=ENVIRONMENT,
    )
    return done.stdout.split()


@pytest.fixture(scope="module")
def imported() -> set[str]:
    program = (
        "import sys, sluice.cli.main, sluice.shuffle.taskmanager.process.service\n"
        "print(*sys.modules)"
    )
    return set(output_of(program))


@pytest.mark.parametrize("module", NOT_NEEDED)
def test_a_start_does_not_import_what_it_does_not_need(imported, module):
    assert "sluice.shuffle.taskmanager.wiring" in imported
    assert module not in imported, NOT_NEEDED[module]


@pytest.mark.parametrize(
    ("arguments", "while_importing"),
    [
        ([str(SLUICE), "taskmanager"], "False"),
        ([str(SLUICE), "status"], "True"),
        (["python"], "True"),
    ],
)
def test_only_a_daemon_collects_no_garbage_while_it_imports(arguments, while_importing):
    program = (
        f"import gc, sys; sys.argv[:] = {arguments!r}\n"
        "import sluice.cli.main\n"
        "from sluice.shuffle.taskmanager.process import late_collection\n"
        "print(gc.isenabled()); late_collection.begin(); print(gc.isenabled())"
    )
    assert output_of(program) == [while_importing, "True"]
