"""Any use of a hybrid partition, with writes to the tiers that take any time.

The machine is that of pipelined partitions: every channel gets its bytes and events in order, and
in the end all memory is at home. Besides, a writer waits only for what is not complete or being
sent, no extent stays, and nothing stays charged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from hypothesis.stateful import invariant, rule

from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.shuffle.taskmanager.bounds.accounts import Resource
from sluice.shuffle.taskmanager.hybrid.hybrid_spiller import (
    HybridSpiller,
    SpillerState,
    SpillingWriter,
)
from sluice.shuffle.taskmanager.serve.stored_partition_view import ReadSizes
from tests.shuffle.taskmanager.hybrid.rig import FakeTiers
from tests.support.partition_machine import SIZE, PartitionMachine

if TYPE_CHECKING:
    from sluice.protocol.errors import SluiceError

KEY = ShuffleKey("app", 1)


class HybridMachine(PartitionMachine):
    kind = ResultPartitionType.HYBRID_SELECTIVE

    def make_partition(self, subpartitions, **options):
        self.errors: list[SluiceError] = []
        self.tiers = cast("Any", FakeTiers())  # not all of a store
        self.spiller = self.loop.run_until_complete(self.make_spiller())
        return super().make_partition(
            subpartitions, partition_type=self.kind, overflow=self.spiller, **options
        )

    async def make_spiller(self):
        return HybridSpiller(
            self.kind,
            self.pool,
            self.tiers,
            KEY,
            SpillingWriter(self.writer_waits, self.failed, self.errors.append),
        )

    def writer_waits(self):
        pool = self.pool
        return pool.is_destroyed or pool.waiting_listeners > 0 or pool.waiting_for_availability > 0

    def failed(self, error):
        self.errors.append(error)
        return False

    def create_view(self, index):
        view = super().create_view(index)
        view.read_back_by(ReadSizes(SIZE, SIZE, SIZE), None)
        return view

    def teardown(self):
        if not hasattr(self, "loop"):
            return
        self.tiers.may_write.set()
        for _, task in self.tasks:
            task.cancel()  # nobody waits any longer, so the spiller ends
        while self.is_spilling:
            self.settle()
        super().teardown()
        assert not self.errors
        assert not self.tiers.extents
        assert self.tiers.accounts.of("app").amount(Resource.METADATA_BYTES) == 0

    @property
    def is_spilling(self):
        return self.spiller.state in (SpillerState.DEFERRED, SpillerState.WRITING)

    def readable(self):
        """Also what is being written gives its memory back."""
        return self.is_spilling or super().readable()

    @rule()
    def hold_up_writes(self):
        self.tiers.may_write.clear()

    @rule()
    def write_on(self):
        """Then a writer waits only if no complete buffer is in memory that nobody has taken."""
        self.tiers.may_write.set()
        self.settle()
        self.settle()
        if self.is_open and self.writer_waits() and self.spiller.state is SpillerState.IDLE:
            assert all(not each._complete for each in self.partition.subpartitions)

    @invariant()
    def the_backlog_is_what_waits(self):
        for index, view in enumerate(self.views):
            if view is not None and view.failure is None and not self.blocked[index]:
                assert (view.backlog > 0) >= view.is_available(1) or not self.expected[index]
