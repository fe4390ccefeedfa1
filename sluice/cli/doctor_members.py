"""Checks the names of other TaskManagers in a configuration, for ``sluice doctor``."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Final

from ..protocol.errors import ErrorCode, SluiceError
from ..protocol.limits import MAGIC, VERSION
from ..protocol.schema import FLOW_CREDIT, ROLE_COPIER, Hello
from ..transport.access import read_secrets
from ..transport.address import Address
from ..transport.connector import connect
from ..transport.member_address import DnsName, parse_member
from .doctor_host import ok, problem, refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..protocol.identity import ClusterSecrets
    from ..protocol.schema import HelloAck, Message
    from ..shuffle.taskmanager.config.taskmanager_config import TaskManagerConfig
    from ..transport.config import TransportConfig
    from ..transport.connection import Connection
    from .reports import DoctorCheck

ANSWER_SECONDS: Final = 5.0
"""Time in which a TaskManager must answer."""

MAX_ADDRESSES: Final = 256
"""Maximum number of addresses of a name that are checked."""

AT_ONCE: Final = 32

_REMEDIES: Final = {
    ErrorCode.AUTHENTICATION_FAILED: "It belongs to another cluster: give both the same cluster "
    "secret, or remove its address from the name",
    ErrorCode.AUTHENTICATION_REQUIRED: "It has a cluster secret: set cluster_secret_files here",
    ErrorCode.NOT_PERMITTED: "Let it advertise this address (advertised_host), or list it in its "
    "address_aliases",
}


def named_members(config: TaskManagerConfig) -> Iterator[DoctorCheck]:
    """Resolve the names of the setting ``taskmanagers``, and connect to each address.

    Args:
        config: Has the names, the cluster secret and the TLS settings.
    """
    members = map(parse_member, config.cluster.taskmanagers)
    names = dict.fromkeys(each for each in members if isinstance(each, DnsName))
    if not names:
        return
    try:
        secrets = read_secrets(config.auth)
    except SluiceError as error:
        yield refused("members", error)
        return
    for name in names:
        yield from _named(name, config.transport, secrets)


def _named(
    name: DnsName, transport: TransportConfig, secrets: ClusterSecrets | None
) -> Iterator[DoctorCheck]:
    try:
        infos = socket.getaddrinfo(name.name, name.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        yield problem(
            str(name), f"it has no address: {reason}", "Correct the name, or its records in the DNS"
        )
        return
    found = list(dict.fromkeys(Address(str(info[4][0]), name.port) for info in infos))
    yield ok(str(name), f"it has {len(found)} address" + ("es" if len(found) > 1 else ""))
    asked = found[:MAX_ADDRESSES]
    answers = asyncio.run(_greet_all(name, asked, transport, secrets))
    for address, answer in zip(asked, answers, strict=True):
        if isinstance(answer, str):
            yield ok(f"member {address}", f"TaskManager {answer} belongs to this cluster")
        else:
            yield problem(
                f"member {address}",
                answer.message,
                _REMEDIES.get(
                    answer.code,
                    "Start it (sluice taskmanager), or correct the address or a firewall",
                ),
            )


async def _greet_all(
    name: DnsName,
    addresses: Sequence[Address],
    transport: TransportConfig,
    secrets: ClusterSecrets | None,
) -> list[str | SluiceError]:
    turns = asyncio.Semaphore(AT_ONCE)
    once = transport.model_copy(
        update={"connect_timeout_seconds": ANSWER_SECONDS, "connect_retries": 0}
    )

    async def greet(address: Address) -> str | SluiceError:
        async with turns:
            try:
                return await _greet(name, address, once, secrets)
            except SluiceError as error:
                return error

    return await asyncio.gather(*map(greet, addresses))


async def _greet(
    name: DnsName,
    address: Address,
    transport: TransportConfig,
    secrets: ClusterSecrets | None,
) -> str:
    """Shake hands as a TaskManager that watches another one; return the id of the other one.

    Raises:
        SluiceError: It does not answer, or refuses.
    """
    hello = Hello(MAGIC, VERSION, VERSION, ROLE_COPIER, "", b"", 0, FLOW_CREDIT, 0, "sluice doctor")
    credential = None if secrets is None else secrets.peer(f"{address.host}:{address.port}")
    connection, ack = await connect(
        address, hello, _Silent, transport, 0, credential, tls_name=name.host
    )
    connection.close()
    return ack.taskmanager_id


class _Silent:
    """Expects nothing after the handshake."""

    def __init__(self, connection: Connection, greeting: Hello | HelloAck) -> None:
        pass

    def payload_buffer(self, message: Message, length: int) -> memoryview | None:
        """Return no memory: nothing is read."""
        return None

    def message_received(self, message: Message, payload_length: int) -> None:
        """Ignore it."""

    def writable(self) -> None:
        """Do nothing: nothing is written."""

    def connection_lost(self, error: SluiceError) -> None:
        """Ignore it: it was only a check."""
