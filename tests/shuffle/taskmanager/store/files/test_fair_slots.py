"""Requests of the event loop in fair turns: never too many, and nobody waits beside a free slot."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from sluice.shuffle.taskmanager.store.files.fair_slots import FairSlots
from sluice.transport.fair_queue import Flow

flows = st.builds(Flow, st.sampled_from(["a", "b"]), st.integers(0, 2))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), flows, st.integers(1, 50)),
        st.tuples(st.just("end"), st.integers(0, 20), st.none()),
        st.tuples(st.just("cancel"), st.integers(0, 20), st.none()),
        st.tuples(st.just("run"), st.none(), st.none()),
    ),
    max_size=40,
)


class Request:
    """A request that is under way until a test ends it."""

    def __init__(self, slots: FairSlots, flow: Flow, cost: int, began: list[Flow]) -> None:
        self.under_way = False
        self.may_end = asyncio.Event()
        self._parts = slots, flow, cost, began
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        slots, flow, cost, began = self._parts
        async with slots.turn(flow, cost):
            began.append(flow)
            self.under_way = True
            try:
                await self.may_end.wait()
            finally:
                self.under_way = False


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@given(count=st.integers(1, 3), steps=steps)
def test_slots_are_full_while_anyone_waits_and_all_come_back(count, steps):
    async def work() -> None:
        slots = FairSlots(count)
        requests: list[Request] = []
        for kind, what, cost in steps:
            requests = [each for each in requests if not each.task.done()]
            if kind == "begin":
                requests.append(Request(slots, what, cost, []))
            elif kind == "run":
                await turns()
            elif what < len(requests):
                if kind == "end":
                    requests[what].may_end.set()
                else:
                    requests[what].task.cancel()
            under_way = sum(each.under_way for each in requests)
            assert under_way <= count
        await turns()
        requests = [each for each in requests if not each.task.done()]
        assert sum(each.under_way for each in requests) == min(count, len(requests))
        assert slots.waiting == max(len(requests) - count, 0)
        for each in requests:
            each.task.cancel()
        await asyncio.gather(*(each.task for each in requests), return_exceptions=True)
        assert slots._free == count
        assert slots.waiting == 0

    asyncio.run(work())


async def test_an_application_with_many_requests_gets_no_more_turns_than_one_with_few():
    slots, began = FairSlots(1), list[Flow]()
    many = [Request(slots, Flow("many", number), 10, began) for number in range(20)]
    await turns()
    few = [Request(slots, Flow("few", 0), 10, began) for _ in range(5)]
    requests = [*many, *few]
    while any(not each.task.done() for each in requests):
        for each in requests:
            if each.under_way:
                each.may_end.set()
        await turns()
    assert [flow.application_id for flow in began[1:11]].count("few") == 5
