"""The mark of bytes that must have come before the kernel wakes a reader."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.protocol.schema import ROLE_PRODUCER, RegionData, encode
from sluice.transport.socket_options import (
    WORTH_WAITING_FOR_BYTES,
    ReceiveLowWater,
    kernel_makes_room,
)
from tests.support.peers import RawPeer, Service, a_config, a_service, turns

if TYPE_CHECKING:
    from pathlib import Path

    from sluice.transport.address import Address

LARGE = 4 * WORTH_WAITING_FOR_BYTES


class Options:
    """A socket that keeps the options set on it."""

    def __init__(self) -> None:
        self.marks: list[int] = []

    def setsockopt(self, level: int, option: int, value: int) -> None:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_RCVLOWAT)
        self.marks.append(value)


def test_payloads_of_one_size_leave_the_mark_where_it_is() -> None:
    """As when each read brings one and the head of the next."""
    options = Options()
    mark = ReceiveLowWater(options)
    for frame in range(8):
        mark.expect(LARGE - frame % 2 * 34, frame)
    assert options.marks == [LARGE, LARGE - 34]
    mark.expect(2 * LARGE, 8)
    assert options.marks[-1] == 2 * LARGE


@given(
    st.lists(
        st.tuples(st.integers(0, 8 * WORTH_WAITING_FOR_BYTES), st.lists(st.integers(1, 300_000)))
    )
)
def test_the_mark_is_never_above_the_missing_bytes(
    payloads: list[tuple[int, list[int]]],
) -> None:
    """Else the last bytes of a payload would stay in the socket without waking the reader."""
    mark = ReceiveLowWater(Options())
    for frame, (length, reads) in enumerate(payloads):
        missing = length
        mark.expect(missing, frame)
        assert mark.mark_bytes <= max(1, missing)
        for count in reads:
            missing -= min(count, missing)
            if not missing:
                break  # the frame is complete
            mark.expect(missing, frame)
            assert mark.mark_bytes <= missing


@pytest.mark.parametrize(
    ("platform", "release", "expected"),
    [
        ("linux", "4.17.19", False),
        ("linux", "4.18.0-553.el8", True),
        ("linux", "6.1", True),
        ("linux", "3.10.0", False),
        ("linux", "?", False),
        ("darwin", "23.0", False),
    ],
)
def test_kernels_that_would_wait_for_ever_get_no_mark(
    platform: str, release: str, expected: bool
) -> None:
    assert kernel_makes_room(platform, release) is expected


class SocketTransport:
    """A transport of which only the socket is asked for."""

    def __init__(self, sock: object) -> None:
        self._sock = sock

    def get_extra_info(self, name: str) -> object:
        return self._sock if name == "socket" else None


@pytest.mark.skipif(not kernel_makes_room(), reason="a kernel that is left alone")
def test_a_socket_that_refuses_the_mark_has_none() -> None:
    """As a sandbox with a network stack of its own: the connection is to live without it."""

    class Refusing:
        family = socket.AF_INET

        def setsockopt(self, level: int, option: int, value: int) -> None:
            raise OSError("Protocol not available")

    assert ReceiveLowWater.of(SocketTransport(Refusing())) is None
    with socket.socket() as plain, socket.socket(socket.AF_UNIX) as unix:
        assert ReceiveLowWater.of(SocketTransport(plain)) is not None
        assert ReceiveLowWater.of(SocketTransport(unix)) is None


async def mark_while_a_payload_comes(service: Service, address: Address | Path) -> list[int]:
    """Send a large payload in two steps; return the socket's mark between and after them."""
    marks: list[int] = []
    with await RawPeer.connect(address) as peer:
        await peer.shake_hands(role=ROLE_PRODUCER, application_id="app", segment_size_bytes=LARGE)
        handler = await service.handler()
        transport = handler.connection._transport
        assert transport is not None
        sock = transport.get_extra_info("socket")
        frame = encode(RegionData(0, 0), LARGE) + bytes(LARGE)
        asked = handler.supplier.lent
        await peer.send(frame[:100])
        await handler.until(lambda: handler.supplier.lent > asked)
        await turns()
        marks.append(sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT))
        await peer.send(frame[100:])
        await handler.until(lambda: len(handler.received) == 1)
        await turns()
        marks.append(sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT))
        assert handler.received == [(RegionData(0, 0), bytes(LARGE))]
    await handler.until_lost()
    return marks


async def test_a_tcp_connection_waits_for_a_large_payload_and_then_for_anything() -> None:
    head = len(encode(RegionData(0, 0), LARGE))
    async with a_service(segment_size_bytes=LARGE) as service:
        marks = await mark_while_a_payload_comes(service, service.address)
    assert marks == [LARGE + head - 100, 1]


async def test_unix_sockets_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with a_service(a_config(socket_path=path), segment_size_bytes=LARGE) as service:
        assert await mark_while_a_payload_comes(service, path) == [1, 1]


@pytest.mark.parametrize("how", ["half_close", "reset"])
async def test_a_connection_that_ends_in_a_large_payload_wakes_its_reader(how: str) -> None:
    async with a_service(segment_size_bytes=LARGE) as service:
        with await RawPeer.connect(service.address) as peer:
            await peer.shake_hands(
                role=ROLE_PRODUCER, application_id="app", segment_size_bytes=LARGE
            )
            handler = await service.handler()
            await peer.send((encode(RegionData(0, 0), LARGE) + bytes(LARGE))[:-1])
            await handler.until(lambda: handler.supplier.lent)
            getattr(peer, how)()
            await handler.until_lost()
        assert handler.received == []
        assert handler.supplier.lent == 0
