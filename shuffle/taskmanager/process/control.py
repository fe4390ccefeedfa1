"""Messages between a supervisor and its data processes, over the socket that connects them.

Each is its length as u32, big endian, and JSON. A data process answers each request, in any order.
When the supervisor is gone, the socket ends. The first message has the configuration: the file
may have changed since the supervisor read it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import msgspec

if TYPE_CHECKING:
    import socket
    from io import RawIOBase

    from ..status.status import TaskManagerStatus

_LENGTH_BYTES: Final = 4


class Request(msgspec.Struct, frozen=True):
    """A request to a data process, which does it and then answers with its status.

    ``shuffle`` asks for map outputs of a shuffle; the answer has the page, too.

    ``drain`` begins to drain and waits until the process is idle, or for ``wait_seconds``. ``stop``
    does what a first SIGTERM does, and nothing after one: a service manager may have sent one to
    all processes. ``reload`` does what SIGHUP does. ``change`` takes over the quotas and the log
    level of ``config``.
    """

    what: Literal["status", "drain", "undrain", "reload", "change", "stop", "shuffle"] = "status"
    migrate: bool = False
    wait_seconds: float = 0.0
    config: str = ""
    """The configuration of all processes as JSON, if it is a new one."""
    shuffle: tuple[str, int, int, int] | None = None
    """The fields of a ``ShuffleQuery``."""
    number: int = 0
    """Given by the one that sends it."""


class Answer(msgspec.Struct, frozen=True):
    """The answer to the request with the same number."""

    number: int
    status: msgspec.Raw
    busy: bool = False
    """Whether the process was still busy after ``wait_seconds``."""
    error: str = ""
    """Why the request failed."""
    page: msgspec.Raw = msgspec.Raw(b"[]")
    """The requested ``ShufflePage``. If its name fits no application or several: those here."""

    @classmethod
    def of(
        cls,
        request: Request,
        status: TaskManagerStatus,
        *,
        busy: bool = False,
        error: str = "",
        page: object = (),
    ) -> Answer:
        """Answer a request with a status."""
        encoded = msgspec.Raw(msgspec.json.encode(page))
        return cls(request.number, msgspec.Raw(status.encode()), busy, error, encoded)


M = TypeVar("M", Request, Answer)


async def receive(reader: asyncio.StreamReader, kind: type[M]) -> M | None:
    """Return the next message; None when the other side is gone.

    Cancellation: a message that has partly arrived is lost, so the socket must be closed.
    """
    try:
        head = await reader.readexactly(_LENGTH_BYTES)
        body = await reader.readexactly(int.from_bytes(head))
    except (asyncio.IncompleteReadError, OSError):
        return None
    return msgspec.json.decode(body, type=kind)


def send(writer: asyncio.StreamWriter, message: Request | Answer) -> None:
    """Send a message; it is dropped when the other side is gone."""
    writer.write(encode(message))


def encode(message: Request | Answer) -> bytes:
    """Return a message as it is sent."""
    body = msgspec.json.encode(message)
    return len(body).to_bytes(_LENGTH_BYTES) + body


def receive_first(sock: socket.socket) -> Request:
    """Receive the first request. Blocks.

    Raises:
        EOFError: The supervisor is gone.
    """
    with sock.makefile("rb", buffering=0) as file:
        head = _read(file, _LENGTH_BYTES)
        return msgspec.json.decode(_read(file, int.from_bytes(head)), type=Request)


def _read(file: RawIOBase, length: int) -> bytes:
    found = bytearray()
    while len(found) < length:
        piece = file.read(length - len(found))
        if not piece:
            raise EOFError("the supervisor is gone")
        found += piece
    return bytes(found)
