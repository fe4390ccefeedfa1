"""TaskManagers to attack, their rightful users, and what must never be seen in a log."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from msgspec.structs import replace

from sluice.protocol.errors import ErrorCode
from sluice.protocol.identity import (
    SALT_BYTES,
    TOKEN_ID_BYTES,
    ClusterSecrets,
    Credential,
    SubmitToken,
    secret_to_text,
)
from sluice.protocol.limits import MAGIC, VERSION
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    CONSUME_WHEN_REGISTERED,
    FLOW_CREDIT,
    PARTITION_PIPELINED,
    ROLE_CONSUMER,
    ROLE_DRIVER,
    ROLE_PRODUCER,
    ApplicationReleased,
    ErrorResponse,
    Hello,
    HelloAck,
    Message,
    OpenPipelinedPartition,
    PartitionOpened,
    ReleaseApplication,
    ReleaseShuffle,
    ShuffleReleased,
)
from sluice.transport.address import Address
from sluice.transport.config import TransportConfig
from sluice.transport.connector import connect
from tests.support.daemon import ENVIRONMENT, SLUICE, TIMEOUT_SECONDS, Daemon
from tests.support.wire_clients import (
    SEGMENT_SIZE_BYTES,
    Client,
    open_gate,
    read_gate,
    write_map_output,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sluice.shuffle.taskmanager.bounds.accounts import Resource
    from sluice.transport.connection import Connection, ConnectionHandler

SECRET = bytes(range(1, 33))
OTHER_SECRET = bytes(range(101, 133))
"""The secret of another cluster."""

SECRETS = ClusterSecrets([SECRET])
ALICE = SubmitToken.make(SECRET, "alice", 0, bytes(range(TOKEN_ID_BYTES)))
BOB = SubmitToken.make(SECRET, "bob", 0, bytes(range(50, 50 + TOKEN_ID_BYTES)))
CAROL = SubmitToken.make(SECRET, "carol", 0, bytes(range(80, 80 + TOKEN_ID_BYTES)))
ABROAD = SubmitToken.make(OTHER_SECRET, "alice", 0, ALICE.token_id)
"""A token of another cluster; all that can be seen of it is Alice's."""

SHUFFLE = 1
REQUEST_TIMEOUT_SECONDS = 0.5
"""How long the daemons wait for a partition; a reader of what is not there gets its answer then."""


SLACK_BYTES = 6 * 1024 * 1024
"""Growth that is no crowd's: the victim's connections, a thread's arena, a page table."""


class Application(NamedTuple):
    """An application, as its owner has it."""

    name: str
    driver: Credential

    @property
    def task(self) -> Credential:
        return self.driver.for_tasks()

    @property
    def scoped(self) -> str:
        """Its name inside of a TaskManager."""
        return SECRETS.scope(self.name, self.driver.claim)


def application(token: SubmitToken, name: str, salt: bytes | None = None) -> Application:
    """Return the application that a token's owner runs under a name."""
    return Application(name, token.application(token.salt_of(name) if salt is None else salt))


_numbers = itertools.count()


def new_name() -> str:
    """Return the name of an application that no other test has."""
    return f"victim-{next(_numbers)}"


def another_salt(number: int = 0) -> bytes:
    return bytes([200 + number]) * SALT_BYTES


def texts_of(key: bytes) -> Iterator[str]:
    """Yield the forms in which a key could be read somewhere."""
    yield key.hex()
    yield base64.urlsafe_b64encode(key).decode()[:40]
    yield base64.b64encode(key).decode()[:40]
    yield repr(key)[2:-1]
    yield repr(list(key))[1:-1]


def secret_texts(*applications: Application) -> set[str]:
    """Return what must be in no log, error or answer."""
    keys = {
        SECRET,
        OTHER_SECRET,
        ALICE.key,
        BOB.key,
        CAROL.key,
        ABROAD.key,
        SECRETS.peer("a:1").key,
    }
    for each in applications:
        keys |= {each.driver.key, each.task.key}
    return {text for key in keys for text in texts_of(key)}


class AttackedDaemon(Daemon):
    """A TaskManager with short deadlines that logs each connection."""

    def __init__(self, directory: Path, **keys: Any) -> None:
        super().__init__(
            directory,
            socket_path=directory / "s",
            partition_request_timeout_seconds=REQUEST_TIMEOUT_SECONDS,
            map_output_resume_timeout_seconds=TIMEOUT_SECONDS,
            drain_timeout_seconds=1,
            close_timeout_seconds=1,
            log_level="debug",  # which has a line for each connection
            **keys,
        )

    @property
    def socket(self) -> Address:
        return Address(str(self.directory / "s"), 0)

    async def logs(self, text: str, since: int) -> str:
        """Wait for a line that has a text; return it."""
        return await asyncio.to_thread(self.wait_for_log, text, since)

    def check_log(self, *applications: Application) -> None:
        """Check that nobody's secret and no fault of the daemon's own is in the log."""
        log = self.log
        assert "Traceback" not in log, log
        assert "internal error" not in log, log
        found = [text for text in secret_texts(*applications) if text in log]
        assert not found
        assert "sluice-secret-1-" not in log
        assert "sluice-token-1-" not in log
        assert "sluice-task-1-" not in log
        assert "sluice-driver-1-" not in log


class Cluster(NamedTuple):
    """Two TaskManagers of one secret."""

    first: AttackedDaemon
    second: AttackedDaemon


