"""Three ways to deliver a record, and every step of each in a trace."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from sluice.protocol.schema import DATA, BufferResponse, ChecksummedBuffer, PipelinedData
from sluice.shuffle.client.client import ShuffleClient
from sluice.shuffle.dataflow.operator_outputs import ChainingOutput
from sluice.shuffle.dataflow.stream_elements import StreamRecord
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
from sluice.shuffle.taskmanager.serve.partition_request_queue import PartitionRequestQueue
from sluice.transport.connection import Connection
from tests.shuffle.model.rig import ATTEMPT, PATIENCE_SECONDS, pipe
from tests.support.gates import KEY, gate_of, source
from tests.support.mini_cluster import eventually, mini_cluster
from tests.support.trace import Trace

RECORD = b"A" * 50

PRODUCER_STEPS = [
    "1 serialize",
    "1 select",
    "1 take a buffer of pool 1",
    "1 copy into the segment",
    "2 queue the buffer in its subpartition",
]
"""The steps of the task's own thread; the others come with the flush."""


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> Trace:
    """Trace the producer's five steps, numbered, and the steps at the consumer."""
    found = Trace(monkeypatch)
    watch = found.watch
    watch(BytesSerializer, "serialize", "1 serialize")
    watch(RoundRobinSelector, "select", "1 select")
    watch(
        LocalBufferPool,
        "request_buffer_nowait",
        "1 take a buffer of pool 1",
        lambda pool, *rest: pool.name == "pool 1",
    )
    watch(SpanningRecordSerializer, "copy_to", "1 copy into the segment")
    watch(PipelinedSubpartition, "add", "2 queue the buffer in its subpartition")
    watch(PipelinedSubpartition, "flush", "3 flush")
    watch(
        PartitionRequestQueue, "notify", "3 the reader is told", lambda queue, reader: reader.view
    )
    watch(LocalInputChannel, "data_available", "3 the reader is told")
    watch(PartitionRequestQueue, "run", "4 the network's turn", lambda queue: len(queue))
    watch(
        PipelinedSubpartition,
        "poll",
        "4 take the buffer from the subpartition",
        lambda result, *rest: result is not None and result.data_type == DATA,
        after=True,
    )
    watch(
        Connection,
        "send",
        "5 write it to the connection",
        lambda connection, message, *rest: type(message) is ChecksummedBuffer,
    )
    watch(
        RemoteInputChannel,
        "buffer_received",
        "6 in a segment of pool 2",
        lambda channel, message, content: message.data_type == DATA,
    )
    watch(
        InputGate,
        "poll",
        "7 take it from the gate",
        lambda result, *rest: result is not None and result.buffer.data_type == DATA,
        after=True,
    )
    watch(SpanningRecordDeserializer, "next_record", "8 deserialize")
    return found


class UserFunction:
    """The operator at the end."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.seen: list[object] = []

    def process_record(self, record: StreamRecord[bytes]) -> None:
        self._trace.steps.append("9 user function")
        self.seen.append(record.value)

    def process_watermark(self, watermark: object) -> None: ...

    def process_stream_status(self, status: object) -> None: ...

    def process_latency_marker(self, marker: object) -> None: ...


def test_in_one_thread_it_is_a_call(trace):
    """A chained operator is called: without a buffer, a serializer or a gate."""
    function = UserFunction(trace)
    record = StreamRecord(RECORD, 1)
    assert ChainingOutput(function).collect(record) is None
    assert trace.take() == ["9 user function"]
    assert function.seen[0] is record.value, "the very object"


@pytest.mark.interpreted
async def test_on_one_task_manager_the_buffer_is_handed_over(tmp_path, trace):
    """The consumer reads the producer's own buffer; no connection has part in it."""
    async with pipe(tmp_path, 3, remote=False) as between, asyncio.timeout(PATIENCE_SECONDS):
        await eventually(
            lambda: getattr(between.gate.channels[0], "is_pipelined", False), "the view"
        )
        function = UserFunction(trace)
        trace.take()
        assert between.writer.emit(RECORD) is None
        assert trace.take() == PRODUCER_STEPS
        between.writer.flush_all()
        assert trace.take() == ["3 flush", "3 the reader is told"]
        element = await between.reader.next()
        assert isinstance(element, ChannelRecord)
        function.process_record(StreamRecord(element.value))
        assert trace.take() == [
            "4 take the buffer from the subpartition",
            "7 take it from the gate",
            "8 deserialize",
            "9 user function",
        ]
        assert function.seen == [RECORD]


