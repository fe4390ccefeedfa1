"""Applications that prove who they are, and those that cannot; the secrets show nowhere."""

from __future__ import annotations

import contextlib
import json
import os
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.identity import SubmitToken, parse_credential, parse_secret, parse_token
from sluice.spark_integration.endpoint_check import TOKEN_FILE
from tests.spark.applications import LOCAL_MASTER, sluice_settings
from tests.support.daemon import sluice
from tests.support.daemons import AUTHENTICATED
from tests.support.processes import ProcessFailed

if TYPE_CHECKING:
    from tests.spark.applications import Application, Both
    from tests.spark.driver import Driver
    from tests.support.daemons import Daemons

pytestmark = pytest.mark.skipif(not AUTHENTICATED, reason="the TaskManagers have no secret")

JOB = "rdd_reduce_by_key"
TASK_SETTING = "spark.plugins.internal.conf.io.sluice.spark.SluicePlugin.task.secret"
REDACTED = "*********(redacted)"
ENCODED_KEY_CHARACTERS = 40
"""Of the 32 bytes of a key in base64; the last ones share a character with what follows."""


def read(url: str, token: str = "") -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(
        url, headers={"Authorization": f"Bearer {token}"} if token else {}
    )
    with opener.open(request, timeout=30.0) as answer:
        return bytes(answer.read())


