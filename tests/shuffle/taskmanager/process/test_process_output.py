"""The daemon's log: it never blocks the daemon, and refused connections do not fill it."""

from __future__ import annotations

import fcntl
import re
import socket
import subprocess
import urllib.request

import pytest

from tests.support.daemon import ENVIRONMENT, READY, TIMEOUT_SECONDS, arguments

pytestmark = pytest.mark.slow

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
SMALLEST_PIPE_BYTES = 4096
NOT_UNDERSTOOD = [
    b"GARBAGE\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -3\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET / HTTP/1.1\r\nA: " + b"b" * 20000 + b"\r\n\r\n",
    b"GET " + b"/a" * 9000 + b" HTTP/1.1\r\n\r\n",
    b"GET http://[::1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET /\n2026-11-25 00:00:00,000 INFO forged\r\n\r\n",
]


def ask(port: int, request: bytes = REQUEST) -> bytes:
    """Send bytes and read up to the end of the connection."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS) as client:
        client.sendall(request)
        answer = b""
        try:
            while received := client.recv(65536):
                answer += received
        except ConnectionResetError:  # what the other side leaves unread resets the connection
            pass
        return answer


@pytest.mark.parametrize(
    ("level", "log_format"), [("info", "text"), ("debug", "text"), ("debug", "json")]
)
def test_a_log_that_is_not_read_stops_nothing(tmp_path, level, log_format):
    command = arguments(tmp_path, log_level=level, log_format=log_format)
    with subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            ready = next(filter(None, map(READY.search, process.stderr)))
            fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, SMALLEST_PIPE_BYTES)
            address = ("127.0.0.1", int(ready["http"]))
            for _ in range(300):
                ask(int(ready["advertised"]))
            with socket.create_connection(address, TIMEOUT_SECONDS) as client:
                client.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
                assert client.recv(100).startswith(b"HTTP/1.1 200")
            process.terminate()
            assert process.wait(TIMEOUT_SECONDS) == 0
        finally:
            process.kill()


def test_refused_connections_are_counted_by_kind_and_source(daemons, tmp_path):
    daemon = daemons(tmp_path)
    for _ in range(300):
        ask(daemon.data_port)
    assert daemon.end() == 0
    written = daemon.log.count("closing connection 127.0.0.1:")
    found = re.findall(
        r"(\d+) more in \d+ s: closing connection: FRAME_TOO_LARGE: (\d+) from 127.0.0.1\n",
        daemon.log,
    )
    assert 1 <= written <= len(found) + 1
    assert written + sum(int(number) for number, _ in found) == 300
    assert all(number == of_source for number, of_source in found)


def test_a_parsers_traceback_never_reaches_the_log(daemons, tmp_path):
    daemon = daemons(tmp_path)
    for request in NOT_UNDERSTOOD:
        ask(daemon.http_port, request)
        ask(daemon.data_port, request)
    url = f"{daemon.url}/metrics"
    with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:
        page = answer.read().decode()
    count = len(NOT_UNDERSTOOD)
    assert f'sluice_http_refused_total{{reason="bad request"}} {count}.0' in page
    assert daemon.end() == 0
    assert "Traceback" not in daemon.log
    assert "aiohttp" not in daemon.log
    assert "INFO forged" not in daemon.log
    assert daemon.log.count("refusing a request of 127.0.0.1: ") == 1
    assert f"not understood: {count - 1} from 127.0.0.1" in daemon.log
