"""The checks of a host: each problem has its remedy, and what is well is said to be."""

from __future__ import annotations

import datetime
import errno
import resource
import socket
import time

import pytest

from sluice.cli import doctor_host
from sluice.protocol.identity import secret_to_text
from sluice.protocol.schema import PROCESS_PORT_STEP
from sluice.shuffle.taskmanager.process import host_limits
from sluice.shuffle.taskmanager.process.host_limits import FileSystem, HostFacts
from sluice.spark_integration import spark_home
from sluice.transport.config import AuthConfig, TransportConfig
from tests.protocol.identity_vectors import SECRET
from tests.support.certificates import Authority
from tests.support.free_ports import free_ports
from tests.support.mini_cluster import taskmanager_config

GIB = 1 << 30


def results(checks):
    return [(each.name.partition(" /")[0], each.result) for each in checks]


def with_host(monkeypatch, **facts):
    given = {
        "memory_bytes": 64 * GIB,
        "control_group_bytes": None,
        "descriptors": None,
        "threads": None,
        "file_systems": {},
    } | facts
    monkeypatch.setattr(host_limits, "gather", lambda config: HostFacts(**given))


class TestSpark:
    def test_a_found_spark_and_java_are_ok(self, monkeypatch):
        monkeypatch.setattr(spark_home, "require_java", lambda *given: None)
        assert results(doctor_host.spark({})) == [("spark", "ok"), ("java", "ok")]

    def test_a_missing_java_is_a_problem_with_its_remedy(self, tmp_path):
        java = list(doctor_host.spark({"PATH": "", "SPARK_CONF_DIR": str(tmp_path)}))[1]
        assert (java.name, java.result, java.text) == ("java", "problem", "Java is not found")
        assert java.remedy.startswith("Install Java 17 or later")

    def test_without_spark_nothing_is_missing(self, monkeypatch, tmp_path):
        monkeypatch.setattr(spark_home, "pyspark_home", lambda: None)
        found = results(doctor_host.spark({"PATH": "", "SPARK_CONF_DIR": str(tmp_path)}))
        assert found == [("spark", "skipped"), ("java", "skipped")]


class TestLimits:
    def test_a_large_host_is_ok(self, monkeypatch, tmp_path):
        with_host(monkeypatch)
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        monkeypatch.setattr(resource, "getrlimit", lambda which: unlimited)
        found = results(doctor_host.limits(taskmanager_config(tmp_path)))
        assert found == [("open files", "ok"), ("memory", "ok")]

    def test_too_few_open_files_are_a_problem(self, monkeypatch, tmp_path):
        with_host(monkeypatch)
        monkeypatch.setattr(resource, "getrlimit", lambda which: (100, 130))
        line = next(iter(doctor_host.limits(taskmanager_config(tmp_path))))
        assert (line.name, line.result) == ("open files", "problem")
        assert "130 are allowed" in line.text
        assert "LimitNOFILE" in line.remedy

    def test_a_setting_that_cannot_work_has_its_remedy(self, monkeypatch, tmp_path):
        with_host(monkeypatch, memory_bytes=1 << 10)
        line = next(iter(doctor_host.limits(taskmanager_config(tmp_path))))
        assert (line.name, line.result) == ("limit of network_segments", "problem")
        assert line.remedy.startswith("set at most ")


class TestMemoryDirectory:
    @pytest.mark.parametrize(
        ("there", "result", "text"),
        [
            (FileSystem("tmpfs", 64 * GIB), "ok", "tmpfs of 64 GiB"),
            (FileSystem("tmpfs", 1 << 20), "problem", "its tmpfs has 1 MiB"),
            (FileSystem("ext4", 64 * GIB), "problem", "it is on ext4, not in memory"),
        ],
    )
    def test_its_file_system_is_checked(self, monkeypatch, tmp_path, there, result, text):
        config = taskmanager_config(tmp_path, memory_tier_bytes=2 << 20)
        with_host(monkeypatch, file_systems={config.storage.memory_directory: there})
        (line,) = doctor_host.memory_directory(config)
        assert line.result == result
        assert text in line.text
        assert bool(line.remedy) == (result == "problem")

    def test_a_tier_that_is_turned_off_needs_nothing(self, tmp_path):
        config = taskmanager_config(tmp_path, memory_tier_bytes=0, region_areas_bytes=0)
        assert results(doctor_host.memory_directory(config)) == [("memory tier", "skipped")]


class TestDataDirectories:
    def test_one_with_room_is_ok_also_before_it_is_made(self, tmp_path):
        config = taskmanager_config(tmp_path, min_free_bytes=0)
        (line,) = doctor_host.data_directories(config)
        assert line.result == "ok", line
        assert line.text.endswith("it is made at the first start")

    def test_a_disk_without_room_is_a_problem(self, tmp_path):
        config = taskmanager_config(tmp_path, min_free_bytes="1024 TiB")
        (line,) = doctor_host.data_directories(config)
        assert (line.result, line.remedy[:10]) == ("problem", "Free space")

    def test_one_that_others_can_write_to_is_a_problem(self, tmp_path):
        config = taskmanager_config(tmp_path, min_free_bytes=0)
        (directory,) = config.storage.data_directories
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o777)
        (line,) = doctor_host.data_directories(config)
        assert line.result == "problem"
        assert line.remedy


