"""Addresses of a real TaskManager: several to listen on, another port to advertise."""

from __future__ import annotations

import json
import socket
import urllib.request
from typing import TYPE_CHECKING

import pytest

from sluice.transport.address import Address
from tests.support.daemon import SLUICE, Daemon, run
from tests.support.wire_clients import consumer, producer, read_gate, write_map_output

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])


def served(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read(), "utf-8")


@one_loop
async def test_a_list_of_addresses_serves_both_families(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this host has no IPv6")
    with Daemon(tmp_path, bind_host="127.0.0.1, ::1", http_host="127.0.0.1, ::1") as daemon:
        writer = await producer(Address("::1", daemon.data_port))
        await write_map_output(writer, 1, 0, [[b"by IPv6", b""]])
        reader = await consumer(daemon.address)
        assert await read_gate(reader, 1, [(reader.ack, [0])], 0, 2) == [b"by IPv6"]
        status = json.loads(served(f"http://[::1]:{daemon.http_port}/api/v1/status"))
        assert any(text.startswith("[::1]:") for text in strings(status))
        shown = run([str(SLUICE), "status", f"[::1]:{daemon.http_port}"])
        assert shown.returncode == 0, shown.stderr
        await writer.close()
        await reader.close()
        assert daemon.end() == 0


@one_loop
async def test_the_port_that_is_advertised_is_another_one(tmp_path: Path) -> None:
    with Daemon(tmp_path, advertised_port=17337) as daemon:
        assert f"data port 127.0.0.1:17337 (here {daemon.data_port})" in daemon.log
        writer = await producer(daemon.address)
        assert (writer.ack.advertised_host, writer.ack.data_port) == ("127.0.0.1", 17337)
        await writer.close()
        status = json.loads(served(f"{daemon.url}/api/v1/status"))
        assert status["address"] == "127.0.0.1:17337"
        assert daemon.end() == 0


def strings(value: object) -> list[str]:
    """Return all texts in a document."""
    if isinstance(value, dict):
        return [text for each in value.values() for text in strings(each)]
    if isinstance(value, list):
        return [text for each in value for text in strings(each)]
    return [value] if isinstance(value, str) else []
