"""Looking up names, with a name service in the place of the system's."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest
import uvloop

from sluice.transport.address import Address
from sluice.transport.errors import ConnectFailed
from sluice.transport.name_lookup import after_look_up, look_up
from tests.support.peers import a_config, open_client

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_SECONDS = 60


class NameService:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.answers = {"host": [("127.0.0.1", 7), ("::1", 7, 0, 0)]}
        self.open = threading.Event()

    def getaddrinfo(self, host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        self.asked[host] += 1
        assert self.open.wait(TIMEOUT_SECONDS)
        if host not in self.answers:
            raise socket.gaierror(socket.EAI_NONAME, "not known")
        return [(0, 0, 0, "", (each[0], port, *each[2:])) for each in self.answers[host]]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameService]:
    service = NameService()
    monkeypatch.setattr("sluice.transport.name_lookup.socket.getaddrinfo", service.getaddrinfo)
    yield service
    service.open.set()


async def test_an_address_is_not_looked_up(names: NameService):
    assert await look_up("127.0.0.9", 7) == [("127.0.0.9", 7)]
    assert await look_up("::1", 7) == [("::1", 7)]
    assert not names.asked


async def test_the_number_of_threads_is_bounded(
    names: NameService, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sluice.transport.name_lookup.MAX_LOOKUPS", 2)
    waiting = [asyncio.create_task(look_up(name, 7)) for name in ("host", "other")]
    await asyncio.sleep(0)
    with pytest.raises(socket.gaierror, match="2 other names are waiting"):
        await look_up("third", 7)
    names.open.set()
    assert await waiting[0]
    with pytest.raises(socket.gaierror, match="not known"):
        await waiting[1]


async def test_one_lookup_serves_all_waiters_and_outlives_cancelled_ones(names: NameService):
    first, second = (asyncio.ensure_future(look_up("host", 7)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    names.open.set()
    assert await second == [("127.0.0.1", 7), ("::1", 7)]
    assert names.asked == {"host": 1}
    assert await look_up("host", 7) == await second
    assert names.asked == {"host": 2}  # nothing is kept


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_name_service_that_does_not_answer_does_not_hold_up_the_end(new_loop, names: NameService):
    config = a_config(connect_timeout_seconds=0.1)
    with (
        asyncio.Runner(loop_factory=new_loop) as runner,
        pytest.raises(ConnectFailed, match="host:7"),
    ):
        runner.run(open_client(Address("host", 7), config))
    # The loop is closed, and the lookup still under way.
    assert not names.open.is_set()
    assert names.asked == {"host": 1}


async def test_a_function_is_called_when_no_lookup_runs(names: NameService):
    called: list[str] = []
    after_look_up("host", 7, lambda: called.append("at once"))
    asking = asyncio.create_task(look_up("host", 7))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    ended = asyncio.Event()
    after_look_up("host", 7, ended.set)
    await asyncio.sleep(0)
    assert (called, ended.is_set()) == (["at once"], False)
    names.open.set()
    await asyncio.wait_for(ended.wait(), TIMEOUT_SECONDS)
