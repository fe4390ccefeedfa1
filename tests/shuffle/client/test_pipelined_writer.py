"""A client's pipelined partition: states, sending and waits."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice.protocol.errors import InvalidEvent, SluiceError
from sluice.protocol.events import CustomEvent, encode_event
from sluice.protocol.remote_error import RemoteError, error_response
from sluice.protocol.schema import (
    DATA,
    EVENT,
    EVERY_SUBPARTITION,
    PRIORITY_EVENT,
    AbortPartition,
    AddCredit,
    FinishPartition,
    PartitionFinished,
    PipelinedData,
    TaskEvent,
    WatchConsumption,
)
from sluice.shuffle.client.partition_location import PartitionLocation
from sluice.shuffle.client.pipelined_writer import open_pipelined
from sluice.shuffle.errors import (
    InvalidPartitionType,
    InvalidRequest,
    PartitionAlreadyFinished,
    PartitionReleased,
)
from sluice.shuffle.partition.flush_pace import FlushPace
from sluice.shuffle.partition.output_flusher import OutputFlusher
from sluice.shuffle.partition.partition_states import PartitionState
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.shuffle.partition.result_partition_writer import ALL_SUBPARTITIONS
from sluice.transport.errors import ConnectionLost, DeadlineExceeded
from tests.shuffle.client.rig import SEGMENT_SIZE_BYTES, SEGMENTS, ProducerRig, fill, turns, write

FULL = bytes(SEGMENT_SIZE_BYTES)
BROKEN = SluiceError("broken on purpose")
EVENT_BYTES = encode_event(CustomEvent("e", b""))


def said(rig, kind):
    return [message for message in rig.connection.sent if type(message) is kind]


async def test_data_goes_with_credit_and_priority_events_without():
    rig = ProducerRig()
    partition = await rig.partition()
    write(partition, 0, FULL).finish()
    partition.emit_event(EVENT_BYTES, PRIORITY_EVENT, ALL_SUBPARTITIONS)
    await turns()
    assert rig.connection.sent == [
        PipelinedData(partition.number, EVERY_SUBPARTITION, PRIORITY_EVENT)
    ]
    rig.leg.message_received(AddCredit(partition.number, 2), 0)
    await turns()
    assert rig.connection.sent[1:] == [PipelinedData(partition.number, 0, DATA)]
    assert rig.connection.payloads == [EVENT_BYTES, FULL]
    assert partition.credit == 0
    assert (partition.bytes_out, partition.buffers_out) == (len(FULL), 1)
    partition.release()
    assert rig.all_memory_is_back()


async def test_a_broadcast_buffer_is_sent_once():
    rig = ProducerRig()
    partition = await rig.partition()
    partition.credit_granted(5)
    write(partition, ALL_SUBPARTITIONS, b"abc")
    partition.flush_all()
    await turns()
    assert rig.connection.sent == [PipelinedData(partition.number, EVERY_SUBPARTITION, DATA)]
    assert (partition.bytes_out, partition.credit) == (3, 4)
    partition.release()
    assert rig.all_memory_is_back()


async def test_the_flusher_sends_the_bytes_of_open_buffers():
    rig = ProducerRig()
    flusher = OutputFlusher(0.01)
    partition = await rig.partition(flusher=flusher)
    partition.credit_granted(5)
    write(partition, 1, b"abc")
    async with asyncio.timeout(30):
        while not rig.connection.payloads:  # noqa: ASYNC110 - the flusher sets no event
            await asyncio.sleep(0.002)
    assert rig.connection.payloads == [b"abc"]
    partition.release()
    assert not partition.has_open_buffers
    flusher.close()
    assert rig.all_memory_is_back()


async def test_the_flusher_flushes_more_buffers_while_others_wait():
    rig = ProducerRig()
    partition = await rig.partition()
    partition._pace = FlushPace(2, cpu_clock=lambda: 0.0)  # this thread has time to spare
    write(partition, 0, b"abc")
    assert partition.flush_open() == 1
    write(partition, 1, b"def")
    assert partition.flush_open() == 2
    partition.credit_granted(5)
    await turns()
    assert rig.connection.payloads == [b"abc", b"def"]
    assert partition.flush_open() == 0
    partition.release()
    assert rig.all_memory_is_back()


async def test_the_flusher_pauses_while_flushed_buffers_wait_and_others_fill():
    rig = ProducerRig()
    partition = await rig.partition()
    write(partition, 0, b"abc")
    write(partition, 1, b"abc")
    assert partition.flush_open() == 2
    write(partition, 0, b"def")  # behind an open buffer: that one is complete
    assert partition.flush_open() == 1
    partition.credit_granted(5)
    await turns()
    assert rig.connection.payloads == [b"abc", b"abc"]
    assert partition.flush_open() == 1, "paused, and not idle"
    await turns()
    assert len(rig.connection.payloads) == 2
    partition.flush_all()  # a flush by the writer is not put off
    await turns()
    assert rig.connection.payloads[2:] == [b"def"]
    partition.release()
    assert rig.all_memory_is_back()


async def test_finish_waits_for_credit_then_for_the_answer():
    rig = ProducerRig()
    partition = await rig.partition()
    write(partition, 0, b"abc")
    finishing = asyncio.create_task(partition.finish())
    await turns()
    assert rig.connection.sent == []
    assert partition.state is PartitionState.FINISHING
    partition.credit_granted(1)
    await turns()
    assert rig.connection.sent == [
        PipelinedData(partition.number, 0, DATA),
        WatchConsumption(partition.number),
        FinishPartition(partition.number, 3, 0),
    ]
    assert not finishing.done()
    rig.leg.message_received(PartitionFinished(partition.number), 0)
    await finishing
    await partition.finish()
    partition.release()
    assert said(rig, AbortPartition) == []
    assert rig.leg.partitions == 0
    assert rig.all_memory_is_back()


async def test_an_unanswered_finish_has_a_deadline():
    rig = ProducerRig(answer_timeout_seconds=0.02)
    partition = await rig.partition()
    with pytest.raises(DeadlineExceeded, match="FinishPartition"):
        await partition.finish()
    partition.release()
    assert said(rig, AbortPartition) == [AbortPartition(partition.number)]
    assert rig.all_memory_is_back()


@pytest.mark.parametrize("sent", [False, True], ids=["draining", "answer"])
async def test_a_cancelled_finish_gives_the_partition_up(sent):
    rig = ProducerRig()
    partition = await rig.partition()
    write(partition, 0, b"abc")
    finishing = asyncio.create_task(partition.finish())
    if sent:
        partition.credit_granted(1)
    await turns()
    assert bool(said(rig, FinishPartition)) is sent
    finishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finishing
    partition.release()
    assert said(rig, AbortPartition) == [AbortPartition(partition.number)]
    assert rig.all_memory_is_back()


async def test_a_failure_while_finishing_gives_the_partition_up_once():
    rig = ProducerRig()
    partition = await rig.partition()
    write(partition, 0, b"abc")
    finishing = asyncio.create_task(partition.finish())
    await turns()
    partition.fail(BROKEN)
    with pytest.raises(SluiceError) as caught:
        await finishing
    assert caught.value is BROKEN
    assert partition.state is PartitionState.FAILED
    partition.release()
    assert said(rig, AbortPartition) == [AbortPartition(partition.number)]
    assert rig.all_memory_is_back()


async def finished(partition, rig):
    finishing = asyncio.create_task(partition.finish())
    await turns()
    rig.leg.message_received(PartitionFinished(partition.number), 0)
    await finishing


async def refused(partition, rig):
    rig.leg.message_received(error_response(partition.number, BROKEN), 0)


async def failed(partition, rig):
    partition.fail(BROKEN)


async def lost(partition, rig):
    rig.leg.connection_lost(ConnectionLost("gone"))


async def released(partition, rig):
    partition.release()


@pytest.mark.parametrize(
    ("end", "state", "error"),
    [
        (finished, PartitionState.FINISHED, PartitionAlreadyFinished),
        (refused, PartitionState.FAILED, RemoteError),
        (failed, PartitionState.FAILED, SluiceError),
        (lost, PartitionState.FAILED, ConnectionLost),
        (released, PartitionState.RELEASED, PartitionReleased),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_every_end_leads_to_its_state_and_refuses_further_writes(end, state, error):
    rig = ProducerRig()
    partition = await rig.partition()
    before = partition.request_builder(0)
    assert before is not None
    consumer = before.create_consumer()
    before.finish()
    waiting = asyncio.create_task(partition.wait_for_builder(0))
    (await waiting).finish()
    await end(partition, rig)
    assert partition.state is state
    for call in (
        lambda: partition.request_builder(0),
        lambda: partition.add_consumer(consumer, 0),
        lambda: partition.emit_event(EVENT_BYTES, EVENT, 0),
    ):
        with pytest.raises(error):
            call()
    with pytest.raises(error):
        await partition.wait_for_builder(0)
    assert consumer.is_closed
    assert not partition.is_available
    await partition.wait_available()  # does not wait
    partition.flush(0)
    partition.flush_all()
    partition.fail(BROKEN)
    assert partition.state is state
    if state is PartitionState.FINISHED:
        await partition.finish()
    else:
        with pytest.raises(error):
            await partition.finish()
    partition.release()
    partition.release()
    assert partition.state is PartitionState.RELEASED
    # The side that gives up tells the other, and only once.
    told = end in (failed, released)
    assert said(rig, AbortPartition) == [AbortPartition(partition.number)] * told
    assert rig.all_memory_is_back()


@pytest.mark.parametrize("end", [refused, failed, lost, released])
@pytest.mark.parametrize("wait", ["builder", "available", "draining", "answer"])
async def test_every_end_wakes_every_wait(end, wait):
    rig = ProducerRig()
    partition = await rig.partition(segments=2)
    for _ in range(2):
        write(partition, 0, FULL).finish()
    waiting: asyncio.Task[object]
    if wait == "builder":
        waiting = asyncio.create_task(partition.wait_for_builder(0))
    elif wait == "available":
        waiting = asyncio.create_task(partition.wait_available())
    else:
        if wait == "answer":
            partition.credit_granted(5)
        waiting = asyncio.create_task(partition.finish())
    await turns()
    assert not waiting.done()
    await end(partition, rig)
    if wait in ("draining", "answer") and end is failed:
        partition.release()  # it is finished as far as the task goes: only giving it up helps
    if wait == "available":
        await waiting
    else:
        with pytest.raises(SluiceError):
            await waiting
    partition.release()
    assert rig.all_memory_is_back()


@pytest.mark.parametrize("what", ["builder", "available"])
async def test_cancelled_waits_take_nothing(what):
    rig = ProducerRig()
    partition = await rig.partition(segments=2)
    partition.credit_granted(1)
    builders = [write(partition, number, FULL) for number in (0, 1)]
    wait = partition.wait_for_builder(0) if what == "builder" else partition.wait_available()
    waiting = asyncio.create_task(wait)
    await turns(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    for builder in builders:
        builder.finish()
    await turns()
    rig.connection.drain()
    assert partition.request_builder(0) is not None
    partition.release()


async def test_a_small_pool_is_not_used_up_by_open_buffers():
    rig = ProducerRig()
    partition = await rig.partition(subpartitions=2, segments=2)
    partition.credit_granted(1)
    write(partition, 0, b"abc")
    write(partition, 1, b"abc")
    waiting = asyncio.create_task(partition.wait_for_builder(0))
    await turns()
    assert len(rig.connection.payloads) == 1
    rig.connection.drain()
    (await waiting).finish()
    partition.release()
    assert rig.all_memory_is_back()


async def test_back_pressure_is_bounded_by_the_pool_and_counted():
    rig = ProducerRig()
    partition = await rig.partition(segments=3)
    for _ in range(3):
        write(partition, 0, FULL).finish()
    assert partition.request_builder(0) is None
    assert not partition.is_available
    waiting = asyncio.create_task(partition.wait_for_builder(0))
    await turns()
    partition.credit_granted(1)
    await turns()
    assert not waiting.done()  # sent is not enough: the transport still has it
    rig.connection.drain()
    (await waiting).finish()
    assert partition.memory.hard_back_pressured_seconds > 0
    partition.release()
    assert rig.all_memory_is_back()


async def test_task_events_reach_the_handler():
    rig = ProducerRig()
    got = []
    partition = await rig.partition(task_event=lambda kind, payload: got.append((kind, payload)))
    for payload in (b"hello", b""):
        message = TaskEvent(partition.number, 7)
        if payload:
            fill(rig.leg.payload_buffer(message, len(payload)), payload)
        rig.leg.message_received(message, len(payload))
    assert got == [(7, b"hello"), (7, b"")]
    partition.release()


async def test_a_handler_that_raises_fails_only_its_partition(caplog):
    rig = ProducerRig()

    def broken(kind, payload):
        raise RuntimeError("a bug of the task's")

    partition = await rig.partition(task_event=broken)
    other = await rig.partition(subpartitions=1, segments=1)
    rig.leg.message_received(TaskEvent(partition.number, 7), 0)
    assert partition.state is PartitionState.FAILED
    assert other.state is PartitionState.OPEN
    assert said(rig, AbortPartition) == [AbortPartition(partition.number)]
    assert "a bug of the task's" in caplog.text
    for each in (partition, other):
        each.release()


async def test_bad_arguments_are_refused():
    rig = ProducerRig()
    partition = await rig.partition(subpartitions=2)
    for subpartition in (2, -2):
        with pytest.raises(InvalidRequest, match=str(subpartition)):
            partition.request_builder(subpartition)
        with pytest.raises(InvalidRequest):
            partition.emit_event(EVENT_BYTES, EVENT, subpartition)
    with pytest.raises(InvalidRequest, match="Data type"):
        partition.emit_event(EVENT_BYTES, DATA, 0)
    for payload in (b"", bytes(1025)):
        with pytest.raises(InvalidEvent):
            partition.emit_event(payload, EVENT, 0)
    assert partition.state is PartitionState.OPEN
    partition.release()
    assert rig.network.available_segments == SEGMENTS


@pytest.mark.interpreted
async def test_an_older_taskmanager_gets_no_hybrid_partition():
    """It would close the connection, with all partitions on it, because of an unknown type."""
    leg = cast("Any", SimpleNamespace(features=0))  # nothing is sent on it
    unused = cast("Any", None)
    location = PartitionLocation(1, 7, ResultPartitionType.HYBRID_SELECTIVE, "tm", "host", 1)
    with pytest.raises(InvalidPartitionType, match="HYBRID_SELECTIVE"):
        await open_pipelined(leg, location, unused, unused)
