"""The pools under any sequence of calls: no segment is lost, doubled or withheld."""

import asyncio
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluice.shuffle.memory import (
    InsufficientNetworkBuffers,
    LocalBufferPool,
    NetworkBufferPool,
    NetworkBufferTimeout,
    PoolDestroyed,
)
from tests.support.network_memory import conserved

TIMEOUT_SECONDS = 60


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Time passes only when the machine says so."""

    now = 0.0

    def time(self):
        return self.now

    def settle(self):
        """Run until every task has seen all that happened so far."""
        for _ in range(4):
            self.run_until_complete(asyncio.sleep(0))


class Listener:
    """Keeps, declines, gives back at once, takes a second, or queues again; counts its calls."""

    def __init__(self, machine, pool, behaviour):
        self.machine = machine
        self.pool = pool
        self.behaviour = behaviour
        self.calls = 0
        self.handle = pool.add_listener(self)

    def __call__(self, segment):
        try:
            return self.use(segment)
        except AssertionError as error:  # the pool would log it and go on
            self.machine.failures.append(error)
            raise

    def use(self, segment):
        self.calls += 1
        machine, pool = self.machine, self.pool
        if segment is None:
            assert pool.is_destroyed
            return False
        # Nobody may take a segment past those who still wait, not even by overdraft.
        if pool.waiting_listeners:
            assert pool.request_segment_nowait() is None
        if self.behaviour == "decline":
            return False
        if self.behaviour == "recycle":
            pool.recycle(segment)
            return True
        if self.behaviour == "fail":
            raise RuntimeError("a listener's own trouble")
        if self.behaviour == "greedy" and (more := pool.request_segment_nowait()) is not None:
            machine.lent.append((pool, more))
        if self.behaviour == "again":
            machine.listeners.append(Listener(machine, pool, "keep"))
        machine.lent.append((pool, segment))
        if self.behaviour == "destroy":
            machine.forget(pool)
        return True


class PoolMachine(RuleBasedStateMachine):
    @initialize(total=st.integers(1, 14))
    def start(self, total):
        self.loop = VirtualTimeLoop()
        self.network = NetworkBufferPool(total, 1)
        self.pools: list[LocalBufferPool] = []
        self.lent: list = []  # (pool, segment) in the hands of the test
        self.exclusive: list = []
        self.listeners: list = []
        self.tasks: list = []  # (pool or None, task) that bring segments
        self.watchers: list = []  # (pool, task) that wait for the pool to be available
        self.expired = 0
        self.failures: list = []  # errors that listeners found

    def teardown(self):
        if not hasattr(self, "loop"):
            return
        for _, task in self.tasks + self.watchers:
            task.cancel()
        self.collect()
        assert self.watchers == []
        for pool in list(self.pools):
            self.forget(pool)
        for pool, segment in self.lent:
            pool.recycle(segment)
        self.network.recycle_segments(self.exclusive)
        try:
            assert self.network.available_segments == self.network.total_segments
            assert not self.network.draining_pools
            assert (self.network.waiting_requests, self.network.reserved_segments) == (0, 0)
            # All pools are destroyed: each listener was called once, or was cancelled.
            assert all(listener.calls <= 1 for listener in self.listeners)
            assert not any(listener.handle.is_waiting for listener in self.listeners)
            self.network.destroy()
        finally:
            self.loop.close()

    def forget(self, pool):
        if pool in self.pools:
            self.pools.remove(pool)
        pool.destroy()

    def collect(self):
        """Let the tasks run, and take their segments over."""
        self.loop.settle()
        waiting = []
        for pool, task in self.tasks:
            if not task.done():
                waiting.append((pool, task))
            elif not task.cancelled():
                error = task.exception()
                if error is None and pool is None:
                    self.exclusive += task.result()
                elif error is None:
                    self.lent.append((pool, task.result()))
                else:
                    assert isinstance(error, NetworkBufferTimeout | PoolDestroyed)
                    self.expired += pool is None and isinstance(error, NetworkBufferTimeout)
        self.tasks = waiting
        for pool, task in self.watchers:
            if task.done() and not task.cancelled() and task.exception() is not None:
                assert isinstance(task.exception(), PoolDestroyed)
                assert pool.is_destroyed
        self.watchers = [(pool, task) for pool, task in self.watchers if not task.done()]

    # ---- rules

    @rule(
        required=st.integers(0, 4),
        extra=st.none() | st.integers(1, 6),
        overdraft=st.sampled_from([0, 0, 1, 5]),
        per_channel=st.none() | st.integers(1, 3),
    )
    def create_pool(self, required, extra, overdraft, per_channel):
        unpromised = self.network.unpromised_segments
        maximum = None if extra is None else required + extra - (1 if required else 0)
        if required > unpromised:
            with pytest.raises(InsufficientNetworkBuffers) as caught:
                self.network.create_local_pool("p", required, maximum)
            assert (caught.value.required, caught.value.available) == (required, unpromised)
        else:
            self.pools.append(
                self.network.create_local_pool(
                    "p",
                    required,
                    maximum,
                    max_overdraft_buffers=overdraft,
                    max_buffers_per_channel=per_channel,
                )
            )

    @precondition(lambda self: self.pools)
    @rule(data=st.data())
    def destroy_pool(self, data):
        self.forget(data.draw(st.sampled_from(self.pools)))

    @precondition(lambda self: self.pools)
    @rule(data=st.data(), channel=st.integers(-1, 2), count=st.sampled_from([1, 2, 5, 20]))
    def take(self, data, channel, count):
        pool = data.draw(st.sampled_from(self.pools))
        for _ in range(count):
            self.take_one(pool, channel)

    def take_one(self, pool, channel):
        available = pool.is_available
        full = pool.channels.full_channels
        overdrafts, over = pool.overdrafts, pool.overdraft_segments
        segment = pool.request_segment_nowait(channel)
        if available:
            assert segment is not None
            assert (pool.overdrafts, pool.overdraft_segments) == (overdrafts, 0)
        if segment is not None:
            self.lent.append((pool, segment))
            if not available and not full:  # beyond the limit
                assert (pool.overdrafts, pool.overdraft_segments) == (overdrafts + 1, over + 1)
                assert pool.overdraft_segments <= pool.bounds.max_overdraft_buffers
                assert not pool.is_available

    @precondition(lambda self: self.lent)
    @rule(data=st.data())
    def give_back(self, data):
        pool, segment = self.lent.pop(data.draw(st.integers(0, len(self.lent) - 1)))
        over, held, limit = pool.overdraft_segments, pool.held_segments, pool.size_segments
        pool.recycle(segment)
        # The surplus goes back first. The pool may draw it again if its limit rises at once: a
        # request that was cancelled in this turn of the loop is withdrawn then.
        if over:
            is_drawn_again = limit < pool.size_segments and pool.held_segments <= pool.size_segments
            assert pool.held_segments < held or is_drawn_again

    @precondition(lambda self: self.lent)
    @rule(data=st.data())
    def give_several_back(self, data):
        pool = data.draw(st.sampled_from(self.lent))[0]
        mine = [entry for entry in self.lent if entry[0] is pool]
        some = data.draw(st.lists(st.sampled_from(mine), unique_by=id, min_size=1))
        self.lent = [entry for entry in self.lent if not any(entry is one for one in some)]
        pool.recycle_together([segment for _, segment in some])

    @precondition(lambda self: self.pools)
    @rule(
        data=st.data(),
        behaviour=st.sampled_from(
            ["keep", "keep", "decline", "recycle", "fail", "greedy", "again", "destroy"]
        ),
    )
    def listen(self, data, behaviour):
        pool = data.draw(st.sampled_from(self.pools))
        self.listeners.append(Listener(self, pool, behaviour))

    @precondition(lambda self: self.listeners)
    @rule(data=st.data())
    def cancel_listener(self, data):
        listener = data.draw(st.sampled_from(self.listeners))
        calls = listener.calls
        listener.handle.cancel()
        assert not listener.handle.is_waiting
        assert listener.calls == calls

    @precondition(lambda self: self.exclusive)
    @rule(data=st.data())
    def give_exclusive_back(self, data):
        count = data.draw(st.integers(1, len(self.exclusive)))
        back, self.exclusive = self.exclusive[:count], self.exclusive[count:]
        self.network.recycle_segments(back)

    @rule(count=st.integers(0, 6))
    def wait_exclusive(self, count):
        if count <= self.network.total_segments:
            request = self.network.request_segments_within(count, TIMEOUT_SECONDS)
            self.tasks.append((None, self.loop.create_task(request)))

    @precondition(lambda self: self.pools)
    @rule(data=st.data())
    def wait_local(self, data):
        pool = data.draw(st.sampled_from(self.pools))
        request = pool.request_segment(TIMEOUT_SECONDS, data.draw(st.integers(-1, 2)))
        self.tasks.append((pool, self.loop.create_task(request)))

    @precondition(lambda self: self.pools)
    @rule(data=st.data(), drain=st.booleans())
    def wait_available(self, data, drain):
        pool = data.draw(st.sampled_from(self.pools))
        while drain and pool.is_available:
            self.take_one(pool, data.draw(st.integers(-1, 2)))

        async def watch():
            await pool.wait_available()
            assert pool.is_available  # in the turn in which it returns

        self.watchers.append((pool, self.loop.create_task(watch())))
        self.collect()

    @precondition(lambda self: self.tasks or self.watchers)
    @rule(data=st.data())
    def cancel_task(self, data):
        data.draw(st.sampled_from(self.tasks + self.watchers))[1].cancel()

    @rule(seconds=st.sampled_from([0.0, 0.0, 4.0, 11.0]))
    def run(self, seconds):
        self.loop.now += seconds
        self.collect()
        assert self.network.expired_requests == self.expired
        assert not any(pool.is_available or pool.is_destroyed for pool, _ in self.watchers)

    # ---- invariants

    @invariant()
    def segments_are_conserved(self):
        seen = conserved(self.network)
        assert min(seen.available_segments, seen.exclusive_segments) >= 0
        assert all(pool.idle_segments >= 0 for pool in self.pools)
        in_hand = [segment.index for _, segment in self.lent]
        in_hand += [segment.index for segment in self.exclusive]
        assert not in_hand or max(Counter(in_hand).values()) == 1
        # The other segments that are out belong to tasks that have not run yet.
        assert len(in_hand) <= seen.lent_segments
        if not self.tasks:
            assert len(in_hand) == seen.lent_segments

    @invariant()
    def promises_can_be_kept(self):
        seen = self.network
        assert seen.reserved_segments + seen.required_segments <= seen.total_segments
        assert seen.exclusive_segments <= seen.reserved_segments

    @invariant()
    def limits_are_even(self):
        shares = [pool.size_segments - pool.bounds.required_segments for pool in self.pools]
        spare = self.network.unpromised_segments
        assert sum(shares) == min(spare, sum(pool.room for pool in self.pools))
        growing = [s for s, pool in zip(shares, self.pools, strict=True) if s < pool.room]
        assert not growing or max(shares) - min(growing) <= 1

    @invariant()
    def nobody_waits_for_what_is_there(self):
        collecting = self.network.waiting_requests > 0
        for pool in self.pools:
            assert not (pool.waiting_for_availability and pool.is_available)
            if pool.waiting_listeners:
                assert pool.idle_segments == 0
                at_limit = pool.held_segments >= pool.size_segments
                assert at_limit or self.network.available_segments == 0 or collecting

    @invariant()
    def channels_have_what_was_lent_to_them(self):
        tasks = {pool for pool, _ in self.tasks}  # their charges are not in self.lent yet
        for pool in {*self.pools, *(pool for pool, _ in self.lent)} - tasks:
            most = pool.bounds.max_buffers_per_channel
            counts = Counter(segment.holder for mine, segment in self.lent if mine is pool)
            assert pool.lent_segments == counts.total()
            del counts[pool]
            if most is None:
                assert not counts
            else:
                assert all(account.lent == count for account, count in counts.items())
                assert pool.channels.full_channels == sum(n >= most for n in counts.values())
                assert not (pool.channels.full_channels and pool.is_available)

    @invariant()
    def demand_is_counted(self):
        seen = self.network
        pools = sum(pool.bounds.wanted_segments for pool in self.pools)
        demand = self.network.demand
        assert demand.wanted_segments >= pools + seen.reserved_segments
        if not seen.waiting_requests:
            assert demand.wanted_segments == pools + seen.exclusive_segments

    @invariant()
    def listeners_are_called_at_most_once(self):
        assert self.failures == []
        for listener in self.listeners:
            assert listener.calls <= 1
            assert not (listener.calls and listener.handle.is_waiting)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,  # the machine is shared: time per example says nothing
    suppress_health_check=[HealthCheck.too_slow],
)
