"""Which addresses a TaskManager connects to on behalf of a client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from sluice.protocol.errors import ErrorCode, NotPermitted
from sluice.transport.address import Address
from sluice.transport.config import AuthConfig
from sluice.transport.connector import connect
from sluice.transport.peer_networks import PeerNetworks
from tests.support.peers import SEGMENT, RecordingHandler, a_config, a_hello, a_service

if TYPE_CHECKING:
    from sluice.transport.name_lookup import SocketAddress

TEN = PeerNetworks(["10.0.0.0/8", "2001:db8::/32"])


@pytest.mark.parametrize(
    ("host", "inside"),
    [
        ("10.1.2.3", True),
        ("11.1.2.3", False),
        ("127.0.0.1", False),
        ("169.254.169.254", False),
        ("2001:db8::1", True),
        ("2001:db9::1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("::ffff:10.1.2.3", True),
        ("::ffff:127.0.0.1", False),
    ],
)
def test_an_address_is_inside_or_refused(host: str, inside: bool) -> None:
    found = [(host, 7337)]
    assert PeerNetworks().permitted("name:7337", found) == found
    if inside:
        assert TEN.permitted("name:7337", found) == found
        return
    with pytest.raises(NotPermitted) as caught:
        TEN.permitted("name:7337", found)
    assert caught.value.code is ErrorCode.NOT_PERMITTED
    assert "auth.peer_networks" in str(caught.value)
    assert host not in str(caught.value)


def test_only_the_addresses_inside_are_kept() -> None:
    found = [("127.0.0.1", 1), ("10.0.0.1", 1), ("192.168.0.1", 1), ("10.0.0.2", 1)]
    assert TEN.permitted("name", found) == [("10.0.0.1", 1), ("10.0.0.2", 1)]


async def _connect(address: Address, networks: PeerNetworks) -> RecordingHandler:
    connection, _ = await connect(
        address, a_hello(), RecordingHandler, a_config(), SEGMENT, None, networks
    )
    assert isinstance(connection._handler, RecordingHandler)
    return connection._handler


async def test_the_address_that_is_dialled_is_the_one_that_was_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The name service answers differently every time; no second answer is asked for."""
    answers: list[list[SocketAddress]] = []

    async def answer(host: str, port: int) -> list[SocketAddress]:
        assert host == "changing"
        return answers.pop(0)

    monkeypatch.setattr("sluice.transport.connector.look_up", answer)
    loopback = PeerNetworks(["127.0.0.0/8"])
    async with a_service() as service:
        port = service.listener.port
        # 192.0.2.1 would be tried first and is left out.
        answers[:] = [[("192.0.2.1", port), ("127.0.0.1", port)], [("192.0.2.1", port)]]
        handler = await _connect(Address("changing", port), loopback)
        assert handler.connection.remote == f"127.0.0.1:{port}"
        assert len(answers) == 1
        handler.connection.close()
        await handler.until_lost()
        with pytest.raises(NotPermitted, match=f"value changing:{port}"):
            await _connect(Address("changing", port), loopback)
        assert service.listener.accepted_total == 1


@pytest.mark.parametrize("text", ["37", "10.0.0.1/8", "host", "10.0.0.0/33", "10.0.0.0/8/8"])
def test_a_text_that_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="is not a network"):
        AuthConfig(peer_networks=("10.0.0.0/8", text))
