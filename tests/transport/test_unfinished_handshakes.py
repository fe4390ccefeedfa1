"""Which connection makes room for another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from sluice.transport.connection import UNKNOWN
from sluice.transport.unfinished_handshakes import UnfinishedHandshakes, source_of

if TYPE_CHECKING:
    from sluice.transport.connection import Connection


class Waiting:
    def __init__(self, remote: str) -> None:
        self.remote = remote


def of(*remotes: str) -> tuple[UnfinishedHandshakes, list[Connection]]:
    unfinished = UnfinishedHandshakes()
    connections = [cast("Connection", Waiting(remote)) for remote in remotes]
    for connection in connections:
        unfinished.add(connection)
    return unfinished, connections


def test_the_oldest_of_the_largest_source_is_first() -> None:
    unfinished, (a1, b1, b2, a2, a3) = of("a:1", "b:1", "b:2", "a:2", "a:3")
    order = []
    while (longest := unfinished.longest()) is not None:
        assert longest in unfinished
        order.append(longest)
        unfinished.discard(longest)
        assert longest not in unfinished
    assert order == [a1, a2, b1, a3, b2]
    assert len(unfinished) == 0


def test_connections_that_are_starting_make_no_room_yet() -> None:
    unfinished, (starting,) = of(UNKNOWN)
    assert unfinished.longest() is None
    starting.remote = "a:1"
    assert unfinished.longest() is starting
    assert list(unfinished) == [starting]
    unfinished.discard(starting)
    unfinished.discard(starting)
    assert unfinished.longest() is None


def test_the_only_known_one_stays_while_a_crowd_is_starting() -> None:
    unfinished, (_, *crowd) = of("a:1", UNKNOWN, UNKNOWN)
    assert unfinished.longest() is None
    for number, each in enumerate(crowd):
        each.remote = f"b:{number}"
    assert unfinished.longest() is crowd[0]


@pytest.mark.parametrize(
    ("remote", "source"),
    [
        ("10.0.0.1:4000", "10.0.0.1"),
        ("[2001:db8::1]:4000", "2001:db8::/64"),
        ("[2001:db8::1:2:3:4]:4000", "2001:db8::/64"),
        ("[fe80::1%eth0]:4000", "fe80::/64"),
        ("unix:/run/sluice.sock", "unix"),
    ],
)
def test_an_ipv6_network_is_one_source(remote: str, source: str) -> None:
    assert source_of(remote) == source
