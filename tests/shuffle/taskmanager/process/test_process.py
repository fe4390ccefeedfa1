"""The daemon as a user starts it: a process, its HTTP port, its exit."""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import socket
import urllib.error
import urllib.request

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from tests.support.certificates import Authority
from tests.support.daemon import SLUICE, TIMEOUT_SECONDS, Daemon, arguments, run
from tests.support.tls_files import TlsFiles
from tests.support.wire_clients import producer, write_map_output

pytestmark = pytest.mark.slow  # all of it together


@pytest.fixture
def daemon(tmp_path):
    with Daemon(tmp_path) as started:
        yield started


def test_it_is_ready_measured_and_shown(daemon):
    with urllib.request.urlopen(f"{daemon.url}/readyz", timeout=TIMEOUT_SECONDS) as answer:
        assert json.load(answer) == {"ready": True, "reason": None}
    with urllib.request.urlopen(f"{daemon.url}/metrics", timeout=TIMEOUT_SECONDS) as answer:
        page = answer.read().decode()
    assert 'sluice_network_memory_segments{state="free"} 64.0' in page
    assert 'sluice_taskmanager_state{state="ready"} 1.0' in page

    shown = run([str(SLUICE), "status", daemon.url, "--json"])
    assert shown.returncode == 0
    status = json.loads(shown.stdout)
    assert status["address"] == f"127.0.0.1:{daemon.data_port}"
    assert [tier["tier"] for tier in status["storage"]] == ["memory", "disk"]
    assert "is ready on" in run([str(SLUICE), "status", daemon.url]).stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(daemon, number):
    assert daemon.end(number) == 0
    assert "has stopped" in daemon.log
    assert "Traceback" not in daemon.log
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{daemon.url}/healthz", timeout=TIMEOUT_SECONDS)


def test_it_keeps_its_id_over_a_restart(daemon, tmp_path):
    assert daemon.end() == 0
    identity = daemon.identity
    assert daemon.start().identity == identity


@pytest.mark.parametrize("key", ["data_port", "http_port"])
def test_a_port_in_use_is_one_line(tmp_path, key):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run(arguments(tmp_path, **{key: port}))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("sluice: ")
    assert f"127.0.0.1:{port}" in done.stderr
    assert "address already in use" in done.stderr.lower()
    assert key in done.stderr


def test_memory_that_the_system_refuses_is_one_line(tmp_path):
    command = arguments(tmp_path, network_segments=262_144)
    done = run(["sh", "-c", 'ulimit -v 3000000; exec "$@"', "sh", *command])
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("sluice: ")
    assert "Lower network_segments" in done.stderr


def test_a_data_directory_of_a_running_daemon_is_refused(daemon, tmp_path):
    done = run(arguments(tmp_path))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("sluice: storage directory")
    assert f"process {daemon.pid}" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_usable_data_directory_is_named_with_the_remedy(tmp_path):
    blocked = tmp_path / "file"
    blocked.touch()
    done = run(arguments(tmp_path, data_directories=blocked))
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"sluice: storage directory {blocked} cannot be used")
    assert "data_directories" in last
    assert "Traceback" not in done.stderr


def test_a_certificate_that_cannot_be_used_is_one_line(tmp_path):
    authority = Authority(tmp_path / "authority")
    settings = authority.settings(tls_key_file=authority.issue()[1])
    done = run(arguments(tmp_path, **settings))
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("sluice: transport.tls_key_file does not belong to ")
    assert str(settings["tls_key_file"]) in last
    assert "Traceback" not in done.stderr


def test_a_hangup_signal_loads_the_tls_files_again(tmp_path):
    files = TlsFiles(tmp_path / "files", Authority(tmp_path / "authority"))
    with Daemon(tmp_path, **files.settings) as daemon:
        files.renew(files.authority)
        daemon.process.send_signal(signal.SIGHUP)
        loaded = daemon.wait_for_log("New connections use")
        assert hashlib.sha256(files.shown).hexdigest() in loaded
        assert 'sluice_tls_reloads_total{result="loaded"} 1.0' in metrics(daemon)
        assert "sluice_tls_certificate_expiry_timestamp_seconds" in metrics(daemon)
        files.key.write_bytes(b"half")
        daemon.process.send_signal(signal.SIGHUP)
        kept = daemon.wait_for_log("keeps the certificates that were loaded before")
        assert str(files.key) in kept
        assert 'sluice_tls_reloads_total{result="refused"} 1.0' in metrics(daemon)
        assert daemon.end() == 0
        assert "Traceback" not in daemon.log


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_hangup_signal_loads_the_quotas_again(tmp_path):
    file = tmp_path / "sluice.toml"
    file.write_text("[quotas]\nquota_map_outputs = 1\n", encoding="utf-8")
    with Daemon(tmp_path, config=file) as daemon:
        address = daemon.address
        writer = await producer(address)
        await write_map_output(writer, 1, 1, [[b"first"]])
        with pytest.raises(RemoteError) as caught:
            await write_map_output(writer, 1, 2, [[b"second"]])
        assert caught.value.code is ErrorCode.QUOTA_EXCEEDED
        file.write_text("[quotas]\nquota_map_outputs = 2\n", encoding="utf-8")
        daemon.process.send_signal(signal.SIGHUP)
        await asyncio.to_thread(daemon.wait_for_log, "quotas are those of the configuration now")
        await write_map_output(writer, 1, 2, [[b"second"]])
        file.write_text("[quotas]\nquota_map_outputs = 0\n", encoding="utf-8")
        daemon.process.send_signal(signal.SIGHUP)
        stay = await asyncio.to_thread(
            daemon.wait_for_log, "the quotas and the secrets stay as they are"
        )
        assert "quota_map_outputs = 0" in stay
        await writer.close()


def test_a_hangup_signal_without_tls_changes_no_certificate(daemon):
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait_for_log("loading the quotas and the secrets again")
    daemon.wait_for_log("the quotas are those of the configuration now")
    assert 'sluice_taskmanager_state{state="ready"} 1.0' in metrics(daemon)
    assert "sluice_tls_certificate_expiry" not in metrics(daemon)
    assert daemon.end() == 0


def metrics(daemon: Daemon) -> str:
    with urllib.request.urlopen(f"{daemon.url}/metrics", timeout=TIMEOUT_SECONDS) as answer:
        return answer.read().decode()
