"""Links that are cut, stalled and healed, with a small server in the place of a TaskManager."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.chaos.links import Link, Links, own_address

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOST = "127.0.0.1"
PEERS, CLIENTS = Link(HOST, "peers"), Link(HOST, "clients")
TIMEOUT_SECONDS = 60


@contextmanager
def echo(sock: socket.socket) -> Iterator[None]:
    """Sends back what comes, one connection after the other."""
    sock.listen()

    def serve() -> None:
        while True:
            try:
                connection, _ = sock.accept()
            except OSError:  # shut down
                return
            with connection:
                try:
                    while data := connection.recv(100):
                        connection.sendall(data)
                except OSError:
                    continue

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        sock.shutdown(socket.SHUT_RDWR)
        thread.join()
        sock.close()


@pytest.fixture(params=["peers", "clients"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Links, Link, Path]]:
    with Links(tmp_path, [HOST]) as links:
        options = links.options()[HOST]
        if request.param == "peers":
            server = socket.socket()
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((options["bind_host"], options["data_port"]))
        else:
            server = socket.socket(socket.AF_UNIX)
            server.bind(str(options["socket_path"]))
        with echo(server):
            yield links, Link(HOST, request.param), tmp_path


def connect(place: tuple[Links, Link, Path]) -> socket.socket:
    links, link, directory = place
    if link.kind == "peers":
        # Whoever was told the advertised address comes to the proxy.
        address = links.options()[HOST]
        return socket.create_connection((HOST, int(str(address["data_port"]))), TIMEOUT_SECONDS)
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(TIMEOUT_SECONDS)
    client.connect(str(directory / f"{HOST}.sock"))
    return client


def answers(client: socket.socket) -> bool:
    """Whether the server is behind this connection."""
    try:
        client.sendall(b"?")
        return client.recv(1) == b"?"
    except OSError:
        return False


def test_a_taskmanager_has_an_address_of_its_own():
    assert own_address("127.0.0.2") == "127.0.1.2"


def test_a_reset_ends_connections_and_lets_new_ones_through(place):
    with connect(place) as old:
        assert answers(old)
        place[0].reset(place[1])
        assert not answers(old)
        with connect(place) as new:
            assert answers(new)


def test_connections_that_have_ended_do_not_matter(place):
    with connect(place) as old:
        assert answers(old)
    with connect(place) as new:  # the server takes one after the other: the old one is over
        assert answers(new)
        place[0].reset(place[1])
        assert not answers(new)


def test_a_cut_link_lets_nobody_through_until_it_is_healed(place):
    links, link, _ = place
    with connect(place) as old:
        assert answers(old)
        links.cut(link)
        assert not answers(old)
        with connect(place) as refused:
            assert not answers(refused)
        links.heal(link)
        with connect(place) as new:
            assert answers(new)


def test_a_stalled_link_holds_what_comes_until_it_is_healed(place):
    links, link, _ = place
    with connect(place) as old:
        assert answers(old)
        links.stall(link)
        old.sendall(b"a")
        old.settimeout(0.2)
        with pytest.raises(TimeoutError):
            old.recv(1)
        links.heal(link)
        old.settimeout(TIMEOUT_SECONDS)
        assert old.recv(1) == b"a"
        assert answers(old)


def test_a_connection_made_while_the_link_stalls_works_when_it_is_healed(place):
    links, link, _ = place
    links.stall(link)
    with connect(place) as client:
        client.sendall(b"b")
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(1)
        links.heal(link)
        client.settimeout(TIMEOUT_SECONDS)
        assert client.recv(1) == b"b"


def test_a_slow_link_passes_everything_on(place):
    links, link, _ = place
    links.slow(link)
    with connect(place) as client:
        assert answers(client)