def command_lines() -> bytes:
    """Return the command lines of all processes that this user sees."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                found.append((process / "cmdline").read_bytes())
            except OSError:  # it has ended meanwhile
                continue
    return b"\n".join(found)


def written_below(directory: Path, daemons: Daemons) -> list[bytes]:
    """Return all files of the session, but the two whose purpose is to hold a secret."""
    found = []
    paths = (Path(top, name) for top, _, names in os.walk(directory) for name in names)
    for path in paths:
        if path.is_symlink() or path in (daemons.secret_file, daemons.token_file):
            continue
        with contextlib.suppress(FileNotFoundError):  # Spark removes some meanwhile
            if path.is_file():
                found.append(path.read_bytes())
    return found


def forms_of(name: str, text: str, key: bytes) -> dict[str, bytes]:
    """Return the forms in which a key could be written down."""
    encoded = text.strip().split("-1-", 1)[1][:ENCODED_KEY_CHARACTERS].encode()
    return {
        name: encoded,
        f"{name} in hexadecimal": key.hex().encode(),
        f"{name} in bytes": key,
    }


def test_no_key_shows_anywhere(both: Both, daemons: Daemons, directory: Path, tmp_path: Path):
    compared = both.compare(JOB)
    assert compared.differences == []
    assert compared.moved.written_bytes > 0
    application = both.sluice
    task_file = tmp_path / "task"
    application.rows("write_setting", key=TASK_SETTING, path=str(task_file))
    secret_text = daemons.secret_file.read_text()
    token_text, task_text = daemons.token_file.read_text(), task_file.read_text()
    token, task = parse_token(token_text), parse_credential(task_text, "")
    driver = token.application(task.claim.salt)
    assert driver.for_tasks() == task
    wanted = (
        forms_of("secret", secret_text, parse_secret(secret_text))
        | forms_of("token", token_text, token.key)
        | forms_of("driver", driver.to_text(), driver.key)
        | forms_of("task", task_text, task.key)
    )
    assert wanted["secret"] in daemons.secret_file.read_bytes()
    assert wanted["token"] in daemons.token_file.read_bytes()
    assert wanted["task"] in task_file.read_bytes()

    url = json.loads(application.rows("ui_url").read_text(encoding="utf-8"))[0]
    rest = f"{url}/api/v1/applications/{application.application_id}/environment"
    identity = application.application_id.encode()
    searched = {
        "REST": [read(rest)],
        "UI": [read(f"{url}/environment/")],
        "ps": [command_lines()],
        "status": [
            read(f"{daemon.url}/api/v1/status", daemon.access_token()) for daemon in daemons
        ],
        "metrics": [read(daemon.metrics_url) for daemon in daemons],
        "files": written_below(directory, daemons),
    }
    # The search finds in each place what is known to be there.
    for place, known in (
        ("REST", f'"{TASK_SETTING}", "{REDACTED}"'.encode()),
        ("REST", f'"{TOKEN_FILE}", "{REDACTED}"'.encode()),
        ("UI", b"Environment"),
        ("ps", identity),
        ("status", identity + b"@"),
        ("metrics", b"sluice_taskmanager_info"),
        ("files", b"is ready: data port"),
        # The event log.
        ("files", f'"{TASK_SETTING}":"{REDACTED}"'.encode()),
        # The executors' logs.
        ("files", b"CoarseGrainedExecutorBackend"),
        ("files", identity),
    ):
        assert any(known in found for found in searched[place]), (place, known)
    for name, form in wanted.items():
        for place, texts in searched.items():
            assert not any(form in found for found in texts), (name, place)


def test_sparks_own_authentication_with_a_token(own: Application, driver: Driver, daemons: Daemons):
    """Driver and executor are one process here."""
    settings = sluice_settings(daemons) | {"spark.authenticate": "true"}
    before = daemons.moved()
    with driver.application("authentic", LOCAL_MASTER, settings) as application:
        assert application.rows(JOB).read_text() == own.rows(JOB).read_text()
    assert (daemons.moved() - before).written_bytes > 0


def test_sparks_own_authentication_without_a_token_is_refused(driver: Driver, daemons: Daemons):
    settings = sluice_settings(daemons) | {"spark.authenticate": "true", TOKEN_FILE: ""}
    output = driver.refused("keyless", settings)
    assert "spark.authenticate is true, and Sluice has no credential" in output
    assert "Set spark.sluice.auth.tokenFile to the file of a submit token" in output


def test_a_pattern_that_would_show_the_key_is_refused(driver: Driver, daemons: Daemons):
    settings = sluice_settings(daemons) | {"spark.redaction.regex": "password"}
    output = driver.refused("shown", settings)
    assert "spark.redaction.regex is 'password', with which Spark would show" in output
    assert "make it match too, as in password|secret|token" in output


@pytest.fixture
def tokens(daemons: Daemons, tmp_path: Path) -> dict[str, str]:
    """Credentials that the TaskManagers do not accept, by name; an empty one is none."""
    secret = parse_secret(daemons.secret_file.read_text())
    sluice("secret", "create", str(tmp_path / "another"))
    return {
        "none": "",
        "another": (tmp_path / "another").read_text(),
        "expired": SubmitToken.make(secret, "early", 1, bytes(16)).to_text(),
    }


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "none",
            ("This TaskManager requires a credential", "Set spark.sluice.auth.tokenFile to the"),
        ),
        (
            "another",
            ("The credential is not accepted", "Check that spark.sluice.auth.tokenFile holds"),
        ),
        (
            "expired",
            ("The submit token has expired", "Write a new token (sluice token create) into"),
        ),
    ],
)
def test_a_job_that_is_not_let_in_is_told_why(
    driver: Driver,
    daemons: Daemons,
    tokens: dict[str, str],
    tmp_path: Path,
    name: str,
    told: tuple[str, ...],
):
    file = tmp_path / "token"
    file.write_text(tokens[name])
    settings = sluice_settings(daemons) | {TOKEN_FILE: str(file) if tokens[name] else ""}
    with (
        driver.application(f"stranger-{name}", LOCAL_MASTER, settings) as application,
        pytest.raises(ProcessFailed) as failure,
    ):
        application.rows(JOB)
    lines = str(failure.value).splitlines()
    line = next(line for line in lines if "no TaskManager is reachable for shuffle" in line)
    for part in told:
        assert part in line
    assert "Start TaskManagers" not in line
