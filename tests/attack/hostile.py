"""Clients and servers that mean harm: raw connections, impostors, relays in the middle."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import astuple, replace

from sluice.protocol.errors import ErrorCode
from sluice.protocol.handshake import ConnectingHandshake
from sluice.protocol.limits import NONCE_BYTES
from sluice.protocol.schema import Challenge, ErrorResponse, Hello, HelloAck, Message, Proof, encode
from sluice.transport.address import Address
from tests.support.raw_client import DEADLINE_SECONDS, RawClient

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Iterable

    from sluice.protocol.identity import Credential
    from tests.attack.rig import AttackedDaemon

NONCE = bytes(range(NONCE_BYTES))

HOSTILE: list[Hostile] = []
"""Connections of the test that runs; what it leaves open when it fails is closed for it."""


class Hostile(RawClient):
    """A raw connection that knows its own name in the log of the other side."""

    name = ""
    daemon: AttackedDaemon
    """The other side, if it was made by :meth:`at`."""
    _since: int

    @classmethod
    async def at(
        cls,
        daemon: AttackedDaemon,
        address: Address | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> Hostile:
        """Connect to a daemon, and remember how long its log is."""
        since = len(daemon.lines)
        client = await cls.reach(address or daemon.address, tls)
        client.daemon, client._since = daemon, since
        return client

    @classmethod
    async def reach(cls, address: Address, tls: ssl.SSLContext | None = None) -> Hostile:
        """Connect by TCP, TLS or a Unix socket."""
        if address.port:
            reader, writer = await asyncio.open_connection(*address, ssl=tls)
            host, port = writer.get_extra_info("sockname")[:2]
            name = f"{host}:{port}"
        else:
            reader, writer = await asyncio.open_unix_connection(address.host)
            name = f"unix:{address.host}"
        client = cls(reader, writer)
        client.name = name
        HOSTILE.append(client)
        return client

    def abort(self) -> None:
        """Drop the connection. Idempotent."""
        self._writer.transport.abort()

    def send_messages(self, messages: Iterable[Message]) -> None:
        """Send messages in one write."""
        self.send_bytes(b"".join(map(encode, messages)))

    async def prove(
        self,
        hello: Hello,
        credential: Credential,
        *,
        sent: Hello | None = None,
        proof: Callable[[bytes], bytes] = lambda proof: proof,
        nonce: bytes = NONCE,
    ) -> Message:
        """Shake hands as far as the first answer to the proof, or an error.

        Args:
            hello: The Hello without its claim.
            credential: Whose claim and key.
            sent: The Hello that is really sent, with its token; by default the right one.
            proof: Changes the proof before it is sent.
            nonce: The first bytes of the token.
        """
        handshake = ConnectingHandshake(hello, credential, nonce)
        self.send_message(handshake.hello if sent is None else sent)
        message, _ = await self.receive()
        if type(message) is not Challenge:
            return message
        (own,) = handshake.receive(message, b"", 0).replies
        assert isinstance(own, Proof)
        self.send_message(Proof(proof(own.proof)))
        message, _ = await self.receive()
        return message

    async def refused(self, code: ErrorCode, answer: Message | None = None) -> ErrorResponse:
        """Check that the daemon refuses this connection, and logs one line of it.

        Args:
            code: The expected error.
            answer: The error, if it was received already.
        """
        error = await self.until_refused()
        error = error or (answer if isinstance(answer, ErrorResponse) else None)
        assert error is not None, answer
        assert error.code == code, error
        await self.ended(code)
        return error

    async def ended(self, code: ErrorCode) -> None:
        """Check that the daemon ends this connection, and logs one line of it.

        A client that sends before it may can lose the error: what the daemon leaves unread resets
        the connection.
        """
        error = await self.until_refused()
        assert error is None or error.code == code
        await self.close()
        wanted = f"closing connection {self.name}: "
        line = await self.daemon.logs(wanted, self._since)
        assert code.name in line
        if not self.name.startswith("unix:"):  # whose other ends have no names
            assert len([each for each in self.daemon.lines[self._since :] if wanted in each]) == 1


async def fail_to_prove(
    daemon: AttackedDaemon,
    hello: Hello,
    credential: Credential,
    code: ErrorCode = ErrorCode.AUTHENTICATION_FAILED,
    **how: Any,
) -> ErrorResponse:
    """Connect with a credential that is refused; return the error."""
    client = await Hostile.at(daemon)
    return await client.refused(code, await client.prove(hello, credential, **how))


def told(error: ErrorResponse) -> tuple[object, ...]:
    """Return all that an error tells."""
    return astuple(error)


class Impostor:
    """Listens where a TaskManager could, and follows a script with each connection.

    Args:
        script: Called with each connection.
        tls: Speaks TLS with this certificate.
    """

    def __init__(
        self, script: Callable[[Hostile], Awaitable[None]], tls: ssl.SSLContext | None = None
    ) -> None:
        self._script = script
        self._tls = tls
        self._serving: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.rest = bytearray()
        """Bytes that came after the script."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.address = Address(*self._server.sockets[0].getsockname()[:2])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        if self._serving:
            await asyncio.wait(self._serving, timeout=DEADLINE_SECONDS)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        self.connections += 1
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                await self._script(Hostile(reader, writer))
                self.rest += await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the other side has gone
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


class Relay(Impostor):
    """Passes everything on to a TaskManager and back, and keeps a copy.

    Args:
        target: The TaskManager.
        tls: Speaks TLS with its clients, with this certificate.
        onward: Speaks TLS with the TaskManager.
    """

    def __init__(
        self,
        target: Address,
        tls: ssl.SSLContext | None = None,
        onward: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(self._pass_on, tls)
        self._target = target
        self._onward = onward
        self.up = bytearray()
        """Bytes of the side that connects."""
        self.down = bytearray()
        """Bytes of the TaskManager."""

    async def _pass_on(self, near: Hostile) -> None:
        far = await Hostile.reach(self._target, self._onward)
        await asyncio.gather(_copy(near, far, self.up), _copy(far, near, self.down))
        await far.close()


async def _copy(source: Hostile, target: Hostile, kept: bytearray) -> None:
    """Copy to the end of the source, and end the target then."""
    with contextlib.suppress(ConnectionError):
        while data := await source._reader.read(65536):
            kept += data
            target.send_bytes(data)
    target._writer.close()


def an_ack(**changes: object) -> HelloAck:
    """Return the HelloAck of a TaskManager that does not exist."""
    ack = HelloAck(1, "tm-impostor", 32768, 0, 0, "127.0.0.1", 7337, "i-1", 0, 1)
    return replace(ack, **changes)
