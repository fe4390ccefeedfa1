"""The check of endpoints refuses only what the driver decides without executors."""

from __future__ import annotations

import logging
import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from sluice.protocol.identity import SECRET_BYTES, TOKEN_ID_BYTES, SubmitToken
from sluice.spark_integration import (
    SparkIntegrationError,
    cli,
    configure,
    driver,
    endpoint_check,
    spark_home,
)
from sluice.spark_integration.endpoint_check import ENDPOINTS, TOKEN, TOKEN_FILE, require_reachable
from sluice.spark_integration.local_taskmanager import LocalTaskManager

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow  # a TaskManager is started

CLUSTER = {"spark.master": "spark://host:7077"}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER", "SPARK_REMOTE", "SLUICE_CREDENTIAL", "SLUICE_CREDENTIAL_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def authenticated() -> Iterator[LocalTaskManager]:
    with LocalTaskManager(authenticated=True) as taskmanager:
        yield taskmanager


@pytest.fixture
def closed_port() -> Iterator[str]:
    """Return an address at which nothing listens; its port is bound, so nobody else takes it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def token() -> str:
    secret = secrets.token_bytes(SECRET_BYTES)
    return SubmitToken.make(secret, "", 0, secrets.token_bytes(TOKEN_ID_BYTES)).to_text()


def refusal(settings: dict[str, str]) -> str:
    with pytest.raises(SparkIntegrationError) as caught:
        require_reachable(settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def pretend_installed(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    monkeypatch.setattr(spark_home, "installed_pyspark", lambda: directory)
    monkeypatch.setattr(spark_home, "require_java", lambda *_: None)
    monkeypatch.setattr("sluice.spark_integration.conf.jar_path", lambda: directory / "s.jar")


def test_a_closed_port_is_refused_with_the_remedy(closed_port: str) -> None:
    text = refusal({ENDPOINTS: closed_port})
    assert text.startswith(f"No TaskManager answers (value {closed_port}: Connection refused)")
    assert "Correct spark.sluice.endpoints" in text
    assert text.endswith("start a TaskManager there: sluice taskmanager")


def test_a_missing_socket_is_refused(tmp_path: Path) -> None:
    assert "No such file or directory" in refusal({ENDPOINTS: f"unix:{tmp_path}/none.sock"})


def test_a_name_stands_for_its_addresses(closed_port: str) -> None:
    refused = refusal({ENDPOINTS: f"dns:localhost:{closed_port.rpartition(':')[2]}"})
    assert "Connection refused" in refused
    assert "value dns:localhost:" in refused


def test_a_name_without_addresses_is_refused() -> None:
    assert "value dns:none.invalid" in refusal({ENDPOINTS: "dns:none.invalid"})


def test_a_pattern_of_sockets_is_checked(authenticated: LocalTaskManager, tmp_path: Path) -> None:
    directory = authenticated.endpoint.rpartition("/")[0]
    token_file = str(authenticated.token_file)
    require_reachable({ENDPOINTS: f"{directory}/*.sock", TOKEN_FILE: token_file})
    assert "no socket matches" in refusal({ENDPOINTS: f"unix:{tmp_path}/*.sock"})
    for name in ("tm.sock", "tm.sock.1"):
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(tmp_path / name))
    assert "Connection refused" in refusal({ENDPOINTS: f"unix:{tmp_path}/*"})


def test_one_endpoint_that_answers_is_enough(
    authenticated: LocalTaskManager, closed_port: str
) -> None:
    endpoints = f"{closed_port},{authenticated.endpoint}"
    require_reachable({ENDPOINTS: endpoints, TOKEN_FILE: str(authenticated.token_file)})


@pytest.mark.parametrize(
    ("credential", "reason"),
    [
        ({}, "This TaskManager requires a credential"),
        ({TOKEN: token()}, "The credential is not accepted"),
    ],
)
def test_a_wrong_credential_is_refused(
    authenticated: LocalTaskManager, credential: dict[str, str], reason: str
) -> None:
    text = refusal({ENDPOINTS: authenticated.endpoint, **credential})
    assert text.startswith("The TaskManagers refuse this application")
    assert reason in text
    assert "sluice token create --out FILE" in text
    assert not any(value in text for value in credential.values())


def test_a_missing_token_file_is_refused(authenticated: LocalTaskManager) -> None:
    text = refusal({ENDPOINTS: authenticated.endpoint, TOKEN_FILE: "/none"})
    assert text.startswith("spark.sluice.auth.tokenFile has no credential that can be used")


@pytest.mark.parametrize(
    "settings",
    [
        {"spark.sluice.fallback.policy": "spark"},
        {"spark.sluice.enabled": "false"},
        {"spark.submit.deployMode": "cluster", **CLUSTER},
        CLUSTER,  # loopback addresses lead to another TaskManager on each host
    ],
    ids=str,
)
def test_an_application_that_may_still_run_is_not_refused(
    closed_port: str, settings: dict[str, str]
) -> None:
    require_reachable({ENDPOINTS: closed_port, **settings})


def test_addresses_that_are_the_same_on_every_host_are_refused_on_a_cluster() -> None:
    assert "no-such-host.invalid:7337" in refusal(
        {ENDPOINTS: "no-such-host.invalid:7337"} | CLUSTER
    )


def test_fallback_to_spark_is_a_warning(closed_port: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        require_reachable({ENDPOINTS: closed_port, "spark.sluice.fallback.policy": "spark"})
    (record,) = caplog.records
    assert "Until then shuffles are Spark's own" in record.getMessage()


def test_submit_starts_nothing_when_no_taskmanager_answers(
    closed_port: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend_installed(monkeypatch, tmp_path)
    result = CliRunner().invoke(cli.submit, ["--endpoints", closed_port, "--", "job.py"])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: No TaskManager answers (value {closed_port}")
    assert result.stderr.count("\n") == 1
    result = CliRunner().invoke(cli.submit, ["--no-check", "--endpoints", closed_port, "job.py"])
    assert "spark-submit cannot be started" in result.stderr


def test_submit_refuses_a_client_of_a_connect_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend_installed(monkeypatch, tmp_path)
    result = CliRunner().invoke(cli.submit, ["--", "--remote", "sc://host", "job.py"])
    assert "The job is a client of a Spark Connect server" in result.stderr
    assert result.stderr.count("\n") == 1


def test_configure_checks_the_endpoints_of_pyspark(
    closed_port: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sql = pytest.importorskip("pyspark.sql")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setattr(driver, "_context_class", lambda: None)
    monkeypatch.setattr(driver, "require_java", lambda: None)
    arguments = (closed_port, "4.3.0", "/opt/s.jar")
    with pytest.raises(SparkIntegrationError, match="No TaskManager answers"):
        configure(sql.SparkSession.builder, *arguments)
    configure(sql.SparkSession.builder, *arguments, check=False)


def test_the_check_works_inside_a_running_event_loop(closed_port: str) -> None:
    import asyncio

    async def in_a_notebook() -> str:
        return refusal({ENDPOINTS: closed_port})

    assert "Connection refused" in asyncio.run(in_a_notebook())


def test_the_default_is_that_of_the_plugin() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "spark-settings.md"
    row = f"| `{ENDPOINTS}` | `{endpoint_check.DEFAULT_ENDPOINTS}` |"
    assert row in page.read_text(encoding="utf-8")
