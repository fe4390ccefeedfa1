"""``sluice bench network``: both directions and round trips, with everything bounded."""

from __future__ import annotations

import contextlib
import json
import socket
import threading

import pytest

from sluice.cli import network_bench
from sluice.cli.network_bench import BadAnswer, BenchServer, measure
from tests.cli.rig import NOWHERE, run


@pytest.fixture
def server():
    server = BenchServer("127.0.0.1", 0)
    thread = threading.Thread(target=server.serve, args=(60,))
    thread.start()
    yield server
    server.close()
    thread.join(20)
    assert not thread.is_alive()


def test_both_directions_and_round_trips_are_measured(server):
    found = measure("127.0.0.1", server.port, 2, 0.1)
    assert (found.streams, found.peer) == (2, f"127.0.0.1:{server.port}")
    assert found.send_bytes_per_second > 0
    assert found.receive_bytes_per_second > 0
    assert 0 < found.round_trip.operations <= network_bench.MAX_ROUND_TRIPS


def test_a_stranger_is_disconnected_and_others_are_served(server):
    with socket.create_connection(("127.0.0.1", server.port), 10) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        stranger.settimeout(20)
        with contextlib.suppress(ConnectionError):  # a reset, if the rest was unread
            assert stranger.recv(1) == b""
    assert measure("127.0.0.1", server.port, 1, 0.1).round_trip.operations > 0


def test_a_server_ends_when_its_time_is_up():
    server = BenchServer("127.0.0.1", 0)
    server.serve(0.05)
    server.close()


def test_another_program_is_reported():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def hang_up():
            connection, _ = listener.accept()
            with connection:
                connection.recv(1024)

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises((BadAnswer, ConnectionError)):
            measure("127.0.0.1", port, 1, 0.1)
        thread.join(20)


def test_the_command_measures_the_loopback_by_itself():
    shown = run("bench", "network", "--seconds", 0.1)
    assert shown.exit_code == 0, shown.output
    assert [line.split()[0] for line in shown.stdout.splitlines()] == [
        "peer", "send", "receive", "connect", "round",
    ]  # fmt: skip
    document = json.loads(run("bench", "network", "--seconds", 0.1, "--json").stdout)
    assert document["schema"] == "sluice.bench.network/1"


@pytest.mark.parametrize(
    ("arguments", "exit_code", "reason"),
    [
        ((NOWHERE,), 1, f"sluice bench network --serve {NOWHERE}"),
        (("nonsense",), 2, "write HOST:PORT"),
        (("unix:/x",), 2, "write HOST:PORT"),
        (("--serve", "192.0.2.1:7399"), 1, "cannot listen at 192.0.2.1:7399"),
        (("--seconds", "61"), 2, "61"),
    ],
)
def test_a_mistake_is_an_error_without_a_traceback(arguments, exit_code, reason):
    result = run("bench", "network", *arguments)
    assert result.exit_code == exit_code
    assert reason in result.stderr
