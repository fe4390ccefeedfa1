"""Every step of a record between two clients, in a trace: there, blocked, and woken."""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol.schema import DATA, BufferResponse, ChecksummedBuffer, PipelinedData
from sluice.shuffle.client.pipelined_writer import PipelinedWriter
from sluice.shuffle.client.send_queue import SendQueue
from sluice.shuffle.gate.input_gate import InputGate
from sluice.shuffle.gate.local_input_channel import LocalInputChannel
from sluice.shuffle.gate.remote_input_channel import RemoteInputChannel
from sluice.shuffle.memory import LocalBufferPool
from sluice.shuffle.partition.pipelined_subpartition import PipelinedSubpartition
from sluice.shuffle.records.record_reader import ChannelRecord
from sluice.shuffle.records.selectors import RoundRobinSelector
from sluice.shuffle.records.serializers import BytesSerializer
from sluice.shuffle.records.spanning_deserializer import SpanningRecordDeserializer
from sluice.shuffle.records.spanning_serializer import SpanningRecordSerializer
from sluice.shuffle.taskmanager.serve.credit_based_view_reader import CreditBasedViewReader
from sluice.transport.connection import Connection
from tests.support.api_clients import emitted
from tests.support.tasks import daemon_tasks, embedded_tasks, ended, full_record, is_stuck
from tests.support.trace import Trace

ONLY_FULL = -1
SEGMENTS = 3
RECORD = b"A" * 50
QUIET_SECONDS = 0.05
"""Time in which the credit of an earlier record has come back."""

POOLS_OF_THE_PARTITION = ("partition 7 of shuffle 1", "pipelined partition 7")
"""Of a client beside its TaskManager; in a TaskManager, whether or not a client writes it."""

pytestmark = pytest.mark.interpreted


def is_data(connection, message, *rest) -> bool:
    return isinstance(message, BufferResponse | ChecksummedBuffer) and message.data_type == DATA


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> Trace:
    found = Trace(monkeypatch)
    watch = found.watch
    watch(BytesSerializer, "serialize", "1 serialize")
    watch(RoundRobinSelector, "select", "1 select")
    watch(
        LocalBufferPool,
        "request_buffer_nowait",
        "1 take a buffer of the client's pool",
        lambda pool, *rest: pool.name == POOLS_OF_THE_PARTITION[0],
    )
    watch(
        LocalBufferPool,
        "request_buffer_nowait",
        "1 take a buffer of the TaskManager's pool",
        lambda pool, *rest: pool.name == POOLS_OF_THE_PARTITION[1],
    )
    watch(SpanningRecordSerializer, "copy_to", "1 copy into the segment")
    watch(SendQueue, "add", "2 queue it in the client")
    watch(SendQueue, "flush", "3 flush")
    watch(SendQueue, "flush_all", "3 flush")
    watch(
        Connection,
        "send",
        "4 send it to the TaskManager",
        lambda connection, message, *rest: type(message) is PipelinedData,
    )
    watch(PipelinedSubpartition, "add", "5 queue it in its subpartition")
    watch(CreditBasedViewReader, "data_available", "6 the leg is told")
    watch(LocalInputChannel, "data_available", "6 the local channel is told")
    watch(
        PipelinedSubpartition,
        "poll",
        "7 take it from the subpartition",
        lambda result, *rest: result is not None and result.data_type == DATA,
        after=True,
    )
    watch(Connection, "send", "8 send it", is_data)
    watch(
        RemoteInputChannel,
        "buffer_received",
        "9 in a segment of the receiver",
        lambda channel, message, content: message.data_type == DATA,
    )
    watch(
        InputGate,
        "poll",
        "10 take it from a gate",
        lambda result, *rest: result is not None and result.buffer.data_type == DATA,
        after=True,
    )
    watch(SpanningRecordDeserializer, "next_record", "11 deserialize")
    return found


REMOTE = pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])

WRITTEN = [
    "1 serialize",
    "1 select",
    "1 take a buffer of the client's pool",
    "1 copy into the segment",
    "2 queue it in the client",
]
"""The steps of the task itself; the others come with the flush."""

