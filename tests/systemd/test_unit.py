"""The unit of `deploy/systemd`: what systemd's tools say, and what a real systemd does with it."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.cluster import REPOSITORY
from tests.support.daemon import look_until
from tests.support.extended import first_of
from tests.support.processes import ProcessFailed
from tests.systemd.rig import FILES, LIBRARIES, PATHS, PYTHON, SECONDS, SystemdHost, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator

UNIT = FILES / "sluice.service"
PAGE = REPOSITORY / "docs" / "operate" / "systemd.md"
MAX_EXPOSURE = 1.3
"""In systemd's rating from 0 to 10, where 10 is a service without a sandbox."""

TOOLS = ("systemd-analyze", "systemd-sysusers", "systemd-tmpfiles")
CONFIGURATION = "/etc/sluice/taskmanager.toml"
SECRET = "/etc/sluice/cluster.secret"
SOCKET = "/run/sluice/taskmanager.sock"
TOKEN = "/run/token"
LOG = "/run/sluice.log"
KEPT = "['kept']"
ATTEMPTS = itertools.count()

TEST_SETTINGS = f"""
StandardOutput=append:{LOG}
StandardError=append:{LOG}
Environment=LD_LIBRARY_PATH={LIBRARIES}
"""
"""The host has no journal, and its Python is not at the path of its build."""

pytestmark = pytest.mark.slow

needs_tools = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in TOOLS),
    reason="systemd's tools are not installed: apt-get install systemd",
)

TOML = f"""
[auth]
cluster_secret_files = ["{SECRET}"]

[transport]
socket_path = "{SOCKET}"

[storage]
data_directories = ["/var/lib/sluice"]
memory_tier_bytes = "64 MiB"
"""

CLIENT = f"""{PATHS}
import asyncio
from sluice import HashSelector, ResultPartitionType, ShuffleClient, StringSerializer
from sluice.shuffle.client.partition_location import decode_locations, encode_locations

async def main(token, attempt, *locations):
    with open(token) as file:
        credential = file.read()
    async with await ShuffleClient.connect(
        "unix:/run/sluice/taskmanager.sock", "app", credential=credential
    ) as client:
        if locations:
            async with client.open_gate(decode_locations(locations[0]), 0) as gate:
                print([word async for word in gate.records(StringSerializer())])
            return
        async with client.open_result_partition(
            1, int(attempt), 1, partition_type=ResultPartitionType.BLOCKING
        ) as partition:
            writer = partition.record_writer(StringSerializer(), HashSelector(str.encode))
            if (pending := writer.emit("kept")) is not None:
                await pending
            print(encode_locations([partition.location]))

asyncio.run(main(*sys.argv[1:]))
"""
"""Writes a word, or reads it."""


@needs_tools
def test_systemd_accepts_the_unit(tmp_path: Path):
    unit = installed(tmp_path)
    done = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@needs_tools
