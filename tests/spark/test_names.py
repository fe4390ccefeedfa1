"""The addresses of a name, with the JVM's own resolver and a real name server."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from sluice.spark_integration import jar_path
from tests.support.cluster import REPOSITORY, installed_spark
from tests.support.name_server import NameServer, resolving_with, why_no_resolver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import IO

pytestmark = pytest.mark.skipif(bool(why_no_resolver()), reason=why_no_resolver())

NAME = "taskmanagers.sluice.test"
SOURCE = REPOSITORY / "tests" / "spark" / "java" / "Resolve.java"


class Resolver:
    """A JVM that resolves the name when it is asked."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin
        assert process.stdout
        self._asks: IO[str] = process.stdin
        self._answers: IO[str] = process.stdout

    def addresses(self) -> set[str]:
        """Return HOST:PORT of each address that it has now."""
        self._asks.write("\n")
        self._asks.flush()
        return set(self._answers.readline().split())

    def addresses_after_failures(self) -> set[str]:
        """Return the addresses when the JVM has forgotten that there were none.

        It keeps a failure for ten seconds; java.security says so, whatever an option says.
        """
        before = self.addresses()
        for _ in range(15):
            if (now := self.addresses()) != before:
                break
        return now


@pytest.fixture
def names() -> Iterator[NameServer]:
    with NameServer() as running:
        yield running


@pytest.fixture
def resolver(names: NameServer, tmp_path: Path) -> Iterator[Resolver]:
    classes = f"{jar_path()}:{installed_spark().home}/jars/*"
    command = [
        *resolving_with(names, tmp_path),
        *("java", "-Dsun.net.inetaddr.ttl=1", "-Dsun.net.inetaddr.negative.ttl=1"),
        *("-cp", classes, str(SOURCE), f"dns:{NAME}"),
    ]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        yield Resolver(process)


def test_addresses_of_a_name_follow_its_records(resolver: Resolver, names: NameServer):
    names.records = {NAME: ["127.0.0.41", "127.0.0.42", "127.0.0.43"]}
    assert resolver.addresses() == {f"127.0.0.{number}:7337" for number in (41, 42, 43)}
    names.records = {NAME: ["127.0.0.42"]}
    assert resolver.addresses() == {"127.0.0.42:7337"}

    names.fails = True
    assert resolver.addresses() == {"127.0.0.42:7337"}, "kept while the name fails"
    names.fails = False
    names.records = {}
    assert resolver.addresses() == {"127.0.0.42:7337"}, "kept while the name does not exist"

    names.records = {NAME: ["2001:db8::1"]}
    assert resolver.addresses_after_failures() == {"[2001:db8:0:0:0:0:0:1]:7337"}
    names.records = {NAME: ["127.0.0.41", "2001:db8::1"]}
    assert resolver.addresses() == {"127.0.0.41:7337", "[2001:db8:0:0:0:0:0:1]:7337"}

    many = [f"127.0.{number // 250}.{number % 250 + 1}" for number in range(500)]
    names.records = {NAME: many}
    assert resolver.addresses() == {f"{host}:7337" for host in many}, "over TCP"
    assert names.questions.keys() == {NAME}
