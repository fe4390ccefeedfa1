"""Traces of moves: a drain moves map outputs to other TaskManagers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.trace import StatusCode

from sluice.protocol.schema import MoveNoted, OutputsMoved
from sluice.shuffle.taskmanager.replicas import migration
from tests.support.collector import ENDPOINT, Collector, id_of, parent_of, trace_of
from tests.support.copies import KEY, copying
from tests.support.mini_cluster import eventually, mini_cluster

if TYPE_CHECKING:
    from tests.support.wire_clients import Client

TRACED: dict[str, Any] = {"traces_endpoint": ENDPOINT}
ATTEMPTS = {0, 1, 2}

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])


@pytest.fixture
def collector(monkeypatch):
    monkeypatch.setattr(migration, "FIRST_PAUSE_SECONDS", 0.001)
    return Collector(monkeypatch)


async def note_moves(link: Client) -> None:
    """Acknowledge the moves of all map outputs, as a driver does."""
    noted: set[int] = set()
    while noted < ATTEMPTS:
        message = await link.expect(OutputsMoved)
        assert isinstance(message, OutputsMoved)
        noted.update(message.map_attempt_ids)
        link.send(MoveNoted(message.move))


async def test_a_move_continues_at_the_receiving_taskmanager(tmp_path, collector):
    async with copying(tmp_path, check=False, **TRACED) as (cluster, links):
        for attempt in ATTEMPTS:
            await cluster.write(0, attempt, [[b"abc"]])
        assert not collector.spans(cluster)
        cluster[0].drain()
        await asyncio.gather(cluster[0].migrate(), note_moves(links[0]))
        await eventually(lambda: "migration" in collector.spans(cluster))
        spans = collector.spans(cluster)
        first = spans["migration"][0]
        assert parent_of(first) == ""
        assert first.attributes["sluice.map_outputs_moved"] == len(ATTEMPTS)
        assert first.attributes["sluice.map_outputs_staying"] == 0
        moves = spans["move"]
        assert {each.attributes["sluice.map_attempt"] for each in moves} == ATTEMPTS
        place = f"{cluster[1].taskmanager_id} {cluster[1].address}"
        assert {each.attributes["sluice.target"] for each in moves} == {place}
        assert {parent_of(each) for each in moves} == {id_of(first)}
        assert {each.status.status_code for each in moves} == {StatusCode.UNSET}
        copies = spans["copy"]
        assert sorted(map(parent_of, copies)) == sorted(map(id_of, moves))
        written = spans["map output"]
        assert sorted(map(parent_of, written)) == sorted(map(id_of, copies))
        there = {each.resource.attributes["service.instance.id"] for each in written}
        assert there == {cluster[1].taskmanager_id}
        assert {trace_of(each) for each in (*moves, *copies, *written)} == {trace_of(first)}


async def test_the_span_of_a_map_output_that_stays_has_the_reason(tmp_path, collector):
    async with mini_cluster(tmp_path, 1, check=False, **TRACED) as cluster:
        await cluster.write(0, 7, [[b"abc"]])
        cluster[0].drain()
        await cluster[0].migrate()
        spans = collector.spans(cluster)
        (whole,) = spans["migration"]
        assert whole.attributes["sluice.map_outputs_staying"] == 1
        for span in (whole, *spans["move"]):
            assert span.status.status_code is StatusCode.ERROR
            assert span.status.description == "no other TaskManager is known"
        assert len(spans["move"]) == migration.PASSES


async def test_a_release_meanwhile_makes_no_pass_move_less_than_nothing(
    tmp_path, collector, monkeypatch
):
    async with copying(tmp_path, check=False, **TRACED) as (cluster, links):
        for attempt in ATTEMPTS:
            await cluster.write(0, attempt, [[b"abc"]])
        cluster[0].drain()
        await asyncio.gather(cluster[0].migrate(), note_moves(links[0]))
        running = migration.Migration._move_all

        async def released_during(moves):
            cluster[0].partitions.release_application(KEY.application_id)
            await running(moves)

        monkeypatch.setattr(migration.Migration, "_move_all", released_during)
        await cluster[0].migrate()
        await eventually(lambda: len(collector.spans(cluster).get("migration", ())) >= 2)
        moved = [
            each.attributes["sluice.map_outputs_moved"]
            for each in collector.spans(cluster)["migration"]
        ]
        assert moved[:2] == [len(ATTEMPTS), 0]


async def test_moves_that_are_sampled_out_have_no_spans(tmp_path, collector):
    settings = TRACED | {"traces_sample_ratio": 0}
    async with copying(tmp_path, check=False, **settings) as (cluster, links):
        for attempt in ATTEMPTS:
            await cluster.write(0, attempt, [[b"abc"]])
        cluster[0].drain()
        await asyncio.gather(cluster[0].migrate(), note_moves(links[0]))
        assert cluster[0].counters.map_outputs_moved == len(ATTEMPTS)
        assert not collector.spans(cluster)
