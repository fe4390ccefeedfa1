"""``sluice gather``: everything for a bug report, and no secret in any file of it."""

from __future__ import annotations

import base64
import json
import os
import stat
import tarfile

import pytest

from sluice.protocol.access_token import make_access_token
from sluice.protocol.identity import ClusterSecrets, SubmitToken, secret_to_text
from sluice.shuffle.taskmanager.config.taskmanager_config import keys
from sluice.shuffle.taskmanager.http.http_access import HttpAccess
from tests.cli.rig import NOWHERE, run, taskmanager_serving
from tests.protocol.identity_vectors import OTHER_SECRET, SECRET
from tools.docs.sample_status import STATUS

TOKEN = SubmitToken.make(SECRET, "team", 0, b"01234567").to_text()
ACCESS = make_access_token(OTHER_SECRET, "admin", 0).to_text()
PASSWORD = "correct horse battery"
CLOUD_KEY = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    for key in keys().values():
        monkeypatch.delenv(key.variable, raising=False)
    monkeypatch.setenv("SLUICE_CREDENTIAL", TOKEN)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CLOUD_KEY)
    monkeypatch.setenv("SLUICE_DATA_DIRECTORIES", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def secret_file(tmp_path):
    path = tmp_path / "cluster-secret"
    path.write_text(secret_to_text(SECRET) + "\n")
    path.chmod(0o600)
    return path


def content(path):
    with tarfile.open(path) as archive:
        members = {}
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert file is not None
            members[member.name.partition("/")[2]] = file.read().decode()
        return members


def test_no_secret_is_in_any_file_of_the_archive(tmp_path, secret_file):
    forms = [
        secret_to_text(SECRET), SECRET.hex(), base64.b64encode(SECRET).decode().rstrip("="), TOKEN,
        ACCESS, PASSWORD, CLOUD_KEY, "hunter2",
    ]  # fmt: skip
    log = tmp_path / "taskmanager.log"
    lines = [f"INFO something with {form} in it" for form in forms]
    log.write_text("\n".join([*lines, "proxy http://me:hunter2@proxy:3128", "the last line"]))
    config = tmp_path / "sluice.toml"
    config.write_text(
        f'# password = "{PASSWORD}"\n# {TOKEN}\n[auth]\ncluster_secret_files = ["{secret_file}"]\n'
    )
    log.write_text(log.read_text().replace(PASSWORD, f'password="{PASSWORD}"').replace(
        "with hunter2 in", "with nothing in"
    ))  # fmt: skip
    access = HttpAccess(ClusterSecrets([SECRET]))
    with taskmanager_serving(STATUS, lambda: access) as port:
        result = run(
            "gather", f"127.0.0.1:{port}", "--out", tmp_path / "report.tar.gz", "--config", config,
            "--log", log, "--secret-file", secret_file,
        )  # fmt: skip
    assert result.exit_code == 0, result.output
    files = content(tmp_path / "report.tar.gz")
    assert {
        *("about.json", "config.json", "config.toml", "doctor.json", "logs/0-taskmanager.log"),
        *(f"taskmanagers/0/{name}" for name in ("status.json", "metrics.txt", "readiness.json")),
    } <= files.keys()
    for name, text in [*files.items(), ("the output", result.output)]:
        for form in forms:
            assert form not in text, (name, form)
            assert form.rpartition("-1-")[2] not in text, (name, form)
    assert "the last line" in files["logs/0-taskmanager.log"]
    assert str(secret_file) in files["config.toml"]
    assert json.loads(files["taskmanagers/0/status.json"])["taskmanager_id"] == "tm-1"
    about = json.loads(files["about.json"])
    assert about["schema"] == "sluice.gather/1"
    assert about["environment"]["SLUICE_CREDENTIAL"] == "[removed]"
    assert about["versions"]["sluice"]
    assert about["limits"]["nofile"]
    assert about["missing"] == {}


def test_what_cannot_be_had_is_listed_and_no_failure(tmp_path):
    result = run("gather", NOWHERE, "--out", "a.tar.gz", "--log", "missing.log", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["missing"]["missing.log"] == "No such file or directory"
    assert f"status.json of http://{NOWHERE}" in report["missing"]
    assert "doctor.json" in report["files"]
    assert json.loads(content(tmp_path / "a.tar.gz")["about.json"]) == report


def test_only_the_end_of_a_log_is_taken(tmp_path):
    (tmp_path / "x.log").write_text("".join(f"line {number:05d}\n" for number in range(1000)))
    run("gather", NOWHERE, "--out", "a.tar.gz", "--log", "x.log", "--log-bytes", 30)
    text = content(tmp_path / "a.tar.gz")["logs/0-x.log"]
    assert text == "line 00998\nline 00999\n"


def test_the_archive_is_private_and_never_replaces_a_file(tmp_path):
    assert run("gather", NOWHERE, "--out", "a.tar.gz").exit_code == 0
    assert stat.S_IMODE(os.stat("a.tar.gz").st_mode) == 0o600
    again = run("gather", NOWHERE, "--out", "a.tar.gz")
    assert again.exit_code == 1
    assert again.stderr == "Error: a.tar.gz cannot be written: File exists\n"


def test_a_wrong_configuration_is_listed(tmp_path):
    (tmp_path / "sluice.toml").write_text("nonsense = 1\n")
    result = run("gather", NOWHERE, "--out", "a.tar.gz", "--config", "sluice.toml", "--json")
    assert result.exit_code == 0
    assert "nonsense" in json.loads(result.stdout)["missing"]["config.json"]
    assert content(tmp_path / "a.tar.gz")["config.toml"] == "nonsense = 1\n"
