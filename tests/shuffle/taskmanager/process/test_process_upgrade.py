"""The steps of docs/operate/upgrading.md, with a real older release and with this one.

The older release is the wheel in ``tests/releases``, whose journals have format 1. A wheel is
imported as it is, so nothing is built or installed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.daemon import SLUICE, Daemon, run
from tests.support.wire_clients import consumer, producer, read_gate, write_map_output

if TYPE_CHECKING:
    from collections.abc import Callable

    Start = Callable[..., Daemon]

pytestmark = pytest.mark.slow

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])

WHEEL = Path(__file__).resolve().parents[3] / "releases" / "sluice-format-1.whl"
RUN = """
import sys
import protocol.codec

# It is older than the baseline of the wire: its HelloAck (2) has no instance id and process.
pack = protocol.codec._pack
protocol.codec._pack = lambda fields: pack((*fields, "i", 0, 1) if fields[0] == 2 else fields)

from shuffle.daemon.cli import main

sys.exit(main(prog_name="sluice"))
"""
LARGE = b"larger than the memory tier, and so on disk" * 200_000
SMALL = b"in the memory tier"


@pytest.fixture
def start(daemons: Callable[..., Daemon], tmp_path: Path) -> Start:
    """Start TaskManagers of either release on the same directories."""
    older = {
        "program": (sys.executable, "-P", "-c", RUN),
        "environment": {"PYTHONPATH": str(WHEEL)},
        "http_socket_path": None,  # it has no such option
    }
    return lambda *, is_older=False: daemons(tmp_path, **(older if is_older else {}))


async def write(daemon: Daemon, attempt: int) -> None:
    """Commit a map output on disk and one in memory."""
    writer = await producer(daemon.address)
    await write_map_output(writer, 1, attempt, [[LARGE, b""]])
    await write_map_output(writer, 1, attempt + 1, [[SMALL, b""]])
    await writer.close()


async def check(daemon: Daemon, attempt: int) -> None:
    """Read what :func:`write` has written."""
    reader = await consumer(daemon.address)
    for number, data in ((attempt, LARGE), (attempt + 1, SMALL)):
        assert await read_gate(reader, 1, [(reader.ack, [number])], 0, 2) == [data]
    await reader.close()


def contents(directory: Path) -> dict[Path, bytes]:
    return {
        path: path.read_bytes()
        for name in ("data", "memory")
        for path in (directory / name).glob("[ajr]*-*")
    }


@one_loop
async def test_the_steps_of_the_page_between_releases_of_one_format(tmp_path: Path, start: Start):
    first = start()
    await write(first, 0)
    drained = run([str(SLUICE), "drain", "--wait", "30", first.control_url])
    assert drained.returncode == 0, drained.stderr
    assert first.end() == 0
    second = start()
    assert second.identity == first.identity
    assert "2 map outputs adopted" in second.log
    await check(second, 0)
    assert second.end() == 0


@one_loop
async def test_an_upgrade_from_another_format_and_back_loses_nothing(tmp_path: Path, start: Start):
    """Each release serves its own map outputs and does not change files of the other one."""
    older = start(is_older=True)
    await write(older, 0)
    assert older.end() == 0
    of_older = contents(tmp_path)
    assert of_older

    newer = start()
    assert newer.identity == older.identity
    assert "0 map outputs adopted" in newer.log
    assert "has data of another release of Sluice" in newer.log
    assert "rm " not in newer.log
    await write(newer, 10)
    assert newer.end() == 0
    of_newer = {path: data for path, data in contents(tmp_path).items() if path not in of_older}
    assert {path: path.read_bytes() for path in of_older} == of_older

    mistaken = start(is_older=True)
    await check(mistaken, 0)
    await write(mistaken, 20)
    assert mistaken.end() == 0
    assert {path: path.read_bytes() for path in of_newer} == of_newer

    again = start()
    assert "2 map outputs adopted" in again.log
    await check(again, 10)
    assert again.end() == 0
