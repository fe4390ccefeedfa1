"""Admits tasks of the TaskManager's own process by the rules for connections."""

import secrets
import time
from typing import Final

from ....protocol.admission import AcceptingHandshake
from ....protocol.handshake import ConnectingHandshake
from ....protocol.identity import Credential
from ....protocol.limits import MAGIC, NONCE_BYTES, PREFIX_BYTES, VERSION
from ....protocol.schema import (
    FLOW_CREDIT,
    ROLE_PRODUCER,
    Hello,
    HelloAck,
    Message,
    decode_control,
    encode,
)
from ....transport.access import Access

_NO_BINDING: Final = b""
"""Both sides of the handshake are in one process: there is no connection to bind it to."""


def admit(access: Access, application_id: str, credential: Credential | None) -> str:
    """Admit an application, and return the name by which the TaskManager knows it.

    The handshake of a producer runs between the two sides in memory, so the same rules and names
    apply to an embedded task and to one that connects.

    Args:
        access: The TaskManager's rules.
        application_id: The application.
        credential: What its tasks prove; None: nothing.

    Raises:
        AuthenticationFailed: The application may not use this TaskManager.
        MalformedMessage: The name of the application is empty or too long.
    """
    hello = Hello(
        MAGIC, VERSION, VERSION, ROLE_PRODUCER, application_id, b"", 0, FLOW_CREDIT, 0, "embedded"
    )
    offer = HelloAck(VERSION, "embedded", 1, FLOW_CREDIT, 0, "embedded", 0, "embedded", 0, 1)
    task = ConnectingHandshake(hello, credential, secrets.token_bytes(NONCE_BYTES))
    taskmanager = AcceptingHandshake(
        offer, access.admission(None), secrets.token_bytes(NONCE_BYTES)
    )
    now = time.time()
    # Decoding checks the name like one that comes from a connection.
    to_taskmanager: list[Message] = [decode_control(encode(task.hello)[PREFIX_BYTES:])]
    while to_taskmanager:
        step = taskmanager.receive(to_taskmanager.pop(0), _NO_BINDING, now)
        for reply in step.replies:
            to_taskmanager += task.receive(reply, _NO_BINDING, now).replies
    return taskmanager.application_id or application_id
