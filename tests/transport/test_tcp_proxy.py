"""The fault-injecting proxy itself does to a link exactly the faults that tests set."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from sluice.transport.address import Address
from tests.support.peers import PATIENCE_SECONDS, RawPeer
from tests.support.tcp_proxy import Cut, Fault, FaultProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@contextlib.asynccontextmanager
async def an_echo(path: Path) -> AsyncIterator[tuple[str, int]]:
    """A server that echoes, and says "end" when its client sends no more."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1000):
                writer.write(data)
                await writer.drain()
            writer.write(b"end")
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_unix_server(serve, str(path))
    try:
        yield str(path), 0
    finally:
        server.close()


async def test_over_unix_sockets_with_a_half_close(tmp_path: Path) -> None:
    listening = str(tmp_path / "proxy")
    async with (
        an_echo(tmp_path / "echo") as target,
        FaultProxy(target, socket_path=listening) as proxy,
    ):
        with await RawPeer.connect(Address(*proxy.address)) as peer:
            await peer.send(b"abc")
            assert await peer.read_exactly(3) == b"abc"
            link = await proxy.connection()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await link.down.wait_passed(3)
                assert (link.up.passed_bytes, link.down.passed_bytes) == (3, 3)
                link.half_close(link.up)
                assert await peer.read_to_end() == b"end"
                await link.down.ended.wait()


@pytest.mark.parametrize("cut", [Cut.CLOSE, Cut.RESET, Cut.HALF_CLOSE])
async def test_a_link_is_cut_after_a_number_of_bytes(tmp_path: Path, cut: Cut) -> None:
    down = Fault(cut_after_bytes=1500, cut=cut)
    async with an_echo(tmp_path / "echo") as target, FaultProxy(target, down=down) as proxy:
        with await RawPeer.connect(Address(*proxy.address)) as peer:
            await peer.send(b"x" * 4000)
            assert await peer.read_to_end() == b"x" * 1500
            link = await proxy.connection()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await link.down.wait_passed(1500)
            assert link.down.passed_bytes == 1500
            if cut is Cut.HALF_CLOSE:
                assert not link.up.ended.is_set()


async def test_connections_beyond_the_bound_are_closed(tmp_path: Path) -> None:
    async with (
        an_echo(tmp_path / "echo") as target,
        FaultProxy(target, max_connections=1) as proxy,
    ):
        with (
            await RawPeer.connect(Address(*proxy.address)) as first,
            await RawPeer.connect(Address(*proxy.address)) as second,
        ):
            await first.send(b"abc")
            assert await first.read_exactly(3) == b"abc"
            assert await second.read_to_end() == b""
            link = await proxy.connection()
            link.close()
            assert await first.read_to_end() == b""
