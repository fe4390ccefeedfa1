"""pre_stop.py of the chart: whether it finds a cordoned node, and what it then runs."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, ClassVar

import pytest
import trustme

from tests.charts.rig import CHART

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCRIPT = CHART / "files" / "pre_stop.py"
MIGRATES = "drain --migrate --wait 600"
WAITS = "drain --wait 60"


class Handler(BaseHTTPRequestHandler):
    """The API server."""

    nodes: ClassVar[dict[str, tuple[int, str]]] = {}

    def do_GET(self) -> None:
        assert self.headers["Authorization"] == "Bearer the-token"
        status, body = self.nodes[self.path.removeprefix("/api/v1/nodes/")]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    (tmp_path / "token").write_text("the-token\n")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "::1").configure_cert(context)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def run(directory: Path, port: int, node: str) -> tuple[str, str]:
    """Return the words that sluice gets, and the errors."""
    program = directory / "bin" / "sluice"
    program.parent.mkdir(exist_ok=True)
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    environment = {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(port),
        "SLUICE_NODE": node,
        "API_ACCESS_DIRECTORY": str(directory),
        "https_proxy": "http://127.0.0.1:1",
    }
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "600", "60"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize(
    ("spec", "expected"),
    [({}, WAITS), ({"unschedulable": False}, WAITS), ({"unschedulable": True}, MIGRATES)],
)
def test_the_data_of_a_cordoned_node_moves(
    tmp_path: Path, port: int, spec: dict[str, bool], expected: str
):
    Handler.nodes = {"node-1": (200, json.dumps({"spec": spec}))}
    assert run(tmp_path, port, "node-1") == (expected, "")


@pytest.mark.parametrize("answer", [(403, "{}"), (404, "{}"), (500, ""), (200, "no JSON")])
def test_the_data_moves_if_the_api_server_does_not_say(
    tmp_path: Path, port: int, answer: tuple[int, str]
):
    Handler.nodes = {"node-1": answer}
    command, errors = run(tmp_path, port, "node-1")
    assert command == MIGRATES
    assert "assuming that the node is cordoned" in errors


def test_the_data_moves_if_nothing_answers(tmp_path: Path, port: int):
    command, errors = run(tmp_path, 1, "node-1")
    assert command == MIGRATES
    assert "refused" in errors


def test_another_server_is_not_believed(tmp_path: Path, port: int):
    Handler.nodes = {"node-1": (200, json.dumps({"spec": {}}))}
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.crt")
    command, errors = run(tmp_path, port, "node-1")
    assert command == MIGRATES
    assert "CERTIFICATE_VERIFY_FAILED" in errors
