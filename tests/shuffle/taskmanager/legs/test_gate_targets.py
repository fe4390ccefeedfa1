"""A client names the TaskManagers that its gate reads from: any host and port, if it likes."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from msgspec.structs import replace

from sluice.protocol.errors import ErrorCode
from sluice.protocol.identity import secret_to_text
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import ErrorResponse, HelloAck, encode
from sluice.shuffle.taskmanager.wiring import NetworkEnvironment
from sluice.transport.config import AuthConfig
from tests.protocol.identity_vectors import SECRET
from tests.support.mini_cluster import mini_cluster, taskmanager_config
from tests.support.wire_clients import Client, consumer, read_gate

PRIVATE = b"private-banner\n\x1b[31mforged line"
REFUSAL = ErrorResponse(
    None, ErrorCode.STORAGE_FULL, 1, False, PRIVATE.decode(), PRIVATE.decode(), "private", None
)
FOREIGN = {
    "text": PRIVATE,
    "ssh": b"SSH-2.0-" + PRIVATE,
    "http": b"HTTP/1.1 200 OK\r\nX: " + PRIVATE,
    "a short frame": b"\0\0\0\x10\0\0\0\0" + PRIVATE[:16],
    "another kind of message": b"\0\0\0\x12\0\0\0\0\x92\x01\xaf" + PRIVATE[:15],
    "zeros": bytes(64),
}


@contextlib.asynccontextmanager
async def foreign_service(answer: bytes):
    """A program that is no TaskManager and says something to whoever connects."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        with contextlib.suppress(ConnectionError):
            asked.append(await reader.read(1000))
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], asked
    finally:
        server.close()
        await server.wait_closed()


async def refused(client: Client, ack: HelloAck, port: int) -> RemoteError:
    """Let a gate read from a port; return its error."""
    target = replace(ack, taskmanager_id="0123456789abcdef", data_port=port)
    with pytest.raises(RemoteError) as caught:
        await read_gate(client, 1, [(target, [1])], 0, 1)
    return caught.value


def parts_of(error: RemoteError) -> str:
    return f"{error.message} {error.value} {error.limit}"


@pytest.mark.parametrize("name", FOREIGN)
async def test_a_foreign_answer_does_not_reach_the_client(tmp_path, caplog, name):
    async with mini_cluster(tmp_path, 1) as cluster, foreign_service(FOREIGN[name]) as (port, _):
        ack = await cluster.write(0, 1, [[b"data"]])
        error = await refused(await cluster.consumer(0), ack, port)
        assert error.code is ErrorCode.CONNECT_FAILED
        assert parts_of(error) == (
            f"The program at 127.0.0.1:{port} does not speak the Sluice protocol. "
            "Name the data port of a TaskManager, 7337 by default None None"
        )
        assert await read_gate(await cluster.consumer(0), 1, [(ack, [1])], 0, 1) == [b"data"]
    assert f"no TaskManager of this cluster at 127.0.0.1:{port}: " in caplog.text
    assert not [line for line in caplog.messages if not line.isprintable()]


async def test_the_words_of_a_refusal_do_not_reach_the_client(tmp_path, caplog):
    """Its code does: whoever answers in the Sluice protocol may be a TaskManager."""
    async with (
        mini_cluster(tmp_path, 1) as cluster,
        foreign_service(encode(REFUSAL)) as (port, _),
    ):
        ack = await cluster.write(0, 1, [[b"data"]])
        error = await refused(await cluster.consumer(0), ack, port)
        assert error.code is ErrorCode.STORAGE_FULL
        assert parts_of(error) == (
            f"The TaskManager at 127.0.0.1:{port} refuses this one: STORAGE_FULL. "
            "See the log of either None None"
        )
    assert "private-banner\\n\\x1b[31mforged line" in caplog.text
    assert "\x1b" not in caplog.text


@contextlib.asynccontextmanager
async def reader_with(directory, auth):
    """A TaskManager that reads, and a client of it."""
    config = taskmanager_config(directory)
    environment = await NetworkEnvironment.build(config.model_copy(update={"auth": auth}))
    try:
        client = await consumer(environment.address)
        yield client
        await client.close()
    finally:
        await environment.close()


@pytest.mark.parametrize(
    ("networks", "permitted"),
    [((), True), (("127.0.0.0/8",), True), (("10.0.0.0/8", "::1/128"), False)],
)
async def test_a_gate_names_taskmanagers_of_the_permitted_networks_only(
    tmp_path, networks, permitted
):
    auth = AuthConfig(peer_networks=networks)
    async with (
        mini_cluster(tmp_path, 1) as others,
        foreign_service(b"") as (port, asked),
        reader_with(tmp_path / "reader", auth) as client,
    ):
        ack = await others.write(0, 1, [[b"data"]])
        if permitted:
            assert await read_gate(client, 1, [(ack, [1])], 0, 1) == [b"data"]
            return
        error = await refused(client, ack, port)
        assert error.code is ErrorCode.NOT_PERMITTED
        assert "auth.peer_networks" in str(error)
        assert error.value == f"127.0.0.1:{port}"
        assert not asked


async def test_with_a_secret_a_taskmanager_that_proves_nothing_is_not_read_from(tmp_path):
    """The client learns that, and nothing that the other side said."""
    path = tmp_path / "secret"
    path.write_text(secret_to_text(SECRET))
    path.chmod(0o600)
    auth = AuthConfig(cluster_secret_files=(path,), allow_anonymous=True)
    async with (
        mini_cluster(tmp_path, 1) as strangers,
        reader_with(tmp_path / "reader", auth) as client,
    ):
        ack = await strangers.write(0, 1, [[b"forged"]])
        with pytest.raises(RemoteError) as caught:
            await read_gate(client, 1, [(ack, [1])], 0, 1)
        assert caught.value.code is ErrorCode.AUTHENTICATION_FAILED
        assert "no cluster secret" not in str(caught.value)
        assert f"at {strangers[0].address} refuses this one" in str(caught.value)
