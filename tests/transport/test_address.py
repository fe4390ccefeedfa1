"""Texts of hosts and ports."""

from __future__ import annotations

import pytest

from sluice.shuffle.names import TaskManagerPlace
from sluice.transport.address import (
    Address,
    InvalidAddress,
    host_port,
    is_every_address,
    is_loopback,
)
from sluice.transport.errors import counted


@pytest.mark.parametrize(
    ("host", "text"),
    [("node-1", "node-1:7337"), ("10.0.0.1", "10.0.0.1:7337"), ("::1", "[::1]:7337")],
)
def test_an_ipv6_address_has_brackets(host, text):
    assert host_port(host, 7337) == str(Address(host, 7337)) == text
    assert str(TaskManagerPlace("id", host, 7337)) == f"id {text}"
    assert Address.parse(text) == (host, 7337)
    assert counted("kind", text)["source"] == text.removesuffix(":7337")


@pytest.mark.parametrize(
    "text",
    [
        "", "node-1", "node-1:", ":7337", "a:0", "a:65536", "a:x", "a:1\n", "a:\u0661", "[]:1",
        "a:b:7337", "::1:7337", "[::1]7337", "unix:", "unix:socket", "unix:/" + 107 * "x",
    ],
)  # fmt: skip
def test_a_text_of_another_form_is_refused(text):
    with pytest.raises(InvalidAddress) as refused:
        Address.parse(text)
    assert refused.value.value == text
    assert "unix:/PATH" in refused.value.remedy


@pytest.mark.parametrize("text", ["a:1", "10.0.0.1:65535", "[2001:db8::1]:7337", "unix:/run/s"])
def test_an_address_is_read_from_its_text(text):
    assert str(Address.parse(text)) == text


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
