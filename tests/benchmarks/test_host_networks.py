"""Two hosts on one machine have networks of their own, where that is possible."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.cluster import WORKER_HOSTS
from tests.support.host_networks import host_networks

OWN = Path("/proc/thread-self/ns/net")


def test_each_host_has_a_network_of_its_own():
    before = OWN.readlink()
    with host_networks() as networks:
        if networks.problem:
            pytest.skip(networks.problem)
        here = str(OWN.readlink())
        found = []
        for host in networks.hosts:
            words = [word.replace("{host}", host) for word in networks.wrapper]
            command = [*words, "readlink", "/proc/self/ns/net"]
            found.append(subprocess.check_output(command, text=True, timeout=30).strip())
    assert here == found[0] != found[1]
    assert str(before) not in found
    assert OWN.readlink() == before
    assert not any(Path(f"/run/netns/sluice-{host}").exists() for host in networks.hosts)


def test_without_the_tools_the_hosts_share_the_loopback(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    before = OWN.readlink()
    with host_networks() as networks:
        assert (networks.hosts, networks.wrapper) == (WORKER_HOSTS, ())
        assert "share the loopback" in networks.problem
        assert "Run as root" in networks.problem
        assert OWN.readlink() == before