def test_the_exposure_of_the_unit_is_low(tmp_path: Path):
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager"]
    command += [f"--threshold={MAX_EXPOSURE * 10:.0f}", str(installed(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    found = re.search(r"Overall exposure level for sluice.service: ([\d.]+)", done.stdout)
    assert found is not None
    assert float(found[1]) == MAX_EXPOSURE, "lower MAX_EXPOSURE"


def installed(directory: Path) -> Path:
    """Return a copy of the unit for the programs that exist here."""
    unit = directory / UNIT.name
    programs = f"{Path(sys.executable).parent}/"
    text = UNIT.read_text(encoding="utf-8").replace("/opt/sluice/bin/", programs)
    unit.write_text(text, encoding="utf-8")
    return unit


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemdHost]:
    """A host on which the service is installed as the documentation says."""
    if reason := why_not():
        pytest.skip(reason)
    with SystemdHost(tmp_path_factory.mktemp("host")) as running:
        shutil.copy(UNIT, running.units)
        change(running, TEST_SETTINGS)
        running.run("systemd-sysusers", str(FILES / "sluice.sysusers.conf"))
        running.run("systemd-tmpfiles", "--create", str(FILES / "sluice.tmpfiles.conf"))
        running.run("useradd", "--system", "spark")
        running.run("/opt/sluice/bin/sluice", "secret", "create", SECRET, user="sluice")
        token = ("token", "create", "--secret-file", SECRET, "--subject", "test", "--expires", "1d")
        write(running, TOKEN, running.run("/opt/sluice/bin/sluice", *token, user="sluice"))
        yield running


@pytest.fixture
def service(host: SystemdHost) -> Iterator[SystemdHost]:
    """The same, and the service runs, with the settings of the unit."""
    write(host, CONFIGURATION, TOML)
    change(host, TEST_SETTINGS)
    host.run("systemctl", "start", "sluice")
    yield host
    host.run("systemctl", "stop", "sluice")
    host.run("systemctl", "reset-failed")


def write(host: SystemdHost, path: str, text: str) -> None:
    """Write a file that everybody reads."""
    host.run("sh", "-c", 'printf %s "$1" > "$0" && chmod 0644 "$0"', path, text)


def change(host: SystemdHost, settings: str) -> None:
    """Add settings to the unit, instead of those of the last call."""
    directory = host.units / f"{UNIT.name}.d"
    directory.mkdir(exist_ok=True)
    (directory / "test.conf").write_text(f"[Service]\n{settings}\n", encoding="utf-8")
    host.run("systemctl", "daemon-reload")


def client(host: SystemdHost, *locations: str, groups: str = "sluice") -> str:
    """Write a word as an executor's user; or read it, if there are locations."""
    python = (PYTHON, "-I", "-c", CLIENT)
    return host.run(
        *python, TOKEN, str(next(ATTEMPTS)), *locations, user="spark", groups=groups
    ).strip()


def log(host: SystemdHost) -> str:
    """Return the log of the service."""
    return host.run("cat", LOG)


def test_the_service_is_ready_when_it_has_started(service: SystemdHost):
    assert service.show("sluice", "ActiveState", "StatusText", "NotifyAccess") == {
        "ActiveState": "active",
        "StatusText": "Ready",
        "NotifyAccess": "main",
    }


def test_only_the_group_reaches_the_socket(service: SystemdHost):
    assert client(service, client(service)) == KEPT
    with pytest.raises(ProcessFailed, match="Permission denied"):
        client(service, groups="")


def test_a_stop_drains_and_keeps_the_memory_tier(service: SystemdHost):
    written = client(service)
    before = len(log(service))
    service.run("systemctl", "stop", "sluice")
    assert service.show("sluice", "Result", "ExecMainStatus") == {
        "Result": "success",
        "ExecMainStatus": "0",
    }
    assert "drained: nothing is written or read" in log(service)[before:]
    service.run("systemctl", "start", "sluice")
    assert client(service, written) == KEPT


def test_a_reload_loads_the_secrets_again(service: SystemdHost):
    service.run("systemctl", "reload", "sluice")
    wait_for_log(service, "1 cluster secrets are accepted now")


@pytest.mark.parametrize(
    ("signal", "logged"),
    [
        pytest.param("KILL", "", id="killed"),
        # What the watchdog sends.
        pytest.param("ABRT", "Fatal Python error: Aborted", id="aborted"),
    ],
)
def test_a_service_that_ends_comes_back_with_its_data(
    service: SystemdHost, signal: str, logged: str
):
    written = client(service)
    restarts = int(service.show("sluice", "NRestarts")["NRestarts"])
    service.run("systemctl", "kill", "--kill-whom=main", f"--signal={signal}", "sluice")
    service.wait_for("sluice", NRestarts=str(restarts + 1), ActiveState="active")
    assert client(service, written) == KEPT
    assert logged in log(service)


@pytest.mark.parametrize("processes", first_of([1, 2]))
def test_a_service_that_hangs_is_restarted(host: SystemdHost, service: SystemdHost, processes: int):
    service.run("systemctl", "stop", "sluice")
    write(host, CONFIGURATION, f"processes = {processes}\n{TOML}")
    change(service, f"{TEST_SETTINGS}\nWatchdogSec=2\nTimeoutAbortSec=1")
    service.run("systemctl", "start", "sluice")
    written = client(service)
    restarts = int(service.show("sluice", "NRestarts")["NRestarts"])
    service.run("systemctl", "kill", "--kill-whom=main", "--signal=STOP", "sluice")
    service.wait_for("sluice", NRestarts=str(restarts + 1), ActiveState="active")
    assert client(service, written) == KEPT


def test_the_drop_in_of_the_documentation_works(service: SystemdHost):
    service.run("systemctl", "stop", "sluice")
    service.run("install", "-d", "-o", "sluice", "-m", "700", "/srv/sluice")
    blocks = dict(
        re.findall(r"^```(ini|toml)\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    )
    write(service, CONFIGURATION, blocks["toml"])
    change(service, TEST_SETTINGS + blocks["ini"].replace("[Service]\n", ""))
    before = len(log(service))
    service.run("systemctl", "start", "sluice")
    service.run("systemctl", "stop", "sluice")
    stopped = log(service)[before:]
    assert "drained: nothing is written or read" in stopped
    assert "has stopped" in stopped
    assert service.run("ls", "/srv/sluice").split()


def test_a_wrong_configuration_is_not_tried_again(service: SystemdHost):
    service.run("systemctl", "stop", "sluice")
    write(service, CONFIGURATION, "no_such_key = 1\n")
    with pytest.raises(ProcessFailed):
        service.run("systemctl", "start", "sluice")
    assert service.show("sluice", "ActiveState", "ExecMainStatus", "NRestarts") == {
        "ActiveState": "failed",
        "ExecMainStatus": "2",
        "NRestarts": "0",
    }


def wait_for_log(host: SystemdHost, text: str) -> None:
    """Wait until the log of the service has this text.

    Raises:
        TimeoutError: It does not come.
    """
    look_until(lambda: log(host), lambda found: text in found, SECONDS)
