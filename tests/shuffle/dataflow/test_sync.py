"""The Python API from plain threads, against a TaskManager in a process of its own."""

from __future__ import annotations

import asyncio
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.protocol.events import CheckpointBarrier, EndOfPartition
from sluice.protocol.schema import BLOCKING_EVENT
from sluice.shuffle.client.config import ClientConfig
from sluice.shuffle.client.loop_thread import LoopThread
from sluice.shuffle.dataflow.sync import BATCH_RECORDS, SyncShuffleClient
from sluice.shuffle.errors import InvalidRequest
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.shuffle.records.record_reader import ChannelEvent, ChannelRecords
from sluice.shuffle.records.selectors import HashSelector
from sluice.shuffle.records.serializers import BytesSerializer, StringSerializer, ViewSerializer
from sluice.spark_integration.local_taskmanager import LocalTaskManager
from sluice.transport.config import TransportConfig
from sluice.transport.errors import ConnectFailed, ConnectionLost, DeadlineExceeded

if TYPE_CHECKING:
    from sluice.shuffle.client.partition_location import PartitionLocation

WORDS = [f"word {number % 97}" for number in range(10 * BATCH_RECORDS + 7)]


@pytest.fixture(scope="module")
def endpoint():
    with LocalTaskManager() as taskmanager:
        yield taskmanager.endpoint


@pytest.fixture
def client(endpoint, request):
    with SyncShuffleClient(endpoint, request.node.name, timeout_seconds=30) as client:
        yield client