TO_THE_TASK_MANAGER = ["4 send it to the TaskManager", "5 queue it in its subpartition"]
FROM_A_SUBPARTITION = ["7 take it from the subpartition", "8 send it"]
TO_THE_FUNCTION = ["9 in a segment of the receiver", "10 take it from a gate", "11 deserialize"]


@REMOTE
async def test_a_record_takes_every_step_once(tmp_path, trace, remote):
    async with (
        daemon_tasks(tmp_path, remote=remote) as tasks,
        tasks.producer.open_result_partition(
            1, 7, 1, max_segments=SEGMENTS, buffer_timeout_seconds=ONLY_FULL
        ) as partition,
        tasks.consumer.open_gate([partition.location], 0) as gate,
    ):
        writer = partition.record_writer(BytesSerializer())
        reader = gate.reader(BytesSerializer())
        assert writer.emit(full_record(0)) is None  # opens all channels
        assert await reader.next() == ChannelRecord(0, full_record(0))
        await asyncio.sleep(QUIET_SECONDS)
        trace.take()
        assert writer.emit(RECORD) is None
        assert trace.take() == WRITTEN
        await asyncio.sleep(0)
        assert trace.take() == [], "nothing goes before the flush"
        writer.flush_all()
        assert trace.take() == ["3 flush"]
        assert await reader.next() == ChannelRecord(0, RECORD)
        across = ["6 the leg is told", *FROM_A_SUBPARTITION, "9 in a segment of the receiver"]
        forward = ["6 the leg is told", "8 send it"]
        assert trace.take() == [
            *TO_THE_TASK_MANAGER,
            *(
                [*across, *forward]
                if remote
                else ["6 the local channel is told", "6 the leg is told", *FROM_A_SUBPARTITION]
            ),
            *TO_THE_FUNCTION,
        ]
        assert await ended(partition, gate) == []


async def write_until_stuck(
    writer, trace, capacity: int
) -> tuple[int, asyncio.Future[None], list[str]]:
    """Write full records until one waits; return their number, that emit and its steps."""
    for number in range(capacity):
        await emitted(writer.emit(full_record(number)))
    trace.take()
    pending = writer.emit(full_record(capacity))
    assert pending is not None
    emitting = asyncio.ensure_future(pending)
    assert await is_stuck(emitting)
    return capacity + 1, emitting, trace.take()


@REMOTE
async def test_a_producer_is_blocked_by_the_last_step_and_woken_by_the_first(
    tmp_path, trace, remote
):
    """Without a buffer it waits for the pool; what the reader frees comes back step by step."""
    of_the_partition = POOLS_OF_THE_PARTITION[0]
    trace.watch(
        LocalBufferPool, "add_listener", "wait", lambda pool, *rest: pool.name == of_the_partition
    )
    trace.watch(
        LocalBufferPool,
        "recycle",
        "5 a buffer of the client's pool is free",
        lambda pool, *rest: pool.name == of_the_partition,
    )
    trace.watch(CreditBasedViewReader, "add_credit", "2 credit for the sender")
    trace.watch(PipelinedWriter, "credit_granted", "3 credit for the producer")
    async with (
        daemon_tasks(tmp_path, remote=remote) as tasks,
        tasks.producer.open_result_partition(
            1, 7, 1, max_segments=SEGMENTS, buffer_timeout_seconds=ONLY_FULL
        ) as partition,
        tasks.consumer.open_gate([partition.location], 0) as gate,
    ):
        writer = partition.record_writer(BytesSerializer())
        reader = gate.reader(BytesSerializer())
        written, emitting, steps = await write_until_stuck(
            writer, trace, SEGMENTS + tasks.buffers_between
        )
        # Serialized and chosen, but there is no buffer to copy it to.
        assert steps[:3] == ["1 serialize", "1 select", "1 take a buffer of the client's pool"]
        assert [step for step in steps if step[0] in "1w"][-1] == "wait"
        assert "2 queue it in the client" not in steps
        assert await reader.next() == ChannelRecord(0, full_record(0))
        await emitting
        found = trace.take()
        expected = [
            "10 take it from a gate",
            "2 credit for the sender",
            "8 send it",
            "3 credit for the producer",
            "4 send it to the TaskManager",
            "5 a buffer of the client's pool is free",
            "1 copy into the segment",
            "2 queue it in the client",
        ]
        assert [step for step in dict.fromkeys(found) if step in expected] == expected
        for number in range(1, written):
            assert await reader.next() == ChannelRecord(0, full_record(number))
        assert await ended(partition, gate) == []