class TestCertificates:
    def test_without_tls_there_is_nothing_to_check(self, tmp_path):
        found = doctor_host.certificates(taskmanager_config(tmp_path), time.time())
        assert results(found) == [("certificate", "skipped")]

    @pytest.mark.parametrize(("days", "result"), [(60, "ok"), (5, "problem")])
    def test_one_that_expires_soon_is_a_problem(self, tmp_path, days, result):
        authority = Authority(tmp_path / "ca")
        end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
        certificate, key = authority.issue(not_after=end)
        line = self.checked(tmp_path, authority, certificate, key)
        assert line.result == result
        assert f"{end:%Y-%m-%d}" in line.text

    def test_a_missing_file_is_a_problem(self, tmp_path):
        authority = Authority(tmp_path / "ca")
        certificate, _ = authority.issue()
        line = self.checked(tmp_path, authority, certificate, tmp_path / "missing.key")
        assert line.result == "problem"
        assert "missing.key" in line.text + line.remedy

    def checked(self, tmp_path, authority, certificate, key):
        transport = TransportConfig(
            tls_enabled=True, tls_certificate_file=certificate, tls_key_file=key,
            tls_ca_file=authority.ca_file,
        )  # fmt: skip
        config = taskmanager_config(tmp_path).model_copy(update={"transport": transport})
        (line,) = doctor_host.certificates(config, time.time())
        return line


class TestSecrets:
    def checked(self, tmp_path, mode, text, **auth):
        path = tmp_path / "secret"
        path.write_text(text + "\n")
        path.chmod(mode)
        files = AuthConfig(cluster_secret_files=(path,), **auth)
        config = taskmanager_config(tmp_path).model_copy(update={"auth": files})
        return list(doctor_host.secrets(config, path))

    def test_a_private_secret_is_ok_and_not_shown(self, tmp_path):
        (line,) = self.checked(tmp_path, 0o600, secret_to_text(SECRET))
        assert line.result == "ok"
        assert secret_to_text(SECRET) not in line.text

    @pytest.mark.parametrize(("mode", "text"), [(0o644, secret_to_text(SECRET)), (0o600, "x")])
    def test_an_open_or_damaged_one_is_a_problem_and_not_shown(self, tmp_path, mode, text):
        (line,) = self.checked(tmp_path, mode, text)
        assert line.result == "problem"
        assert line.remedy
        assert secret_to_text(SECRET) not in line.text + line.remedy

    def test_anonymous_access_is_a_problem(self, tmp_path):
        auth = AuthConfig(allow_anonymous=True)
        config = taskmanager_config(tmp_path).model_copy(update={"auth": auth})
        (line,) = doctor_host.secrets(config, None)
        assert (line.result, line.remedy) == (
            "problem",
            "Make one with: sluice secret create FILE",
        )


class TestPorts:
    @pytest.mark.parametrize(
        ("listened", "asked"),
        [("127.0.0.2", "127.0.0.2"), ("0.0.0.0", "127.0.0.1"), ("*", "127.0.0.1"), ("::", "::1")],
    )
    def test_doctor_asks_the_address_that_the_taskmanager_listens_on(
        self, tmp_path, listened, asked
    ):
        config = taskmanager_config(tmp_path).model_copy(
            update={"transport": TransportConfig(bind_host=listened, data_port=1)}
        )
        assert next(doctor_host.used_ports(config)).host == asked

    def test_a_port_in_use_is_found(self, tmp_path):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            config = taskmanager_config(tmp_path).model_copy(
                update={"transport": TransportConfig(bind_host="127.0.0.1", data_port=port)}
            )
            used = next(doctor_host.used_ports(config))
        assert used.setting == "data_port"
        assert used.error is not None
        assert used.error.errno == errno.EADDRINUSE
        assert doctor_host.port_line(used, is_ours=True).result == "ok"
        line = doctor_host.port_line(used, is_ours=False)
        assert line.result == "problem"
        assert "set another data_port" in line.remedy
        assert next(doctor_host.used_ports(config)).error is None

    def test_the_ports_of_all_data_processes_are_checked(self, tmp_path):
        first = free_ports(3, "127.0.0.1")
        last = first + 2 * PROCESS_PORT_STEP
        config = taskmanager_config(tmp_path).model_copy(
            update={
                "processes": 3,
                "transport": TransportConfig(bind_host="127.0.0.1", data_port=first),
            }
        )
        with socket.create_server(("127.0.0.1", last)):
            lines = [
                doctor_host.port_line(each, is_ours=False)
                for each in doctor_host.used_ports(config)
                if each.setting == "data_port"
            ]
        assert [(each.name, each.result) for each in lines] == [
            (f"port {first}", "ok"),
            (f"port {first + PROCESS_PORT_STEP}", "ok"),
            (f"port {last}", "problem"),
        ]
        assert "data_port of data process 2 cannot be used" in lines[2].text