@pytest.mark.parametrize("kind", list(ResultPartitionType))
def test_threads_write_and_read(endpoint, kind):
    locations = []
    opened = threading.Barrier(3)

    def write(number):
        with (
            SyncShuffleClient(endpoint, f"threads {kind}", timeout_seconds=30) as client,
            client.open_result_partition(
                1, number, 2, StringSerializer(), HashSelector(str.encode), partition_type=kind
            ) as out,
        ):
            locations.append(out.location)
            if kind.is_pipelined:
                opened.wait(30)
            for word in WORDS[: len(WORDS) // 2]:
                out.emit(word)
            out.emit_batch(WORDS[len(WORDS) // 2 :])

    def read(subpartition):
        with (
            SyncShuffleClient(endpoint, f"threads {kind}", timeout_seconds=30) as client,
            client.open_gate(locations, subpartition) as gate,
        ):
            return list(gate.records(StringSerializer()))

    with ThreadPoolExecutor(4) as threads:
        writing = [threads.submit(write, number) for number in range(2)]
        if kind.is_pipelined:
            opened.wait(30)
        else:
            for task in writing:
                task.result(30)
        parts = [task.result(30) for task in [threads.submit(read, number) for number in (0, 1)]]
        for task in writing:
            task.result(30)
    assert sorted(parts[0] + parts[1]) == sorted(WORDS * 2)
    assert not set(parts[0]) & set(parts[1])


def test_events_and_flushes(client):
    barrier = CheckpointBarrier(1, 2, False)
    events = []
    came = threading.Event()

    def task_event(kind, payload):
        events.append((kind, payload))
        came.set()

    with (
        client.open_result_partition(
            1, 1, 1, BytesSerializer(), buffer_timeout_seconds=-1, task_event=task_event
        ) as out,
        client.open_gate([out.location], 0) as gate,
    ):
        batches = gate.batches(BytesSerializer())
        out.emit(b"one")
        out.flush()
        assert next(batches) == ChannelRecords(0, [b"one"])
        gate.send_task_event(3, b"back")
        assert came.wait(30)
        assert events == [(3, b"back")]
        out.emit(b"two")
        out.emit_event(barrier, 0, BLOCKING_EVENT)
        out.emit(b"three")
        assert next(batches) == ChannelRecords(0, [b"two"])
        assert next(batches) == ChannelEvent(0, barrier)
        gate.resume_consumption(0)
        out.flush()
        assert next(batches) == ChannelRecords(0, [b"three"])
        out.finish()
        (end,) = batches
        assert isinstance(end, ChannelEvent)
        assert isinstance(end.event, EndOfPartition)


def test_an_error_in_the_context_fails_the_partition(client):
    class Broken(Exception):
        pass

    def write(error):
        with client.open_result_partition(1, 1, 1, BytesSerializer()) as out:
            locations.append(out.location)
            out.emit(b"one")
            raise error

    for error in (Broken(), KeyboardInterrupt(), SluiceError("typed")):
        locations: list[PartitionLocation] = []
        with pytest.raises(type(error)):
            write(error)
        with client.open_gate(locations, 0) as gate, pytest.raises(SluiceError) as caught:
            list(gate.records(BytesSerializer()))
        assert caught.value.code is ErrorCode.PRODUCER_FAILED


def test_back_pressure_has_a_deadline(endpoint):
    def write():
        with own.open_result_partition(1, 1, 1, BytesSerializer()) as out:
            while True:
                out.emit(bytes(10_000))

    with SyncShuffleClient(endpoint, "deadline", timeout_seconds=1.5) as own:
        with pytest.raises(DeadlineExceeded, match=r"emit.*1\.5 s"):
            write()
        with own.open_result_partition(1, 2, 1, BytesSerializer()) as out:
            out.emit(b"the client goes on")
            with own.open_gate([out.location], 0) as gate:
                out.flush()
                records = gate.records(BytesSerializer())
                assert next(records) == b"the client goes on"
                with pytest.raises(DeadlineExceeded, match="read"):
                    next(records)
                with pytest.raises(InvalidRequest, match="borrow"):
                    next(gate.batches(ViewSerializer()))
                out.finish()


@pytest.fixture
def interruptible():
    """Handle SIGINT as in the foreground: shells make background processes ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_wait_can_be_interrupted(client):
    with (
        client.open_result_partition(1, 1, 1, BytesSerializer()) as out,
        client.open_gate([out.location], 0) as gate,
    ):
        main = threading.main_thread().ident
        assert main is not None
        timer = threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            list(gate.records(BytesSerializer()))
        timer.join()
        out.emit(b"what it writes goes on")
        out.flush()
        assert next(gate.records(BytesSerializer())) == b"what it writes goes on"
        out.finish()


def test_misuse_of_the_sync_client_is_refused(endpoint):
    client = SyncShuffleClient(endpoint, "order", timeout_seconds=30)
    with pytest.raises(InvalidRequest, match="not open"), client.open_gate([], 0):
        pytest.fail("opened")
    with client:
        with pytest.raises(InvalidRequest), client.open_gate([], 0):
            pytest.fail("opened")

        async def on_the_loop():
            client.call(asyncio.sleep(0), "a call on the loop")

        with pytest.raises(InvalidRequest, match="own thread"):
            client.call(on_the_loop(), "outer")
        context = client.open_result_partition(1, 1, 1, BytesSerializer())
        out = context.__enter__()
    client.close()
    with pytest.raises(ConnectionLost, match="closed"):
        out.emit_batch([b"too late"])
    with pytest.raises(SluiceError):
        context.__exit__(None, None, None)


def test_a_failed_connect_ends_the_thread(tmp_path):

    config = ClientConfig(transport=TransportConfig(connect_timeout_seconds=0.1))
    before = threading.active_count()
    with (
        pytest.raises(ConnectFailed),
        SyncShuffleClient(f"unix:{tmp_path}/none", "app", config, timeout_seconds=10),
    ):
        pytest.fail("connected")
    assert threading.active_count() == before


def test_closing_a_loop_thread_cancels_its_coroutines():
    ended = threading.Event()

    async def work():
        try:
            await asyncio.sleep(60)  # until it is cancelled: the loop ends before
        finally:
            ended.set()

    thread = LoopThread("test")
    thread.start(10)
    with pytest.raises(DeadlineExceeded):
        thread.call(work(), 0.05, "work")
    assert ended.wait(10)
    thread.close(10)
    thread.close(10)
    with pytest.raises(ConnectionLost):
        thread.call(work(), 1, "work")
