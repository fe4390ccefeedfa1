"""Configuration: precedence, units, and what each mistake is answered with."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from pydantic import ValidationError

from sluice.shuffle.taskmanager.config.cluster_config import ClusterConfig
from sluice.shuffle.taskmanager.config.network_memory_config import NetworkMemoryConfig
from sluice.shuffle.taskmanager.config.storage_config import StorageConfig
from sluice.shuffle.taskmanager.config.taskmanager_config import (
    ConfigError,
    Key,
    TaskManagerConfig,
    foreign_variables,
    keys,
    load,
)
from sluice.transport.address import MAX_SOCKET_PATH_BYTES
from sluice.transport.config import TransportConfig
from sluice.transport.member_address import DnsName, parse_member
from sluice.transport.settings import format_size


@pytest.fixture
def toml(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "sluice.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def problems(config_file=None, env=None, flags=None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(config_file, env or {}, flags or {})
    return [str(problem) for problem in caught.value.problems]


def test_defaults_work_with_nothing_given():
    config = load(None, {}, {})
    assert config == TaskManagerConfig()
    assert (config.transport.data_port, config.http.http_port) == (7337, 7338)
    assert (config.memory.network_segments, config.memory.segment_size_bytes) == (2048, 32768)
    assert config.transport.write_watermarks(config.memory.segment_size_bytes) == (32769, 65536)


def test_flag_over_environment_over_file_over_default(toml):
    path = toml("[transport]\ndata_port = 1\nlisten_backlog = 2\nmax_connections = 3\n")
    env = {"SLUICE_LISTEN_BACKLOG": "20", "SLUICE_MAX_CONNECTIONS": "30", "HOME": "/"}
    config = load(path, env, {"max_connections": "300", "data_port": None})
    transport = config.transport
    assert (transport.data_port, transport.listen_backlog) == (1, 20)
    assert (transport.max_connections, transport.connections_per_peer) == (300, 1)


@pytest.mark.parametrize("key", keys().values(), ids=lambda key: key.name)
def test_every_key_can_be_given_in_each_way(key: Key, toml):
    shown = {
        "bind_host": "127.0.0.2", "advertised_host": "node-1", "socket_path": "/run/s.sock",
        "socket_mode": "0600", "event_loop": "asyncio",
        "data_directories": "/a:/b", "memory_directory": "/shm/x", "verify_checksums": "false",
        "http_host": "127.0.0.3", "log_level": "debug", "flow_control": "watermark",
        "log_format": "json",
        "traces_endpoint": "http://collector:4318/v1/traces", "traces_sample_ratio": "0.5",
        "write_low_watermark_bytes": "1 KiB",
        "write_high_watermark_bytes": "1 MiB", "segment_size_bytes": "16 KiB",
        "tls_enabled": "true", "tls_require_client_certificate": "no",
        "tls_check_host_name": "no", "tls_minimum_version": "1.2",
        "allow_anonymous": "true", "names_on_loopback": "true",
        "peer_networks": "10.0.0.0/8, 2001:db8::/32", "address_aliases": "proxy:7000",
        "memory_tier_bytes": "4097", "journal_sync": "commit",
        "taskmanagers": "node-1:7337, node-2:7337", "drain_migrate": "true",
        "max_control_memory_bytes": "5 MiB", "remote": "s3://bucket/prefix",
        "remote_endpoint": "http://127.0.0.1:9000", "remote_part_bytes": "9 MiB",
        "quota_overrides": "a: channels = 5",
        "cluster_urls": "http://node-1:7338, https://proxy/node-2/",
    }.get(key.name, "37")  # fmt: skip
    needed = {
        "tls_enabled": {"SLUICE_TLS_CA_FILE": "/ca"},
        "revoked_tokens_file": {"SLUICE_CLUSTER_SECRET_FILES": "/secret"},
    }.get(key.name, {})
    heading = f"[{key.section}]\n" if key.section else ""
    by_file = load(toml(f'{heading}{key.name} = "{shown}"\n'), needed, {})
    assert by_file != load(None, needed, {})
    assert load(None, {key.variable: shown} | needed, {}) == by_file
    assert load(None, needed, {key.name: shown}) == by_file


@pytest.mark.parametrize(
    ("given", "size_bytes"),
    [(4096, 4096), ("4096", 4096), ("4096 B", 4096), ("4 KiB", 4096), ("4KiB", 4096),
     (" 1 MiB ", 1 << 20)],
)  # fmt: skip
def test_sizes(given, size_bytes):
    assert NetworkMemoryConfig(segment_size_bytes=given).segment_size_bytes == size_bytes


@pytest.mark.parametrize("given", ["32 KB", "32k", "32 kib", "-1", "1.5 KiB", "", "KiB", True, 1.5])
def test_a_size_without_a_clear_unit_is_refused(given):
    with pytest.raises(ValidationError, match=r"unit of size|must be a size"):
        NetworkMemoryConfig(segment_size_bytes=given)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1, "1 B"), (1023, "1023 B"), (1536, "1536 B"), (32768, "32 KiB"),
     (1 << 40, "1 TiB")],
)  # fmt: skip
def test_a_size_is_shown_without_loss(size_bytes, text):
    assert format_size(size_bytes) == text


@pytest.mark.parametrize("given", ["30s", "", "soon", True, float("nan"), float("inf"), "inf"])
def test_a_time_is_a_finite_number_of_seconds(given):
    with pytest.raises(ValidationError):
        TransportConfig(connect_timeout_seconds=given)


@pytest.mark.parametrize("given", ["0660", "660", "0o660", 0o660])
def test_a_file_mode_is_in_base_8(given):
    assert TransportConfig(socket_mode=given).socket_mode == 0o660


@pytest.mark.parametrize("given", [660, "rw-rw----", "0999", -1, True])
def test_a_file_mode_in_another_form_is_refused(given):
    with pytest.raises(ValidationError, match="base 8"):
        TransportConfig(socket_mode=given)


def test_none_is_a_value_of_optional_keys():
    config = load(None, {"SLUICE_MEMORY_DIRECTORY": "none", "SLUICE_SOCKET_PATH": ""}, {})
    assert config.storage.memory_directory is None
    assert config.transport.socket_path is None


@pytest.mark.parametrize(
    ("user", "variables", "directory"),
    [
        (0, {"HOME": "/root", "XDG_STATE_HOME": "/state"}, "/var/lib/sluice"),
        (1000, {"HOME": "/home/a"}, "/home/a/.local/state/sluice"),
        (1000, {"HOME": "/home/a", "XDG_STATE_HOME": ""}, "/home/a/.local/state/sluice"),
        (1000, {"HOME": "/home/a", "XDG_STATE_HOME": "state"}, "/home/a/.local/state/sluice"),
        (1000, {"HOME": "/home/a", "XDG_STATE_HOME": "/state"}, "/state/sluice"),
        (1000, {"HOME": "/"}, "/.local/state/sluice"),
        (1000, {"HOME": "home"}, "/var/lib/sluice"),
    ],
)
def test_data_lie_by_default_where_only_their_user_makes_directories(
    monkeypatch, user, variables, directory
):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert StorageConfig().data_directories == (Path(directory),)


def test_revoked_tokens_need_a_secret(tmp_path):
    (told,) = problems(flags={"revoked_tokens_file": str(tmp_path)})
    assert "set cluster_secret_files" in told


def test_directories_of_the_home_directory(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    assert StorageConfig(data_directories=["~/d"]).data_directories == (Path("/home/someone/d"),)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"write_high_watermark_bytes": "2 GiB"}, "must be at most 1 GiB"),
        ({"write_low_watermark_bytes": str(10**30)}, "must be at most 1 GiB"),
        ({"handshake_timeout_seconds": "1e-9"}, "must be at least 0.01"),
        ({"connect_timeout_seconds": "0"}, "must be at least 0.01"),
        ({"frame_timeout_seconds": "0.009"}, "must be at least 0.01"),
        ({"advertised_host": "not a host"}, "is not a host name or address"),
        ({"advertised_host": "0.0.0.0"}, "other hosts cannot connect to it"),
        ({"advertised_host": "::"}, "other hosts cannot connect to it"),
        ({"advertised_host": "x." * 128 + "x"}, "is not a host name or address"),
        ({"advertised_host": "a\0b"}, "is not a host name or address"),
        ({"bind_host": "x" * 64}, "is not a host name or address"),
        ({"http_host": "\u00fc..x"}, "is not a host name or address"),
        ({"socket_path": "a\0b"}, "no path has a NUL character"),
        ({"data_directories": "a\0b"}, "no path has a NUL character"),
        ({"cluster_secret_files": "a\0b"}, "no path has a NUL character"),
        ({"max_channels_per_connection": "1"}, "must be at least 2"),
        ({"memory_tier_bytes": "4095"}, "must be at least 4096, or 0 for no memory tier"),
    ],
    ids=str,
)
def test_a_value_with_which_nothing_would_work_is_refused(flags, told):
    (problem,) = problems(flags=flags)
    assert told in problem
    assert next(iter(flags)) in problem


@pytest.mark.parametrize(
    "host", ["node-1.example", "10.0.0.1", "2001:db8::1", "[::1]", "\u00fc.example"]
)
def test_names_and_addresses_are_advertised(host):
    shown = load(None, {}, {"advertised_host": host}).transport.advertised_host
    assert shown == host.strip("[]")


def test_a_config_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        TransportConfig().data_port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("bind_host", "advertised_host", "reachable"),
    [("0.0.0.0", None, socket.gethostname()), ("::", None, socket.gethostname()),
     ("127.0.0.2", None, "127.0.0.2"), ("node-1", None, "node-1"), ("0.0.0.0", "a.b", "a.b"),
     ("*", None, socket.gethostname()), ("127.0.0.1, 10.0.0.1, ::1", None, "10.0.0.1"),
     ("127.0.0.1, ::1", None, "127.0.0.1"), (["10.0.0.1", "::"], None, socket.gethostname())],
)  # fmt: skip
def test_the_host_that_others_are_told(bind_host, advertised_host, reachable):
    config = TransportConfig(bind_host=bind_host, advertised_host=advertised_host)
    assert config.reachable_host() == reachable


def test_an_unknown_key_is_answered_with_the_nearest_one(toml):
    path = toml("[transport]\ndata_prot = 1\nhost = 1\nhttp_prt = 1\n[memory]\nzzz = 1\n")
    assert problems(path) == [
        f"unknown key data_prot in [transport]: did you mean data_port? [{path}]",
        f"unknown key host in [transport]: did you mean bind_host? [{path}]",
        f"unknown key http_prt in [transport]: did you mean http_port in [http]? [{path}]",
        f"unknown key zzz in [memory]: see docs/reference/settings.md [{path}]",
    ]


def test_a_key_in_the_wrong_table_is_told_where_it_belongs(toml):
    path = toml("network_segments = 9\n[http]\nlog_level = 'info'\n")
    assert problems(path) == [
        f"network_segments stands in the top level but belongs to [memory] [{path}]",
        f"log_level stands in [http] but belongs to the top level [{path}]",
    ]


def test_an_unknown_table_and_a_key_that_must_be_a_table(toml):
    path = toml("storage = 3\n[memry]\na = 1\n")
    assert problems(path) == [
        f"storage = 3 must be a table: write [storage] [{path}]",
        f"unknown table [memry]: did you mean memory? [{path}]",
    ]


def test_an_unknown_variable_is_refused_unless_the_platform_sets_it():
    platform = {
        "SLUICE_SERVICE_HOST": "10.0.0.1",
        "SLUICE_TASKMANAGER_SERVICE_PORT_HTTP": "7338",
        "SLUICE_PORT": "tcp://10.0.0.1:7337",
        "SLUICE_PORT_7337_TCP_ADDR": "10.0.0.1",
        "SLUICE_CONFIG": "/etc/sluice.toml",
    }
    assert load(None, platform, {}) == TaskManagerConfig()
    assert problems(env={"SLUICE_DATA_PROT": "1"}) == [
        "unknown variable SLUICE_DATA_PROT: did you mean SLUICE_DATA_PORT? [environment]"
    ]


@pytest.mark.parametrize(
    "variables",
    [
        {
            "SLUICE_IMAGE": "sluice:1",
            "SLUICE_SPARK_IMAGE": "x",
            "SLUICE_PUBLISH_ADDRESS": "::",
            "SLUICE_OPEN_FILES": "20000",
        },
        {
            "SLUICE_DATA_PORT": "tcp://10.0.0.1:7337",
            "SLUICE_DATA_SERVICE_HOST": "10.0.0.1",
            "SLUICE_DATA_SERVICE_PORT": "7337",
            "SLUICE_DATA_SERVICE_PORT_DATA": "7337",
            "SLUICE_DATA_PORT_7337_TCP": "tcp://10.0.0.1:7337",
            "SLUICE_DATA_PORT_7337_TCP_PROTO": "tcp",
            "SLUICE_DATA_PORT_7337_TCP_PORT": "7337",
            "SLUICE_DATA_PORT_7337_TCP_ADDR": "10.0.0.1",
        },
        {"SLUICE_HTTP_PORT": "tcp://[fd00::1]:7338"},
    ],
    ids=["docker compose", "service sluice-data", "service sluice-http"],
)
def test_variables_of_the_platform_are_passed_over(variables):
    assert load(None, variables, {}) == TaskManagerConfig()
    assert foreign_variables(variables | {"HOME": "/", "SLUICE_IO_THREADS": "1"}) == sorted(
        variables
    )


@pytest.mark.parametrize(
    ("variable", "value", "nearest"),
    [
        ("SLUICE_DATA_PROT", "tcp://10.0.0.1:7337", "SLUICE_DATA_PORT"),
        ("SLUICE_DATA_PORTS", "7337", "SLUICE_DATA_PORT"),
        ("SLUICE_SOCKETPATH", "/run/s.sock", "SLUICE_SOCKET_PATH"),
    ],
)
def test_a_variable_that_is_nearly_a_key_is_refused(variable, value, nearest):
    answer = f"unknown variable {variable}: did you mean {nearest}? [environment]"
    assert problems(env={variable: value}) == [answer]


def test_an_address_where_a_key_takes_a_port_is_refused_when_the_platform_does_not_write_it():
    (answer,) = problems(env={"SLUICE_DATA_PORT": "10.0.0.1:7337"})
    assert answer.startswith('data_port = "10.0.0.1:7337": must be a whole number')


@pytest.mark.parametrize(
    ("flags", "answer"),
    [
        ({"data_port": "65536"}, 'data_port = "65536": must be at most 65535 [--data-port]'),
        ({"data_port": "x"}, 'data_port = "x": must be a whole number [--data-port]'),
        (
            {"segment_size_bytes": 12},
            "segment_size_bytes = 12: must be at least 1 KiB [--segment-size-bytes]",
        ),
        (
            {"segment_size_bytes": "32 KB"},
            'segment_size_bytes = "32 KB": "KB" is not a unit of size: use one of '
            "B, KiB, MiB, GiB, TiB [--segment-size-bytes]",
        ),
        (
            {"keepalive_seconds": "1m"},
            'keepalive_seconds = "1m": must be a number of seconds without a unit, such as 30 '
            "or 0.5 [--keepalive-seconds]",
        ),
        (
            {"keepalive_seconds": 0},
            "keepalive_seconds = 0: must be more than 0 [--keepalive-seconds]",
        ),
        (
            {"event_loop": "trio"},
            'event_loop = "trio": must be uvloop or asyncio [--event-loop]',
        ),
        (
            {"verify_checksums": "maybe"},
            'verify_checksums = "maybe": must be true or false [--verify-checksums]',
        ),
        ({"data_directories": ""}, 'data_directories = "": must not be empty [--data-directories]'),
        ({"bind_host": 3}, "bind_host = 3: must be a list [--bind-host]"),
        ({"advertised_host": 3}, "advertised_host = 3: must be a text [--advertised-host]"),
        (
            {"network_segments": 1 << 25},
            "network_segments = 33554432: must be at most 16777216 [--network-segments]",
        ),
        (
            {"remote_quota_bytes": "0"},
            'remote_quota_bytes = "0": must be at least 1 B [--remote-quota-bytes]',
        ),
        (
            {"remote": "s3://key:secret@bucket/prefix"},
            'remote = "s3://…@bucket/prefix": must be s3://BUCKET/PREFIX with the plain name of a '
            "bucket and a prefix of letters, digits and . _ - / only; credentials belong in the "
            "environment, see docs/operate/remote.md [--remote]",
        ),
        (
            {"remote": "some/where"},
            'remote = "some/where": must be an absolute path, file:///PATH or s3://BUCKET/PREFIX '
            "[--remote]",
        ),
        (
            {"remote_endpoint": "https://me:secret@host"},
            'remote_endpoint = "https://…@host": must be http://HOST:PORT or https://HOST:PORT, '
            "without user and password [--remote-endpoint]",
        ),
        ({"data_prot": 1}, "unknown key data_prot: did you mean data_port? [flag]"),
    ],
)
def test_a_wrong_value_is_answered_with_limit_and_origin(flags, answer):
    assert problems(flags=flags) == [answer]


def test_too_small_a_pool():
    (answer,) = problems(flags={"network_segments": 4})
    assert answer.startswith("network_segments = 4 is too small a pool: at least 5 segments")
    assert load(None, {}, {"network_segments": 5}).memory.network_segments == 5


def test_channels_without_exclusive_buffers_need_floating_ones_and_credit():
    none = {"exclusive_buffers_per_channel": 0}
    assert load(None, {}, none | {"network_segments": 3}).memory.least_network_segments == 3
    for key in ("floating_buffers_per_gate", "floating_buffers_per_stored_gate"):
        (answer,) = problems(flags=none | {key: 0})
        assert answer.startswith("exclusive_buffers_per_channel = 0 leaves channels of a gate")
    (answer,) = problems(flags=none | {"flow_control": "watermark"})
    assert answer.startswith("exclusive_buffers_per_channel = 0 needs flow_control = credit")


def test_watermarks_out_of_order():
    (answer,) = problems(flags={"write_high_watermark_bytes": "32 KiB"})
    assert "write_low_watermark_bytes = 32769 is above write_high_watermark_bytes = 32768" in answer


def test_one_port_for_two_servers():
    assert "both 7338" in problems(flags={"data_port": 7338})[0]
    assert load(None, {}, {"data_port": 0, "http_port": 0}).http.http_port == 0


def test_a_directory_given_twice():
    assert "names a directory twice" in problems(flags={"data_directories": "/a:/b:/a"})[0]


def test_a_socket_path_that_the_kernel_would_refuse():
    longest = "/" + "x" * (MAX_SOCKET_PATH_BYTES - 1)
    assert load(None, {}, {"socket_path": longest}).transport.socket_path == Path(longest)
    (answer,) = problems(flags={"socket_path": longest + "x"})
    assert "has 108 bytes, the kernel allows 107" in answer


def test_every_mistake_is_listed_at_once(toml):
    path = toml("[transport]\ndata_port = -1\nunknown = 1\n")
    found = problems(path, {"SLUICE_IO_THREADS": "0"}, {"log_level": "loud"})
    assert len(found) == 4
    assert str(path) in found[0]
    assert any("SLUICE_IO_THREADS" in problem for problem in found)


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        (b"a = [", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
        (b"a = " + b"[" * 5000, "is not TOML"),
        (None, "No such file"),
    ],
    ids=["no value", "no text", "deep", "missing"],
)
def test_a_file_that_cannot_be_read(tmp_path, content, answer):
    path = tmp_path / "sluice.toml"
    if content is not None:
        path.write_bytes(content)
    (problem,) = problems(path)
    assert str(path) in problem
    assert answer in problem


@pytest.mark.parametrize("key", ["bind_host", "http_host"])
@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.7", "::", "node-1"])
def test_a_taskmanager_without_a_secret_serves_its_own_host_only(key: str, host: str):
    with pytest.raises(ConfigError) as caught:
        load(None, {}, {key: host})
    (problem,) = caught.value.problems
    assert f"{key} = {host} is open to other hosts" in str(problem)
    assert "sluice secret create" in str(problem)
    for allowed in ({"allow_anonymous": "true"}, {"cluster_secret_files": "/secret"}):
        load(None, {}, {key: host} | allowed)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_the_loopback_needs_no_secret(host: str):
    config = load(None, {}, {"bind_host": host, "http_host": host}).with_addresses()
    assert config.transport.bind_host == config.http.http_host == (host,)


@pytest.mark.parametrize(
    ("given", "host"),
    [
        ({}, "127.0.0.1"),
        ({"allow_anonymous": "true"}, "0.0.0.0"),
        ({"cluster_secret_files": "/secret"}, "0.0.0.0"),
    ],
)
def test_the_default_addresses_follow_from_who_may_connect(given: dict[str, str], host: str):
    config = load(None, {}, given).with_addresses()
    assert config.transport.bind_host == config.http.http_host == (host,)


def test_a_shell_with_a_credential_may_start_a_taskmanager():
    assert load(None, {"SLUICE_CREDENTIAL": "x", "SLUICE_CREDENTIAL_FILE": "y"}, {}) == load(
        None, {}, {}
    )


@pytest.mark.parametrize("given", ["node-1", "node-1:", ":7337", "node-1:0", "a:1,b:x"])
def test_another_taskmanager_has_a_host_and_a_port(given):
    with pytest.raises(ValidationError, match="Write HOST:PORT"):
        ClusterConfig(taskmanagers=given)


@pytest.mark.parametrize(
    "given",
    [
        "dns:",
        "dns:-a",
        "dns:a b",
        "dns:a..b",
        "dns:.",
        "dns:a:0",
        "dns:a:65536",
        "dns:a:b",
        "dns:10.0.0.1",
        "dns:10.0.0.1:7337",
        "dns:" + "a" * 64 + ".svc",
        "dns:" + "a." * 127,
    ],
)
def test_a_name_of_taskmanagers_is_a_host_name(given):
    with pytest.raises(ValidationError, match="Write dns:NAME or dns:NAME:PORT"):
        ClusterConfig(taskmanagers=given)
    assert parse_member("dns:sluice.default.svc") == DnsName("sluice.default.svc", 7337)
    assert str(parse_member("dns:sluice.default.svc.:17337")) == "dns:sluice.default.svc.:17337"


def test_a_socket_is_not_another_taskmanager():
    with pytest.raises(ValidationError, match="A Unix socket is not the address of another host"):
        ClusterConfig(taskmanagers="unix:/run/sluice.sock")


@pytest.mark.parametrize("given", ["é", "a\nb", "a" * 254])
def test_node_and_zone_are_short_texts(given):
    for name in ("node", "zone"):
        with pytest.raises(ValidationError, match="must be printable ASCII"):
            ClusterConfig(**{name: given})


def test_other_taskmanagers_are_a_list():
    assert ClusterConfig(taskmanagers="a:1, b:2,").taskmanagers == ("a:1", "b:2")
    assert ClusterConfig(taskmanagers=("[::1]:1",)).taskmanagers == ("[::1]:1",)
