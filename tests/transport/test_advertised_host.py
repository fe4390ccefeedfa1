"""The advertised host is never the loopback by accident."""

from __future__ import annotations

import socket

import pytest

from sluice.transport import advertised_host
from sluice.transport.advertised_host import with_advertised_host
from sluice.transport.config import TransportConfig

NAME = "node-1"


@pytest.fixture
def names(monkeypatch):
    """Let a test set what names resolve to; an error is raised."""
    known: dict[str, list[str] | OSError] = {}

    async def look_up(host: str, port: int) -> list[tuple[str, int]]:
        found = known[host]
        if isinstance(found, OSError):
            raise found
        return [(address, port) for address in found]

    monkeypatch.setattr(advertised_host, "look_up", look_up)
    monkeypatch.setattr(socket, "gethostname", lambda: NAME)
    return known


async def told(**keys: object) -> str | None:
    return (await with_advertised_host(TransportConfig(**keys))).advertised_host


@pytest.mark.parametrize("bind_host", ["0.0.0.0", "*", "10.0.0.1, 0.0.0.0"])
async def test_a_name_of_the_loopback_is_reported_and_not_advertised(
    names, monkeypatch, caplog, bind_host
):
    names[NAME] = ["127.0.1.1"]
    monkeypatch.setattr(advertised_host, "_own_address", lambda listened: "10.0.0.7")
    assert await told(bind_host=bind_host) == "10.0.0.7"
    assert "the host's name node-1 resolves to 127.0.1.1 here" in caplog.text
    assert "advertising 10.0.0.7 instead: set advertised_host" in caplog.text


async def test_a_host_that_reaches_no_other_advertises_the_loopback(names, monkeypatch, caplog):
    names[NAME] = ["127.0.1.1", "::1"]
    monkeypatch.setattr(advertised_host, "_own_address", lambda listened: None)
    assert await told(bind_host="*") == "127.0.0.1"
    assert "no network interface leads to others" in caplog.text


async def test_a_name_with_an_address_beyond_the_loopback_is_advertised(names, caplog):
    names[NAME] = ["127.0.1.1", "10.0.0.7"]
    assert await told(bind_host="0.0.0.0") == NAME
    assert not caplog.records


@pytest.mark.parametrize(
    "keys", [{"advertised_host": "a.b", "bind_host": "*"}, {"bind_host": "a.b"}]
)
async def test_a_configured_name_of_the_loopback_is_reported(names, caplog, keys):
    names["a.b"] = ["127.0.1.1"]
    assert await told(**keys) == "a.b"
    assert "a.b resolves to 127.0.1.1 on this host, which no other host can reach" in caplog.text


async def test_a_name_that_is_not_known_is_reported(names, caplog):
    names[NAME] = socket.gaierror(-2, "Name or service not known")
    assert await told(bind_host="*") == NAME
    assert "cannot be resolved on this host" in caplog.text


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "10.0.0.1", "localhost"])
async def test_addresses_are_not_looked_up(names, caplog, host):
    assert await told(bind_host=host) == host
    assert not caplog.records


@pytest.mark.parametrize("listened", [("*",), ("0.0.0.0",), ("::",)])
def test_an_own_address_is_of_a_family_that_is_listened_on(listened):
    found = advertised_host._own_address(listened)
    if found is not None:  # this machine may have no network
        assert ":" not in found or listened != ("0.0.0.0",)
        assert ":" in found or listened != ("::",)
