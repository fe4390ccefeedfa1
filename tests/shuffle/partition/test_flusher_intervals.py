"""When the flusher runs, and when it finishes the buffers whose bytes were all read."""

from __future__ import annotations

from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.partition.output_flusher import IDLE_INTERVALS, OutputFlusher
from sluice.shuffle.partition.pipelined_result_partition import PipelinedResultPartition
from tests.support.mini_cluster import eventually


class Idle:
    """A partition with an open buffer and nothing to flush, but for the intervals in ``busy``."""

    def __init__(self, busy: set[int]) -> None:
        self.flushed = 0
        self.finished_after = 0
        self._busy = busy

    def flush_open(self) -> int:
        self.flushed += 1
        return int(self.flushed in self._busy)

    def finish_read_buffers(self) -> None:
        self.finished_after = self.flushed

    @property
    def has_open_buffers(self) -> bool:
        return not self.finished_after


async def test_read_buffers_are_finished_after_as_many_idle_intervals_as_are_said():
    flusher = OutputFlusher(0.0005)
    never_busy, once_busy = Idle(set()), Idle({4})
    for partition in (never_busy, once_busy):
        flusher.arm(partition)
    await eventually(lambda: not flusher.is_running)
    assert never_busy.finished_after == IDLE_INTERVALS
    assert once_busy.finished_after == 4 + IDLE_INTERVALS


async def test_no_timer_runs_for_a_buffer_that_is_complete_when_it_is_added():
    flusher = OutputFlusher(3600)
    network = NetworkBufferPool(4, 64)
    pool = network.create_local_pool("partition", 1, 4)
    partition = PipelinedResultPartition("test", 1, pool, flusher=flusher)
    for is_complete in (True, False):
        builder = partition.request_builder(0)
        assert builder is not None
        builder.append_and_commit(b"record")
        consumer = builder.create_consumer()
        if is_complete:
            builder.finish()
        partition.add_consumer(consumer, 0)
        assert flusher.is_running is not is_complete
    partition.release()
    flusher.close()
    assert not flusher.is_running
    assert network.available_segments == 4
