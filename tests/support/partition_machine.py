"""Any use of a pipelined partition, by writers that wait and readers that keep what they get."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluice.protocol.errors import SluiceError
from sluice.protocol.schema import BLOCKING_EVENT, DATA, EVENT
from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.partition.partition_states import PartitionState
from sluice.shuffle.partition.pipelined_result_partition import (
    PartitionListeners,
    PipelinedResultPartition,
)
from sluice.shuffle.partition.result_partition_writer import ALL_SUBPARTITIONS
from tests.support.network_memory import conserved

SIZE = 8

SELDOM = st.integers(0, 4).map(lambda number: number == 3)
"""Makes an end rare: hypothesis would choose it early, and learn nothing afterwards."""


class PartitionMachine(RuleBasedStateMachine):
    @initialize(subpartitions=st.integers(1, 3), segments=st.integers(1, 5), late=st.integers(0, 3))
    def start(self, subpartitions, segments, late):
        self.loop = asyncio.new_event_loop()
        self.count = subpartitions
        self.network = NetworkBufferPool(segments, SIZE)
        self.pool = self.network.create_local_pool("partition", 1, None, max_buffers_per_channel=2)
        self.consumed = 0
        self.partition = self.make_partition(subpartitions)
        self.views: list[Any] = [None] * subpartitions
        self.left = [False] * subpartitions
        self.blocked = [False] * subpartitions
        # The expected content of each channel: bytes of data, and events as (payload, type).
        self.expected: list[list[Any]] = [[] for _ in range(subpartitions)]
        self.open: dict[int, Any] = {}
        self.tasks: list = []
        self.taken: list = []
        self.number = 0
        for _ in range(subpartitions if late else 0):
            self.view()

    def teardown(self):
        if not hasattr(self, "loop"):
            return
        try:
            for _, task in self.tasks:
                task.cancel()
            self.settle()
            self.partition.release()
            for builder in self.open.values():
                builder.finish()  # the writer's part, where a reader had left before
            for buffer in self.taken:
                buffer.release()
            for view in self.views:
                if view is not None:
                    view.release()
            assert self.network.available_segments == self.network.total_segments
            assert not self.network.draining_pools
            assert self.consumed == self.is_consumed()
            self.network.destroy()
        finally:
            self.loop.close()

    def make_partition(self, subpartitions, **options):
        return PipelinedResultPartition(
            "test",
            subpartitions,
            self.pool,
            listeners=PartitionListeners(fully_consumed=self.count_consumed),
            **options,
        )

    def create_view(self, index):
        return self.partition.create_view(index, lambda: None)

    def is_consumed(self):
        """Tell whether the partition should have been consumed (all views are released)."""
        return all(self.views)

    def count_consumed(self):
        self.consumed += 1

    def settle(self):
        for _ in range(4):
            self.loop.run_until_complete(asyncio.sleep(0))
        waiting = []
        for subpartition, task in self.tasks:
            if not task.done():
                waiting.append((subpartition, task))
            elif not task.cancelled() and task.exception() is None:
                self.use(task.result(), subpartition)
            elif not task.cancelled():
                assert isinstance(task.exception(), SluiceError)
                assert self.partition.state is not PartitionState.OPEN
        self.tasks = waiting

    @property
    def is_open(self):
        return self.partition.state is PartitionState.OPEN

    def targets(self, subpartition):
        return range(self.count) if subpartition == ALL_SUBPARTITIONS else (subpartition,)

    def use(self, builder, subpartition):
        """Put some bytes into the builder that a writer has got."""
        if not self.is_open:
            builder.recycle()
            return
        self.partition.add_consumer(builder.create_consumer(), subpartition)
        self.open[subpartition] = builder
        self.write_to(subpartition)

    def write_to(self, subpartition):
        self.number += 1
        content = b"%d," % self.number
        builder = self.open[subpartition]
        content = content[: builder.append_and_commit(content)]
        if not content:  # the buffer was full
            return
        for target in self.targets(subpartition):
            self.expect(target, content)

    def expect(self, subpartition, item):
        """Note bytes or an event of a channel."""
        add_to(self.expected[subpartition], item)

    # ---- rules

    def any_subpartition(self, data):
        return data.draw(st.integers(-1, self.count - 1))

    @precondition(lambda self: self.is_open)
    @rule(data=st.data())
    def request(self, data):
        subpartition = self.any_subpartition(data)
        builder = self.partition.request_builder(subpartition)
        if builder is not None:
            self.use(builder, subpartition)

    @precondition(lambda self: self.is_open)
    @rule(data=st.data())
    def wait(self, data):
        subpartition = self.any_subpartition(data)
        waiting = self.partition.wait_for_builder(subpartition)
        self.tasks.append((subpartition, self.loop.create_task(waiting)))

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def cancel(self, data):
        data.draw(st.sampled_from(self.tasks))[1].cancel()

    @rule()
    def run(self):
        self.settle()

    @precondition(lambda self: any(not each.is_finished for each in self.open.values()))
    @rule(data=st.data(), finish=st.booleans())
    def write(self, data, finish):
        unfinished = [key for key, builder in self.open.items() if not builder.is_finished]
        subpartition = data.draw(st.sampled_from(sorted(unfinished)))
        self.write_to(subpartition)
        if finish:
            self.open[subpartition].finish()

    @precondition(lambda self: self.is_open and self.number > 3)
    @rule(data=st.data(), data_type=st.sampled_from([EVENT, BLOCKING_EVENT]))
    def event(self, data, data_type):
        subpartition = self.any_subpartition(data)
        self.number += 1
        payload = b"event %d" % self.number
        self.partition.emit_event(payload, data_type, subpartition)
        for target in self.targets(subpartition):
            self.expect(target, (payload, data_type))

    @rule()
    def flush(self):
        self.partition.flush_all()

    @precondition(lambda self: None in self.views)
    @rule()
    def view(self):
        index = self.views.index(None)
        try:
            self.views[index] = self.create_view(index)
        except SluiceError:
            assert self.partition.state in (PartitionState.FAILED, PartitionState.RELEASED)

    @precondition(lambda self: any(self.views))
    @rule(data=st.data(), credit=st.integers(0, 2), keep=st.booleans())
    def read(self, data, credit, keep):
        index = data.draw(st.sampled_from([i for i in range(self.count) if self.views[i]]))
        self.read_one(index, credit, keep)

    @precondition(lambda self: any(self.views))
    @rule(keep=st.booleans())
    def flush_and_read_all(self, keep):
        self.partition.flush_all()
        for index in range(self.count):
            if self.views[index]:
                self.read_one(index, 1, keep)

    def read_one(self, index, credit, keep):
        view = self.views[index]
        if view.failure is not None:
            return
        buffer = view.next_buffer(credit)
        if buffer is None:
            return
        assert not self.blocked[index]
        self.check(buffer, self.expected[index])
        self.blocked[index] = buffer.data_type == BLOCKING_EVENT
        if buffer.release is None:
            return
        if keep:
            self.taken.append(buffer)
        else:
            buffer.release()

    def check(self, buffer, channel):
        """Compare a buffer or event with what a channel expects next."""
        if buffer.data_type != DATA:
            if channel:
                assert channel.pop(0) == (buffer.payload, buffer.data_type)
            else:
                assert self.partition.state is PartitionState.FINISHED  # the end
            return
        content = bytes(buffer.payload)
        assert content
        assert channel[0].startswith(content)
        channel[0] = channel[0][len(content) :]
        if not channel[0]:
            channel.pop(0)

    @precondition(lambda self: any(self.blocked))
    @rule()
    def resume(self):
        index = self.blocked.index(True)
        self.views[index].resume_consumption()
        self.blocked[index] = False

    @precondition(lambda self: self.taken)
    @rule()
    def give_back(self):
        self.taken.pop(0).release()

    @precondition(lambda self: any(self.views) and self.number > 10)
    @rule(data=st.data(), really=SELDOM)
    def leave(self, data, really):
        if not really:
            return
        index = data.draw(st.sampled_from([i for i in range(self.count) if self.views[i]]))
        self.views[index].release()
        self.left[index] = True
        self.blocked[index] = False

    @precondition(lambda self: self.number > 10)
    @rule(how=st.sampled_from(["finish", "fail", "release"]), really=SELDOM)
    def end(self, how, really):
        if not really:
            return
        if how == "finish":
            if self.is_open:
                self.loop.run_until_complete(self.partition.finish())
        elif how == "fail":
            self.partition.fail(SluiceError("failed"))
        else:
            self.partition.release()
            self.blocked = [False] * self.count

    # ---- what holds after every step

    @invariant()
    def memory_is_conserved(self):
        conserved(self.network)

    @invariant()
    def no_writer_waits_for_memory_that_only_it_could_free(self):
        """A writer that waits has left no open buffer of a pool that is too small for them all."""
        everybody_waits = self.tasks and self.pool.waiting_listeners == len(self.tasks)
        if self.is_open and everybody_waits and self.pool.size_segments <= self.count:
            assert self.taken or self.readable() or self.open_builders()

    def readable(self):
        """Tell whether data waits: for a reader to take it, to come, or to resume."""
        return any(
            view is None or self.blocked[i] or view.backlog for i, view in enumerate(self.views)
        )

    def open_builders(self):
        """Return the builders taken after the wait had begun."""
        return [builder for builder in self.open.values() if not builder.is_finished]


def add_to(channel, item):
    """Add bytes or an event to what a channel expects; bytes may come in any pieces."""
    if isinstance(item, bytes) and channel and isinstance(channel[-1], bytes):
        channel[-1] += item
    else:
        channel.append(item)
