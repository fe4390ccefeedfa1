"""The longest name of an application that a TaskManager with a cluster secret takes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sluice.protocol import schema as m
from sluice.protocol.admission import AcceptingHandshake
from sluice.protocol.errors import NotPermitted
from sluice.protocol.handshake import ConnectingHandshake
from sluice.protocol.identity import SubmitToken
from sluice.protocol.limits import MAX_NAME_CHARACTERS
from tests.protocol import identity_vectors as vectors

OFFER = m.HelloAck(1, "tm-a", 32768, m.FLOW_CREDIT, 0, "host-a", 7337, "i-a", 0, 1)
HELLO = m.Hello("sluice", 1, 1, m.ROLE_CONSUMER, "a", b"", 0, m.FLOW_CREDIT, 0, "task")
CREDENTIAL = (
    SubmitToken.make(vectors.SECRET, "alice", 1000, vectors.TOKEN_ID)
    .application(vectors.SALT)
    .for_tasks()
)


def accepted_name(application_id: str) -> str | None:
    """Run a handshake; return the name of the application within its namespace."""
    connects = ConnectingHandshake(
        replace(HELLO, application_id=application_id), CREDENTIAL, bytes(32)
    )
    accepts = AcceptingHandshake(OFFER, vectors.admission(vectors.SECRET), bytes(range(32)))
    waiting: tuple[m.Message, ...] = (connects.hello,)
    while waiting:
        answers = [each for one in waiting for each in accepts.receive(one, b"", 0).replies]
        waiting = tuple(each for one in answers for each in connects.receive(one, b"", 0).replies)
    return accepts.application_id


def test_a_name_may_be_so_long_that_it_fills_its_place_with_its_namespace() -> None:
    short = accepted_name("a")
    assert short is not None
    longest = MAX_NAME_CHARACTERS - len(short) + 1
    found = accepted_name("a" * longest)
    assert found is not None
    assert len(found) == MAX_NAME_CHARACTERS
    with pytest.raises(NotPermitted) as caught:
        accepted_name("a" * (longest + 1))
    assert caught.value.limit == f"{longest} characters"
