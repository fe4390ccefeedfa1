"""Executors and drivers speak TLS with TaskManagers on TCP; their passwords are hidden."""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509 import load_pem_x509_certificate

from sluice.spark_integration import spark_conf
from tests.spark.applications import LOCAL_MASTER
from tests.support.certificates import Authority
from tests.support.cluster import WORKER_HOSTS
from tests.support.comparison import differences
from tests.support.daemons import Daemons
from tests.support.processes import ProcessFailed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.spark.applications import Application
    from tests.spark.driver import Driver
    from tests.support.cluster import StandaloneCluster

PASSWORD = "open-sesame-4711"
UI_TIMEOUT_SECONDS = 20.0


@pytest.fixture(scope="module")
def authority(directory: Path) -> Authority:
    return Authority(directory / "tls")


@pytest.fixture(scope="module")
def encrypted(directory: Path, authority: Authority) -> Iterator[Daemons]:
    """TaskManagers that speak TLS only, and require certificates of clients."""
    options = {host: authority.settings(host) for host in WORKER_HOSTS}
    with Daemons(directory / "tls-tm", options=options) as running:
        yield running


def key_store(authority: Authority, directory: Path) -> Path:
    """Return a key store with a certificate for clients."""
    certificate_file, key_file = authority.issue("client.example")
    certificate = load_pem_x509_certificate(certificate_file.read_bytes())
    key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(PASSWORD.encode())
    path = directory / "client.p12"
    path.write_bytes(
        pkcs12.serialize_key_and_certificates(b"client", key, certificate, None, encryption)  # type: ignore[arg-type]
    )
    return path


def pem_key(authority: Authority, directory: Path) -> dict[str, str]:
    """Return the settings of a certificate for clients in PEM files."""
    certificate_file, key_file = authority.issue("client.example")
    key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    path = directory / "client.key"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return {
        "spark.sluice.ssl.certChain": str(certificate_file),
        "spark.sluice.ssl.privateKey": str(path),
    }


def tcp_settings(daemons: Daemons) -> dict[str, str]:
    """Return settings with the data ports alone."""
    return {
        **spark_conf(",".join(daemon.endpoint for daemon in daemons)),
        **daemons.credentials,
        "spark.sluice.io.connectTimeout": "30s",
        "spark.sluice.driver.pingInterval": "1s",
        "spark.sluice.ssl.enabled": "true",
    }


def test_a_job_runs_over_mutual_tls_and_tells_no_password(
    driver: Driver,
    directory: Path,
    own: Application,
    cluster: StandaloneCluster,
    encrypted: Daemons,
    authority: Authority,
):
    settings = tcp_settings(encrypted) | {
        "spark.sluice.ssl.keyStore": str(key_store(authority, directory)),
        "spark.sluice.ssl.keyStorePassword": PASSWORD,
        "spark.sluice.ssl.caFile": str(authority.ca_file),
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
    }
    with driver.application("tls", cluster.master_url, settings) as application:
        before = encrypted.moved()
        found = application.rows("frame_group_by")
        moved = encrypted.moved() - before
        assert differences(own.rows("frame_group_by"), found) == []
        assert moved.written_bytes > 0
        assert moved.region_area_bytes == 0, "the Unix socket was used"
        url = json.loads(application.rows("ui_url").read_text(encoding="utf-8"))[0]
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        page = f"{url}/api/v1/applications/{application.application_id}/environment"
        with opener.open(page, timeout=UI_TIMEOUT_SECONDS) as answer:
            environment = answer.read().decode()
        log = application.event_log
    for text in (environment, log.read_text(encoding="utf-8"), application.output):
        assert PASSWORD not in text
    assert "spark.sluice.ssl.keyStorePassword" in environment


@pytest.mark.parametrize(
    ("name", "changes", "reason", "remedy"),
    [
        (
            "strange",
            {"caFile": "{strange}"},
            "its certificate is not trusted",
            "add its authority to spark.sluice.ssl.caFile",
        ),
        (
            "anonymous",
            {"certChain": "", "privateKey": ""},
            "it requires a client certificate",
            "set spark.sluice.ssl.certChain and spark.sluice.ssl.privateKey",
        ),
        (
            "plain",
            {"enabled": "false"},
            "this port speaks TLS only",
            "set spark.sluice.ssl.enabled=true",
        ),
    ],
)
def test_settings_that_do_not_fit_are_one_line(
    driver: Driver,
    directory: Path,
    encrypted: Daemons,
    authority: Authority,
    name: str,
    changes: dict[str, str],
    reason: str,
    remedy: str,
):
    strange = Authority(directory / "strange")
    settings = tcp_settings(encrypted) | pem_key(authority, directory)
    settings["spark.sluice.ssl.caFile"] = str(authority.ca_file)
    for key, value in changes.items():
        settings[f"spark.sluice.ssl.{key}"] = value.format(strange=strange.ca_file)
    with (
        driver.application(f"tls-{name}", LOCAL_MASTER, settings) as application,
        pytest.raises(ProcessFailed, match=reason) as failed,
    ):
        application.rows("rdd_reduce_by_key")
    assert remedy in str(failed.value)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("trustless", {}, "TLS is on, but nothing says whom to trust: set spark.sluice.ssl.caFile"),
        (
            "crypto",
            {
                "spark.authenticate": "true",  # Spark's own condition for the encryption
                "spark.network.crypto.enabled": "true",
                "spark.sluice.ssl.enabled": "false",
            },
            "spark.network.crypto.enabled is true, but connections to 127.0.0.1:",
        ),
    ],
)
def test_an_application_without_the_encryption_it_asks_for_does_not_start(
    driver: Driver,
    directory: Path,
    encrypted: Daemons,
    authority: Authority,
    name: str,
    changes: dict[str, str],
    message: str,
):
    settings = tcp_settings(encrypted) | pem_key(authority, directory) | changes
    assert message in driver.refused(f"tls-{name}", settings)