@pytest.mark.interpreted
async def test_across_the_network_the_five_steps_and_their_answer(tmp_path, trace):
    """Selector, serializer, segment, flush, network, segment, gate, function."""
    async with pipe(tmp_path, 3) as between, asyncio.timeout(PATIENCE_SECONDS):
        function = UserFunction(trace)
        trace.take()
        assert between.writer.emit(RECORD) is None
        assert trace.take() == PRODUCER_STEPS
        await asyncio.sleep(0)
        assert trace.take() == [], "nothing goes before the flush"
        between.writer.flush_all()
        assert trace.take() == ["3 flush", "3 the reader is told"]
        assert between.writer.emit(RECORD) is None
        between.writer.flush_all()
        assert trace.take() == ["1 serialize", "1 select", "3 flush"], "one notification is enough"
        element = await between.reader.next()
        assert isinstance(element, ChannelRecord)
        function.process_record(StreamRecord(element.value))
        assert trace.take() == [
            "4 the network's turn",
            "4 take the buffer from the subpartition",
            "5 write it to the connection",
            "6 in a segment of pool 2",
            "7 take it from the gate",
            "8 deserialize",
            "9 user function",
        ]
        element = await between.reader.next()
        assert isinstance(element, ChannelRecord)
        assert trace.take() == ["8 deserialize"], "both came in one buffer"


@pytest.mark.interpreted
@pytest.mark.parametrize("pipelined", [True, False], ids=["push", "pull"])
async def test_push_and_pull(tmp_path, monkeypatch, pipelined):
    """Pipelined data comes while it is written; stored data when it is asked for."""
    trace = Trace(monkeypatch)
    trace.watch(
        Connection,
        "send",
        "to the TaskManager",
        lambda connection, message, *rest: type(message) is PipelinedData,
    )
    trace.watch(
        Connection,
        "send",
        "to the consumer",
        lambda connection, message, *rest: (
            type(message) in (BufferResponse, ChecksummedBuffer) and message.data_type == DATA
        ),
    )
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(PATIENCE_SECONDS))
        cluster = await stack.enter_async_context(mini_cluster(tmp_path, 2))
        gate = await stack.enter_async_context(gate_of(cluster[1]))
        if pipelined:
            client = await stack.enter_async_context(
                await ShuffleClient.connect(cluster[0].address, "app")
            )
            partition = await stack.enter_async_context(
                client.open_result_partition(KEY.shuffle_id, ATTEMPT, 1)
            )
            await partition.emit_buffer(RECORD, 0)
        else:
            await cluster.write(0, ATTEMPT, [[RECORD]])
            assert trace.take() == []
        gate.add_channel(source(cluster[0], ATTEMPT))
        taken = await gate.next_buffer_or_event()
        assert taken is not None
        assert bytes(taken.buffer.payload) == RECORD
        assert taken.buffer.release is not None
        taken.buffer.release()
        steps = trace.take()
        if not pipelined:
            assert steps == ["to the consumer"]
            return
        assert steps == ["to the TaskManager", "to the consumer"]
        assert not gate.has_ended
        await partition.emit_buffer(RECORD, 0)  # the next records follow without a request
        more = await gate.next_buffer_or_event()
        assert more is not None
        assert more.buffer.release is not None
        more.buffer.release()
