"""Every query of the dashboards and alerts, put to a real Prometheus while data is exchanged."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from tests.monitoring.rig import ALERTS, SCRAPE_SECONDS, SELECTOR, Prometheus, panel_queries
from tests.support.certificates import Authority
from tests.support.daemon import Daemon
from tests.support.pipelined_clients import PipelinedReader, PipelinedWriter
from tests.support.wire_clients import consumer, producer, read_gate, write_map_output

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_factories=["uvloop"]),
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="prometheus is not installed (Debian)"
    ),
]

DEADLINE_SECONDS = 120
CONTENT = b"x" * 100_000
MOVES = {
    "Written and read by tasks",
    "Sent between TaskManagers",
    "Map outputs finished",
    "Load factor",
    "Bytes by role",
    "CPU cores",
    "Used storage",
    "Uptime",
}
"""Panels that show more than zeros while data is exchanged."""


async def exchange(first: Daemon, second: Daemon, number: int) -> None:
    """Write a map output and a pipelined partition at one TaskManager, read them at the other."""
    client = await producer(first.address)
    reader = await consumer(second.address)
    await write_map_output(client, 1, number, [[CONTENT]])
    assert await read_gate(reader, 1, [(client.ack, [number])], 0, 1) == [CONTENT]
    writer = await PipelinedWriter.open(client, number, 1, shuffle_id=2, number=1)
    await writer.send(0, CONTENT[: client.ack.segment_size_bytes])
    with pytest.raises(RemoteError) as refused:
        await PipelinedWriter.open(client, number, 1, shuffle_id=3, number=2)
    assert refused.value.code is ErrorCode.QUOTA_EXCEEDED
    pipelined = PipelinedReader(reader, [(client.ack, number)], shuffle_id=2)
    await pipelined.read_until(1)
    await reader.close()
    await client.close()


async def unanswered(prometheus: Prometheus, expressions: Iterable[str]) -> set[str]:
    """Return the queries to which Prometheus has no data."""

    def ask() -> set[str]:
        return {each for each in expressions if not prometheus.values(each)}

    return await asyncio.to_thread(ask)


async def test_every_query_of_dashboards_and_alerts_has_data(tmp_path):
    """The third TaskManager has data processes and a certificate, and is only looked at."""
    apart = Authority(tmp_path / "authority").settings() | {"processes": 2}
    with ExitStack() as running:
        first, second = (
            running.enter_context(Daemon(tmp_path / name, quota_open_partitions=1))
            for name in ("one", "two")
        )
        third = running.enter_context(Daemon(tmp_path / "three", **apart))
        prometheus = running.enter_context(
            Prometheus(tmp_path / "prometheus", (first, second, third))
        )
        of_panels = {query.expression: query for query in panel_queries()}
        selectors = {found for rule in ALERTS.values() for found in SELECTOR.findall(rule["expr"])}
        missing = {*of_panels, *selectors}
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                for number in itertools.count():
                    await exchange(first, second, 2 * number)
                    await exchange(second, first, 2 * number + 1)
                    missing = await unanswered(prometheus, missing)
                    if not missing and number > 2:
                        break
                    await asyncio.sleep(SCRAPE_SECONDS / 2)  # Prometheus announces no scrape
        except TimeoutError:
            pytest.fail(f"no data for {[of_panels.get(each, each) for each in missing]}")
        values = await asyncio.to_thread(lambda: {q: prometheus.values(q) for q in of_panels})
        moved = {of_panels[each].panel for each, found in values.items() if any(found)}
        assert moved >= MOVES
        health = await asyncio.to_thread(prometheus.health)
        assert health == dict.fromkeys(ALERTS, "ok")
        for rule in ALERTS.values():
            await asyncio.to_thread(prometheus.values, rule["expr"])
        zeros = sorted({query.panel for query in of_panels.values()} - moved)
        print(f"{len(of_panels)} queries and {len(selectors)} selectors have data; zeros: {zeros}")
