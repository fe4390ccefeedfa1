"""Sluice runs on a Python that lacks names of ``os``, ``socket`` and ``mmap`` beyond POSIX.

CPython makes most of these names depend on the C library that it was built for. So a name is used
directly only if POSIX.1-2008 or Python itself has it; any other is looked up, with a fallback.
"""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

from sluice.shuffle.taskmanager.bounds.accounts import Accounts
from sluice.shuffle.taskmanager.config.taskmanager_config import TaskManagerConfig
from sluice.shuffle.taskmanager.process.host_limits import gather
from sluice.shuffle.taskmanager.store.health.directory_health import Condition
from sluice.shuffle.taskmanager.store.health.directory_probe import ProbedDirectory, probe
from sluice.shuffle.taskmanager.store.region_area import RegionAreas
from sluice.transport.acceptor import bind
from sluice.transport.access import peer_user
from sluice.transport.config import TransportConfig
from sluice.transport.socket_options import apply
from tests.support.mini_cluster import DISK_ONLY, MEMORY_TIER, mini_cluster
from tests.support.store import config
from tests.support.wire_clients import read_gate

ROOT: Final = Path(__file__).parents[1]
LAYERS: Final = ("protocol", "transport", "shuffle", "spark_integration")
MODULES: Final = ("os", "socket", "mmap")

PORTABLE: Final = {
    "os": {
        *("O_APPEND", "O_CLOEXEC", "O_CREAT", "O_DIRECTORY", "O_EXCL", "O_NOFOLLOW", "O_NONBLOCK"),
        *("O_RDONLY", "O_RDWR", "O_TRUNC", "O_WRONLY"),
        *("R_OK", "W_OK", "X_OK", "_exit", "access", "chmod", "close", "dup", "fchmod"),
        *(
            "fstat",
            "fstatvfs",
            "fsync",
            "ftruncate",
            "getegid",
            "geteuid",
            "getgroups",
            "getpid",
            "getuid",
            "isatty",
        ),
        *("open", "pread", "pwrite", "read", "readlink", "statvfs", "strerror", "sysconf"),
        *("uname", "write"),
        # Python's own
        *("devnull", "environ", "fsdecode", "fsencode", "listdir", "path", "pathsep", "sep"),
        *("scandir", "stat_result", "walk"),
    },
    "socket": {
        *("AF_INET", "AF_INET6", "AF_UNIX", "AI_PASSIVE", "EAI_AGAIN", "IPPROTO_TCP"),
        *("SHUT_RD", "SHUT_RDWR", "SHUT_WR", "SOCK_DGRAM", "SOCK_STREAM", "SOL_SOCKET"),
        *("SO_ERROR", "SO_KEEPALIVE", "SO_REUSEADDR", "TCP_NODELAY", "gethostname", "getaddrinfo"),
        # Python's own
        *("gaierror", "socket", "socketpair", "timeout"),
    },
    "mmap": {"ACCESS_READ", "MAP_SHARED", "PROT_READ", "PROT_WRITE", "mmap"},
}

BY_VARIABLE: Final = ("TCP_KEEPCNT", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_USER_TIMEOUT")
"""Names of ``socket`` that are looked up in a loop, where no syntax tree shows them."""


def _looked_up(tree: ast.AST) -> set[tuple[str, str]]:
    """The names that a module looks up with ``getattr`` or ``hasattr``."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Name(id="getattr" | "hasattr"),
                args=[ast.Name(id=module), ast.Constant(value=str(name)), *_],
            ) if module in MODULES:
                found.add((module, name))
    return found


def _used(tree: ast.AST) -> set[tuple[str, str]]:
    """The names that a module takes for granted."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in MODULES:
                found.add((module, name))
            case ast.ImportFrom(module=str(module), names=names) if module in MODULES:
                found.update((module, each.name) for each in names)
    return found


TREES: Final = {
    path.relative_to(ROOT): ast.parse(path.read_text(encoding="utf-8"))
    for layer in LAYERS
    for path in sorted((ROOT / layer).rglob("*.py"))
}
OPTIONAL: Final = sorted(
    {name for tree in TREES.values() for name in _looked_up(tree)}
    | {("socket", name) for name in BY_VARIABLE}
)


def test_no_name_beyond_posix_is_taken_for_granted():
    wrong = {
        (str(path), f"{module}.{name}")
        for path, tree in TREES.items()
        for module, name in _used(tree) - _looked_up(tree)
        if name not in PORTABLE[module]
    }
    assert not wrong, "look these up with getattr or hasattr, and have a fallback"


def test_the_known_optional_names_are_looked_up():
    assert {("os", "RWF_NOWAIT"), ("os", "O_DIRECT"), ("socket", "SO_PEERCRED")} <= set(OPTIONAL)


async def use_everything(directory: Path) -> None:
    """Do once all that needs an optional name: an exchange, a probe, an area, sockets."""
    for name, size_bytes in (("disk", DISK_ONLY), ("memory", MEMORY_TIER)):
        async with mini_cluster(directory / name, 1, memory_tier_bytes=size_bytes) as cluster:
            data = bytes(range(256)) * 4000
            ack = await cluster.write(0, 1, [[data]])
            reader = await cluster.consumer(0)
            assert await read_gate(reader, 1, [(ack, [1])], 0, 1) == [data]
    assert probe(ProbedDirectory(directory)).condition is Condition.GOOD
    areas = RegionAreas.open(config(directory), Accounts())
    area = await areas.create("app", 8192)
    assert area is not None
    assert area.path.stat().st_size == 8192
    area.release()
    areas.close()
    gather(TaskManagerConfig(storage=config(directory)))
    for host in ("127.0.0.1", "::1"):
        try:
            bound = await bind((host,), 0)
        except OSError:
            assert host == "::1"  # a host without IPv6
            continue
        for sock in bound:
            apply(sock, TransportConfig())
            sock.close()
    near, far = socket.socketpair()
    with near, far:
        user = peer_user(near)
        assert user is None or user.uid == os.getuid()


async def test_everything_is_used_with_all_names(tmp_path):
    await use_everything(tmp_path)


@pytest.mark.parametrize(("module", "name"), OPTIONAL, ids=map(".".join, OPTIONAL))
async def test_a_python_without_the_name_still_works(tmp_path, monkeypatch, module, name):
    monkeypatch.delattr(import_module(module), name, raising=False)
    await use_everything(tmp_path)


def test_a_python_without_all_of_them_loads_and_serves(tmp_path):
    """In a new process, where they are gone before the first import of Sluice."""
    lines = [
        "import asyncio, os, socket, sys, pathlib",
        *(f"vars({module}).pop({name!r}, None)" for module, name in OPTIONAL),
        "from tests.test_optional_names import use_everything",
        "asyncio.run(use_everything(pathlib.Path(sys.argv[1])))",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
