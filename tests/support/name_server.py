"""A DNS server for tests: its records change, and it fails on demand."""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import signal
import socket
import socketserver
import struct
import subprocess
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tests.support.processes import ManagedProcess

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from types import TracebackType
    from typing import Self

PORT = 53
"""The only port that a resolv.conf can use."""

_HEADER = struct.Struct("!6H")
_RECORD = struct.Struct("!HHLH")
_A, _AAAA = 1, 28
_QUERY_FLAGS_KEPT = 0x0100
_ANSWER, _TRUNCATED = 0x8080, 0x0200
_SERVFAIL, _NXDOMAIN = 2, 3
_UDP_BYTES = 512


class NameServer:
    """A name server on a loopback address of its own; a context manager that ends it.

    Attributes:
        records: The addresses of each name, IPv4 and IPv6; a test replaces them.
        fails: Whether all questions are answered with a failure.
        is_silent: Whether no question is answered.
        tcp_questions: How many questions came over TCP, after a truncated answer.
        questions: How many questions for each name came.
    """

    def __init__(self) -> None:
        self.records: dict[str, list[str]] = {}
        self.fails = False
        self.is_silent = False
        self.tcp_questions = 0
        self.questions: dict[str, int] = {}
        # Other runs of the tests may be using their own.
        number = os.getpid() % (1 << 16)
        self.host = f"127.53.{number >> 8}.{number & 255}"
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            for server in (
                _UdpServer((self.host, PORT), _UdpHandler),
                _TcpServer((self.host, PORT), _TcpHandler),
            ):
                server.name_server = self
                starting.enter_context(server)
                thread = threading.Thread(target=server.serve_forever, args=(0.05,))
                thread.start()
                starting.callback(thread.join)
                starting.callback(server.shutdown)
            self._resources = starting.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._resources.close()

    def set(self, name: str, addresses: Iterable[str]) -> None:
        """Let a name have these addresses from now on."""
        self.records[name] = list(addresses)

    def answer(self, question: bytes, limit: int) -> bytes:
        """Return the answer to a message with one question."""
        number, flags, *_ = _HEADER.unpack_from(question)
        labels, at = [], _HEADER.size
        while (length := question[at]) != 0:
            labels.append(question[at + 1 : at + 1 + length].decode("ascii"))
            at += 1 + length
        name = ".".join(labels).lower()
        kind = int.from_bytes(question[at + 1 : at + 3], "big")
        asked = question[_HEADER.size : at + 5]
        self.questions[name] = self.questions.get(name, 0) + 1
        known = self.records.get(name)
        code = _SERVFAIL if self.fails else 0 if known is not None else _NXDOMAIN
        records = [] if code else _records(known or [], kind)
        flags = flags & _QUERY_FLAGS_KEPT | _ANSWER | code

        def message(flags: int, records: list[bytes]) -> bytes:
            return _HEADER.pack(number, flags, 1, len(records), 0, 0) + asked + b"".join(records)

        whole = message(flags, records)
        return whole if len(whole) <= limit else message(flags | _TRUNCATED, [])


def _records(addresses: list[str], kind: int) -> list[bytes]:
    found = []
    for address in map(ipaddress.ip_address, addresses):
        if kind == (_A if address.version == 4 else _AAAA):
            # A pointer to the name in the question; the record must not be cached.
            packed = address.packed
            found.append(b"\xc0\x0c" + _RECORD.pack(kind, 1, 0, len(packed)) + packed)
    return found


class _UdpServer(socketserver.ThreadingUDPServer):
    name_server: NameServer
    allow_reuse_address = True
    daemon_threads = True


class _TcpServer(socketserver.ThreadingTCPServer):
    name_server: NameServer
    allow_reuse_address = True
    daemon_threads = True


class _UdpHandler(socketserver.BaseRequestHandler):
    server: _UdpServer

    def handle(self) -> None:
        question, connection = self.request
        if self.server.name_server.is_silent:
            return
        answer = self.server.name_server.answer(question, _UDP_BYTES)
        connection.sendto(answer, self.client_address)


class _TcpHandler(socketserver.StreamRequestHandler):
    server: _TcpServer

    def handle(self) -> None:
        while len(length := self.rfile.read(2)) == 2:
            question = self.rfile.read(int.from_bytes(length, "big"))
            self.server.name_server.tcp_questions += 1
            answer = self.server.name_server.answer(question, 1 << 16)
            self.wfile.write(len(answer).to_bytes(2, "big") + answer)


class Dnsmasq:
    """The same interface with dnsmasq, which reads its names from a file."""

    def __init__(self, directory: Path) -> None:
        self.host = f"127.54.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
        self._directory = directory
        self._hosts = directory / "hosts"

    def __enter__(self) -> Self:
        self._hosts.touch()
        options = ["--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts"]
        options += ["--bind-interfaces", "--user=root", "--log-facility=-"]
        options += [f"--pid-file={self._directory / 'pid'}"]
        options += [f"--addn-hosts={self._hosts}", f"--listen-address={self.host}"]
        self._process = ManagedProcess(
            "dnsmasq",
            ["dnsmasq", *options],
            log_path=self._directory / "dnsmasq.log",
            environment=os.environ,
            directory=self._directory,
        )
        # Until then SIGHUP would end it.
        self._process.wait_for_line(re.compile("started, version"), 30)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.stop()

    def set(self, name: str, addresses: Iterable[str]) -> None:
        """Let a name have these addresses from now on."""
        lines = "".join(f"{each} {name}\n" for each in addresses)
        self._hosts.write_text(lines, encoding="ascii")
        self._process.send_signal(signal.SIGHUP)


def resolving_with(server: NameServer | Dnsmasq, directory: Path) -> list[str]:
    """Return a program and arguments that run the command that follows them with this server.

    The command gets a mount namespace with another /etc/resolv.conf.
    """
    file = directory / "resolv.conf"
    file.write_text(f"nameserver {server.host}\noptions timeout:1 attempts:1\n")
    script = f"mount --bind {file} /etc/resolv.conf && exec " + '"$@"'
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]


def why_no_resolver() -> str:
    """Return why tests cannot have a resolver of their own; empty if they can."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "a resolver of its own needs root and unshare"
    try:
        subprocess.run(["unshare", "--mount", "true"], check=True, capture_output=True)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind(("127.53.255.254", PORT))
    except (OSError, subprocess.SubprocessError) as error:
        return f"a resolver of its own cannot be had here: {error}"
    return ""
