"""Connecting: again until a listener is there, one deadline, and nothing left after a cancel."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.errors import ErrorCode, UnexpectedMessage
from sluice.protocol.remote_error import RemoteError
from sluice.transport.address import Address
from sluice.transport.errors import ConnectFailed
from tests.support.peers import (
    PATIENCE_SECONDS,
    a_config,
    a_service,
    end,
    open_client,
    turns,
)
from tests.support.tcp_proxy import Cut, Fault, FaultProxy

if TYPE_CHECKING:
    from pathlib import Path


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@pytest.mark.parametrize("over", ["tcp", "unix"])
async def test_a_listener_that_comes_late_is_found(
    tmp_path: Path, over: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, path = free_port(), tmp_path / "s"
    address = Address("127.0.0.1", port) if over == "tcp" else Address(str(path), 0)
    refused = asyncio.Event()
    sleep = asyncio.sleep

    async def noticed_sleep(seconds: float) -> None:
        refused.set()
        await sleep(seconds)

    monkeypatch.setattr("sluice.transport.connector.asyncio.sleep", noticed_sleep)
    connecting = asyncio.ensure_future(open_client(address))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await refused.wait()
    async with a_service(a_config(data_port=port, socket_path=path)) as service:
        client = await connecting
        assert service.listener.accepted_total == 1
        await end(client)


async def test_without_a_listener_connecting_fails_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pause that would last beyond the deadline is not begun."""
    monkeypatch.setattr("sluice.transport.connector._FIRST_PAUSE_SECONDS", 10 * PATIENCE_SECONDS)
    address = Address("127.0.0.1", free_port())
    with pytest.raises(ConnectFailed) as caught:
        await open_client(address, a_config(connect_timeout_seconds=PATIENCE_SECONDS))
    assert str(address) in str(caught.value)
    assert caught.value.limit == f"{float(PATIENCE_SECONDS)} s"
    assert caught.value.code is ErrorCode.CONNECT_REFUSED
    assert caught.value.retryable
    assert isinstance(caught.value.__cause__, OSError)


async def test_a_link_that_swallows_everything_ends_at_the_deadline() -> None:
    swallow = Fault(cut_after_bytes=0, cut=Cut.STALL)
    async with a_service() as service, FaultProxy(service.address, up=swallow) as proxy:
        with pytest.raises(ConnectFailed) as caught:
            await open_client(
                Address(proxy.host, proxy.port), a_config(connect_timeout_seconds=0.3)
            )
        assert caught.value.code is ErrorCode.CONNECT_FAILED
        assert len(proxy.connections) == 1


async def test_an_acceptor_that_hangs_up_is_tried_again() -> None:
    """As a dying TaskManager does, or a proxy whose TaskManager is not back yet."""
    async with (
        a_service() as service,
        FaultProxy(service.address, up=Fault(cut_after_bytes=5)) as proxy,
    ):
        connecting = asyncio.ensure_future(open_client(Address(proxy.host, proxy.port)))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await (await proxy.connection(0)).up.ended.wait()
            proxy.up = Fault()
            client = await connecting
        assert len(service.handlers) == 1
        await end(client)


async def test_a_refusal_is_final() -> None:
    async with a_service() as service:
        service.refuse = UnexpectedMessage("No")
        with pytest.raises(RemoteError, match="No"):
            await open_client(service.address)
        assert service.listener.accepted_total == 1


@pytest.mark.parametrize("turns_before_cancel", [0, 1, 2, 3, 4, 5, 6, 8, 10])
async def test_cancelled_at_any_time_nothing_is_left(turns_before_cancel: int) -> None:
    async with a_service() as service:
        connecting = asyncio.ensure_future(open_client(service.address))
        await turns(turns_before_cancel)
        connecting.cancel()
        try:
            await end(await connecting)  # it had come through
        except asyncio.CancelledError:
            await turns(5)
        async with asyncio.timeout(PATIENCE_SECONDS):
            for handler in service.handlers:
                await handler.until_lost()
    # the leak checks of every test look for descriptors and tasks


@pytest.mark.parametrize("over", ["tcp", "unix"])
@pytest.mark.parametrize("turns_before_cancel", range(8))
async def test_an_attempt_that_was_given_up_is_not_late(
    tmp_path: Path, over: str, turns_before_cancel: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Event loops close the socket of a cancelled connection, and some never tell it."""
    deadline_seconds = 0.05  # not over before the cancellation, also on a busy machine
    family, path = socket.AF_UNIX, str(tmp_path / "s")
    with socket.socket(family if over == "unix" else socket.AF_INET) as silent:
        silent.bind(path if over == "unix" else ("127.0.0.1", 0))
        silent.listen()
        address = Address(path, 0) if over == "unix" else Address(*silent.getsockname())
        config = a_config(handshake_timeout_seconds=deadline_seconds)
        connecting = asyncio.ensure_future(open_client(address, config=config))
        await turns(turns_before_cancel)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        after_it = asyncio.Event()
        asyncio.get_running_loop().call_later(3 * deadline_seconds, after_it.set)
        await after_it.wait()
    assert "closing connection" not in caplog.text


async def test_cancelled_between_two_attempts() -> None:
    connecting = asyncio.ensure_future(open_client(Address("127.0.0.1", free_port())))
    await turns(20)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
