"""Texts of hosts and ports."""

from __future__ import annotations

import pytest

from sluice.shuffle.names import TaskManagerPlace
from sluice.transport.connection_log import counted
from sluice.transport.connector import Address
from sluice.transport.host_port import host_port, is_every_address, is_loopback, split_host_port


@pytest.mark.parametrize(
    ("host", "text"),
    [("node-1", "node-1:7337"), ("10.0.0.1", "10.0.0.1:7337"), ("::1", "[::1]:7337")],
)
def test_an_ipv6_address_has_brackets(host, text):
    assert host_port(host, 7337) == str(Address(host, 7337)) == text
    assert str(TaskManagerPlace("id", host, 7337)) == f"id {text}"
    assert split_host_port(text) == (host, 7337)
    assert counted("kind", text)["source"] == text.removesuffix(":7337")


@pytest.mark.parametrize(
    "text", ["", "node-1", "node-1:", ":7337", "a:0", "a:65536", "a:x", "[]:1"]
)
def test_a_text_without_host_or_port_is_neither(text):
    assert split_host_port(text) is None


def test_a_place_is_read_with_and_without_brackets():
    place = TaskManagerPlace("id", "2001:db8::1", 7337)
    assert place.wire_text() == "id 2001:db8::1:7337"
    assert TaskManagerPlace.parse(place.wire_text()) == place
    assert TaskManagerPlace.parse(str(place)) == place
    assert TaskManagerPlace.parse("id") is None


def test_hosts_of_every_address_and_of_the_loopback():
    hosts = ("*", "0.0.0.0", "::", "127.0.1.1", "::1", "localhost", "10.0.0.1", "node-1")
    assert [host for host in hosts if is_every_address(host)] == ["*", "0.0.0.0", "::"]
    assert [host for host in hosts if is_loopback(host)] == ["127.0.1.1", "::1", "localhost"]
