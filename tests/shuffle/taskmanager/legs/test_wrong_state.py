"""Every message in every state and role that does not allow it: refused by name, at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sluice.protocol import schema as m
from sluice.protocol.errors import ErrorCode
from sluice.protocol.states import ALLOWED_WHEN_OPEN, ROLES, Side
from sluice.shuffle.counters import Counters
from sluice.shuffle.gate.partition_request_client import PartitionRequestClient
from sluice.transport.connection import Connection
from tests.support.fuzz_streams import REMOTE_ID, SEGMENT_SIZE_BYTES, frame, hello
from tests.support.fuzz_target import CONFIG, sent, target
from tests.support.memory_transport import MemoryTransport
from tests.support.peers import RecordingHandler

if TYPE_CHECKING:
    from sluice.transport.connection import ConnectionHandler

_VECTORS = Path(__file__).parents[3] / "vectors" / "wire.json"

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])  # no loop's transport is involved


def _samples() -> dict[str, bytes]:
    """Return the first golden frame of each message type."""
    found: dict[str, bytes] = {}
    for vector in json.loads(_VECTORS.read_text(encoding="utf-8"))["messages"]:
        found.setdefault(vector["type"], bytes.fromhex(vector["frame_hex"]))
    return found


SAMPLES = _samples()
ROLE_NAMES = {
    m.ROLE_PEER: "peer",
    m.ROLE_PRODUCER: "producer",
    m.ROLE_CONSUMER: "consumer",
    m.ROLE_DRIVER: "driver",
    m.ROLE_COPIER: "copier",
}
ACK = m.HelloAck(1, REMOTE_ID, SEGMENT_SIZE_BYTES, m.FLOW_CREDIT, 0, "127.0.0.1", 1, "i", 0, 1)


def refused_in(allowed: frozenset[type[m.Message]]) -> list[str]:
    return sorted(SAMPLES.keys() - {kind.__name__ for kind in allowed})


def cases(side: Side) -> list[Any]:
    return [
        pytest.param(role, name, id=f"{ROLE_NAMES[role]}-{name}")
        for role in sorted(ROLES)
        for name in refused_in(ALLOWED_WHEN_OPEN[side, role])
    ]


async def check_refused(transport: MemoryTransport, name: str) -> None:
    """Check that the connection sends the reason, closes, and sends nothing behind that."""
    await transport.feed(SAMPLES[name] + frame(m.Ping(1)))
    error = sent(transport)[-1]
    assert isinstance(error, m.ErrorResponse)
    assert error.channel is None
    assert error.code == ErrorCode.UNEXPECTED_MESSAGE
    assert name in f"{error.message} {error.value}"
    assert transport.connection.closing
    await transport.end()
    assert transport.is_closing()


@pytest.mark.parametrize("name", refused_in(frozenset({m.Hello})))
async def test_every_message_before_the_hello_is_refused(tmp_path, name):
    async with target(tmp_path) as taskmanager:
        await check_refused(taskmanager.accept(), name)


@pytest.mark.parametrize(("role", "name"), cases(Side.ACCEPTED))
async def test_wrong_messages_from_the_connecting_side_are_refused(tmp_path, role, name):
    async with target(tmp_path) as taskmanager:
        transport = taskmanager.accept()
        assert await transport.feed(hello(role))
        await check_refused(transport, name)


def connecting(role: int) -> tuple[MemoryTransport, list[ConnectionHandler]]:
    """Connect in a role; a peer's handler is the real one, clients have handlers of their own."""
    handlers: list[ConnectionHandler] = []

    def handler(connection: Connection, greeting: m.Hello | m.HelloAck) -> ConnectionHandler:
        assert isinstance(greeting, m.HelloAck)
        made: ConnectionHandler
        if role == m.ROLE_PEER:
            made = PartitionRequestClient(connection, greeting, Counters())
        else:
            made = RecordingHandler(connection, greeting)
        handlers.append(made)
        return made

    said = m.Hello("sluice", 1, 1, role, "", b"", SEGMENT_SIZE_BYTES, m.FLOW_CREDIT, 0, "tests")
    connection = Connection(CONFIG, SEGMENT_SIZE_BYTES, handler, hello=said)
    return MemoryTransport(connection), handlers


@pytest.mark.parametrize("name", refused_in(frozenset({m.HelloAck, m.ErrorResponse})))
async def test_every_message_in_place_of_an_answer_to_the_hello_is_refused(name):
    transport, handlers = connecting(m.ROLE_PEER)
    await check_refused(transport, name)
    assert not handlers
    await transport.end()


@pytest.mark.parametrize(("role", "name"), cases(Side.CONNECTED))
async def test_wrong_messages_from_the_accepting_side_are_refused(role, name):
    transport, _ = connecting(role)
    assert await transport.feed(frame(ACK))
    await check_refused(transport, name)
    await transport.end()


@pytest.mark.parametrize("name", sorted(SAMPLES))
async def test_messages_after_the_end_are_ignored(tmp_path, name):
    async with target(tmp_path) as taskmanager:
        transport = taskmanager.accept()
        assert await transport.feed(hello(m.ROLE_PRODUCER) + frame(m.CloseRequest()))
        transport.hold()
        before = bytes(transport.written)
        connection = transport.connection
        for byte in SAMPLES[name]:
            connection.get_buffer(-1)[0] = byte
            connection.buffer_updated(1)
        assert bytes(transport.written) == before