IN_THE_TASK_MANAGER = [
    "1 serialize",
    "1 select",
    "1 take a buffer of the TaskManager's pool",
    "1 copy into the segment",
    "5 queue it in its subpartition",
]
"""The steps of a task inside its TaskManager: there is no leg between them."""


@REMOTE
async def test_inside_a_task_manager_a_record_takes_the_steps_of_its_partition(
    tmp_path, trace, remote
):
    trace.watch(PipelinedSubpartition, "flush", "3 flush")
    async with (
        embedded_tasks(tmp_path, remote=remote) as tasks,
        tasks.producer.open_result_partition(
            1, 7, 1, max_segments=SEGMENTS, buffer_timeout_seconds=ONLY_FULL
        ) as partition,
        tasks.consumer.open_gate([partition.location], 0) as gate,
    ):
        writer = partition.record_writer(BytesSerializer())
        reader = gate.reader(BytesSerializer())
        assert writer.emit(full_record(0)) is None  # opens all channels
        assert await reader.next() == ChannelRecord(0, full_record(0))
        await asyncio.sleep(QUIET_SECONDS)
        trace.take()
        assert writer.emit(RECORD) is None
        assert trace.take() == IN_THE_TASK_MANAGER
        writer.flush_all()
        told = "6 the leg is told" if remote else "6 the local channel is told"
        assert trace.take() == ["3 flush", told]
        writer.flush_all()
        assert trace.take() == ["3 flush"], "one notification is enough"
        assert await reader.next() == ChannelRecord(0, RECORD)
        assert trace.take() == (
            [*FROM_A_SUBPARTITION, *TO_THE_FUNCTION]
            if remote
            else ["7 take it from the subpartition", *TO_THE_FUNCTION[1:]]
        )
        assert await ended(partition, gate) == []


@REMOTE
async def test_inside_a_task_manager_a_producer_is_blocked_and_woken(tmp_path, trace, remote):
    of_the_partition = POOLS_OF_THE_PARTITION[1]
    trace.watch(
        LocalBufferPool, "add_listener", "wait", lambda pool, *rest: pool.name == of_the_partition
    )
    trace.watch(
        LocalBufferPool,
        "recycle",
        "5 a buffer of the pool is free",
        lambda pool, *rest: pool.name == of_the_partition,
    )
    trace.watch(CreditBasedViewReader, "add_credit", "2 credit for the sender")
    async with (
        embedded_tasks(tmp_path, remote=remote) as tasks,
        tasks.producer.open_result_partition(
            1, 7, 1, max_segments=SEGMENTS, buffer_timeout_seconds=ONLY_FULL
        ) as partition,
        tasks.consumer.open_gate([partition.location], 0) as gate,
    ):
        writer = partition.record_writer(BytesSerializer())
        reader = gate.reader(BytesSerializer())
        written, emitting, steps = await write_until_stuck(
            writer, trace, SEGMENTS + tasks.buffers_between
        )
        assert steps[:3] == IN_THE_TASK_MANAGER[:3]
        # Earlier records may still be sent after the writer waits.
        assert [step for step in steps if step in {"1 copy into the segment", "wait"}][-1] == "wait"
        assert "5 queue it in its subpartition" not in steps
        assert await reader.next() == ChannelRecord(0, full_record(0))
        await emitting
        expected = [
            "10 take it from a gate",
            *(["2 credit for the sender", "8 send it"] if remote else []),
            "5 a buffer of the pool is free",
            "1 copy into the segment",
            "5 queue it in its subpartition",
        ]
        found = [step for step in dict.fromkeys(trace.take()) if step in expected]
        assert found == expected
        for number in range(1, written):
            assert await reader.next() == ChannelRecord(0, full_record(number))
        assert await ended(partition, gate) == []
