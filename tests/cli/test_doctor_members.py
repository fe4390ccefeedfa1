"""``sluice doctor`` resolves names of TaskManagers, and says what it finds at their addresses."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from sluice.cli import doctor_members
from tests.support.daemon import Daemon, sluice
from tests.support.free_ports import free_ports
from tests.support.mini_cluster import taskmanager_config

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAME = "taskmanagers.example"


@pytest.fixture
def resolve(monkeypatch) -> Callable[..., None]:
    """Let the name have these addresses."""

    def use(*hosts: str) -> None:
        def found(name: str, port: int, **_: object) -> list[object]:
            if name != NAME or not hosts:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in hosts]

        monkeypatch.setattr(socket, "getaddrinfo", found)

    return use


def lines(tmp_path: Path, port: int, **settings: object) -> list[str]:
    config = taskmanager_config(tmp_path, taskmanagers=f"dns:{NAME}:{port}", **settings)
    return [
        f"{each.result} {each.name}: {each.text}. {each.remedy}"
        for each in doctor_members.named_members(config)
    ]


def test_a_name_without_an_address_is_a_problem(tmp_path: Path, resolve):
    resolve()
    (line,) = lines(tmp_path, 7337)
    assert line.startswith(f"problem dns:{NAME}:7337: it has no address: Name or service not known")


def test_every_address_of_a_name_is_greeted(tmp_path: Path, resolve):
    own, other = tmp_path / "own.secret", tmp_path / "other.secret"
    for each in (own, other):
        sluice("secret", "create", str(each))
    port = free_ports(1)
    hosts = ["127.80.0.1", "127.80.0.2", "127.80.0.3", "127.80.0.4"]
    settings: list[dict[str, Any]] = [
        {"cluster_secret_files": own},
        {"cluster_secret_files": other},
        {"cluster_secret_files": own, "advertised_host": "elsewhere.example"},
    ]
    daemons = [
        Daemon(tmp_path / host, host, **own_settings)
        for host, own_settings in zip(hosts, settings, strict=False)
    ]
    try:
        for daemon in daemons:
            daemon.data_port = port
            daemon.start()
        resolve(*hosts, hosts[0])
        found = lines(tmp_path, port, cluster_secret_files=(own,))
    finally:
        for daemon in daemons:
            daemon.kill()
    assert found[0] == f"ok dns:{NAME}:{port}: it has 4 addresses. "
    assert "belongs to this cluster" in found[1]
    assert "give both the same cluster secret" in found[2]
    assert "advertised_host" in found[3]
    assert "No TaskManager answers" in found[4]
    assert [each.split()[0] for each in found] == ["ok", "ok", *["problem"] * 3]


def test_addresses_are_left_to_the_check_of_data_ports(tmp_path: Path, resolve):
    resolve()
    config = taskmanager_config(tmp_path, taskmanagers="127.0.0.1:7337")
    assert list(doctor_members.named_members(config)) == []