def write_secret(path: Path, secret: bytes = SECRET, mode: int = 0o600) -> Path:
    path.write_text(secret_to_text(secret) + "\n", encoding="ascii")
    path.chmod(mode)
    return path


CLIENTS: list[Client] = []
"""Clients of the test that runs; what it leaves open when it fails is closed for it."""


# ---- the rightful users ----------------------------------------------------------------------


def hello_of(role: int, application_id: str, **changes: object) -> Hello:
    """Return a Hello without a claim; clients of the data path have segments."""
    size = SEGMENT_SIZE_BYTES if role in (ROLE_PRODUCER, ROLE_CONSUMER) else 0
    hello = Hello(
        MAGIC, VERSION, VERSION, role, application_id, b"", size, FLOW_CREDIT, 0, "attack"
    )
    return replace(hello, **changes)


async def enter(
    address: Address,
    role: int,
    application_id: str,
    credential: Credential | None,
    config: TransportConfig | None = None,
) -> Client:
    """Connect as a good client does."""
    client = Client()
    CLIENTS.append(client)

    def handler(connection: Connection, ack: Hello | HelloAck) -> ConnectionHandler:
        return client

    client.connection, client.ack = await connect(
        address,
        hello_of(role, application_id),
        handler,
        config or TransportConfig(connect_timeout_seconds=TIMEOUT_SECONDS),
        SEGMENT_SIZE_BYTES,
        credential,
    )
    return client


async def producer(address: Address, owner: Application) -> Client:
    return await enter(address, ROLE_PRODUCER, owner.name, owner.task)


async def consumer(address: Address, owner: Application) -> Client:
    return await enter(address, ROLE_CONSUMER, owner.name, owner.task)


async def driver(address: Address, owner: Application) -> Client:
    return await enter(address, ROLE_DRIVER, owner.name, owner.driver)


async def commit(address: Address, owner: Application, attempt: int, data: bytes) -> HelloAck:
    """Write and commit a map output of one subpartition."""
    client = await producer(address, owner)
    await write_map_output(client, SHUFFLE, attempt, [[data]])
    await client.close()
    return client.ack


async def read(
    address: Address,
    owner: Application,
    attempts: Sequence[int],
    source: HelloAck | None = None,
) -> bytes:
    """Read map outputs of the TaskManager at the address, or of another one through it."""
    client = await consumer(address, owner)
    try:
        parts = await read_gate(client, SHUFFLE, [(source or client.ack, attempts)], 0, 1)
    finally:
        if client.lost is None:
            await client.close()
    return b"".join(parts)


async def fail_to_read(daemon: AttackedDaemon, victim: Application, named: HelloAck) -> RemoteError:
    """Open a gate with a channel at an address; return the error that ends it."""
    reader = await consumer(daemon.address, victim)
    gate = open_gate(reader, SHUFFLE, [(named, [1])], 0, 1)
    with pytest.raises(RemoteError) as caught:
        await gate.read_all()
    assert gate.content == [b""]
    await gate.close()
    await reader.close()
    return caught.value


async def release_shuffle(address: Address, owner: Application) -> int:
    """Release the shuffle; return the bytes that this freed."""
    client = await driver(address, owner)
    client.send(ReleaseShuffle(SHUFFLE))
    answer = await client.expect(ShuffleReleased)
    await client.close()
    assert isinstance(answer, ShuffleReleased)
    return answer.freed_bytes


async def release_application(address: Address, owner: Application) -> int:
    """Release the application; return the bytes that this freed."""
    client = await driver(address, owner)
    client.send(ReleaseApplication())
    answer = await client.expect(ApplicationReleased)
    await client.close()
    assert isinstance(answer, ApplicationReleased)
    return answer.freed_bytes


def status(daemon: AttackedDaemon, secret_file: Path, *options: str) -> str:
    """Return what ``sluice status`` prints."""
    return subprocess.run(
        [SLUICE, "status", daemon.url, *options, "--secret-file", secret_file],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=True,
        env=ENVIRONMENT,
    ).stdout


def resident_bytes(daemon: AttackedDaemon) -> int:
    """Return the memory of the process that is no file's and not shared."""
    text = Path(f"/proc/{daemon.pid}/status").read_text(encoding="ascii")
    (kib,) = (line.split()[1] for line in text.splitlines() if line.startswith("RssAnon"))
    return int(kib) * 1024


def holdings(daemon: AttackedDaemon, owner: Application, secret_file: Path) -> dict[str, int]:
    """Return what an application holds, as the status tells it."""
    found = [
        each
        for each in json.loads(status(daemon, secret_file, "--json"))["applications"]
        if each["application_id"] == owner.scoped
    ]
    return {each["resource"]: each["held"] for each in found[0]["holdings"]} if found else {}


def the_error(message: Message) -> RemoteError:
    assert isinstance(message, ErrorResponse), message
    return RemoteError(message)


def check_refusal(error: RemoteError, resource: Resource) -> None:
    assert error.code is ErrorCode.QUOTA_EXCEEDED
    assert resource.words in error.message
    assert resource.key in error.message
    assert int(str(error.value)) > int(str(error.limit))


async def open_pipelined(client: Client, number: int) -> Message:
    """Open a partition of eight subpartitions; return the answer."""
    attempt = 100 + number
    client.send(
        OpenPipelinedPartition(
            number, SHUFFLE, attempt, 8, PARTITION_PIPELINED, CONSUME_WHEN_REGISTERED
        )
    )
    while True:
        message, _ = await client.receive()
        if type(message) is PartitionOpened and message.partition == number:
            return message
        if type(message) is ErrorResponse:
            return message
