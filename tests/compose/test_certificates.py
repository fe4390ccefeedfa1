"""The script of docker-compose.tls.yml that makes certificates and Spark's settings."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sluice.transport.config import TransportConfig
from tests.support.tls_files import load_tls

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "docker" / "tls" / "certificates.sh"
TASKMANAGERS = ("taskmanager-1", "taskmanager-2")
FILES = ("authority", "certificate", "key")
ALL = ("authority", *TASKMANAGERS, "spark", "spark-settings")


def make(directory: Path, days: int = 365) -> dict[str, str]:
    """Run the script; return the text of each file that is there afterwards."""
    subprocess.run(
        [
            *("sh", SCRIPT, directory, REPOSITORY / "docker" / "spark"),
            REPOSITORY / "docker" / "tls" / "spark.conf",
        ],
        check=True,
        capture_output=True,
        timeout=60,
        env={**os.environ, "CERTIFICATE_DAYS": str(days)},
    )
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    return {str(path.relative_to(directory)): path.read_text() for path in files}


def settings(directory: Path) -> TransportConfig:
    authority, certificate, key = (directory / f"{name}.pem" for name in FILES)
    return TransportConfig(
        tls_enabled=True, tls_ca_file=authority, tls_certificate_file=certificate, tls_key_file=key
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    for name in ALL:
        (tmp_path / name).mkdir()
    return tmp_path


def test_taskmanagers_and_clients_can_use_their_files(directory: Path) -> None:
    made = make(directory)
    for name in TASKMANAGERS:
        assert load_tls(settings(directory / name), accepts=True) is not None
    assert load_tls(settings(directory / "spark")) is not None
    keys = {text for name, text in made.items() if name.endswith("/key.pem")}
    assert len(keys) == len(TASKMANAGERS) + 2
    assert {name.split("/")[0] for name in made if name.endswith("authority.pem")} == {
        *("authority", *TASKMANAGERS, "spark")
    }


def test_what_is_there_stays(directory: Path) -> None:
    first = make(directory)
    assert make(directory) == first


def test_certificates_that_end_soon_are_renewed_with_their_keys(directory: Path) -> None:
    first = make(directory, days=20)
    second = make(directory)
    changed = {name for name in first if first[name] != second[name]}
    pairs = ((name, file) for name in (*TASKMANAGERS, "spark") for file in FILES[1:])
    assert changed == {f"{name}/{file}.pem" for name, file in pairs}
    for name in TASKMANAGERS:
        assert load_tls(settings(directory / name), accepts=True) is not None


def test_each_file_of_spark_has_its_settings_and_the_secret(directory: Path) -> None:
    made = make(directory)
    lines = set()
    for path in (REPOSITORY / "docker" / "spark").glob("*.conf"):
        text = made[f"spark-settings/{path.name}"]
        assert text.startswith(path.read_text())
        lines.add(text.removeprefix(path.read_text()))
    (same,) = lines
    secret = made["spark-settings/secret"].strip()
    assert len(secret) == 64
    assert same.splitlines()[-1].split() == ["spark.authenticate.secret", secret]
    assert "spark.network.crypto.enabled  true" in same.splitlines()
