"""Shares of the turns of an event loop: bounded, carried over, given back and never lost."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.transport.fair_queue import OWN_FLOW, Flow
from sluice.transport.loop_share import READS_A_TURN_BYTES, LoopShares, LoopTurns, TurnShare
from tests.support.peers import turns

A_TURN = 100
TENANT, OTHER = (f"@{letter * 8}{'c' * 16}" for letter in "bd")
"""Namespaces of applications of two subjects."""


@pytest.fixture
async def loop_turns() -> LoopTurns:
    return LoopTurns()


async def test_those_who_wait_go_on_in_their_order_and_as_far_as_the_share_goes(loop_turns):
    share = TurnShare(loop_turns, A_TURN)
    share.spend(A_TURN)
    went_on: list[int] = []

    def work(number: int) -> None:
        went_on.append(number)
        share.spend(A_TURN // 2)

    for number in range(5):
        share.wait(partial(work, number), OWN_FLOW)
    for expected in ([0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4]):
        await turns(1)
        assert went_on == expected


async def test_an_idle_loop_does_not_repay_many_turns_taken_in_advance(loop_turns):
    """Its turns are much shorter: they are repaid in time."""
    share = TurnShare(loop_turns, A_TURN)
    share.spend(1_000_000 * A_TURN)
    share.wait(lambda: None, OWN_FLOW)
    await turns(3)
    before = loop_turns.number
    await turns(100)
    assert loop_turns.number == before


async def test_work_is_repaid_in_the_same_time_beside_another_tenant(loop_turns, monkeypatch):
    """The turns are shorter then, and the work took no longer."""
    delays: list[float] = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "call_later", lambda delay, *_: delays.append(delay))
    mine, other = (TurnShare(loop_turns, A_TURN, tenant) for tenant in ("mine", "other"))
    for share in (mine, other):
        share.spend(100 * A_TURN)
        share.wait(lambda: None, OWN_FLOW)
    assert loop_turns.contended
    assert delays[0] > 0
    assert delays[1] == pytest.approx(delays[0], rel=0.02)


async def test_a_tenant_that_connects_anew_is_not_another_one():
    shares = LoopShares()
    flow, other = Flow("app", 1), Flow("other", 2)
    shares.join(flow).reads.spend(1)
    shares.leave(flow)
    mine = shares.join(flow).reads
    for in_between, allowed in ((flow, True), (other, False)):
        shares.join(in_between).reads.spend(1)
        mine.spend(1)
        await turns(1)
        assert mine.spend(READS_A_TURN_BYTES // 2) is allowed


async def test_turns_taken_during_a_repayment_are_repaid_too(loop_turns):
    twice, once = TurnShare(loop_turns, A_TURN), TurnShare(loop_turns, A_TURN)
    resumed: asyncio.Queue[str] = asyncio.Queue()
    twice.spend(200 * A_TURN)
    twice.wait(partial(resumed.put_nowait, "twice"), OWN_FLOW)
    twice.spend(200 * A_TURN)
    once.spend(300 * A_TURN)
    once.wait(partial(resumed.put_nowait, "once"), OWN_FLOW)
    assert [await resumed.get(), await resumed.get()] == ["once", "twice"]


async def test_no_share_waits_for_another(loop_turns):
    greedy, innocent = TurnShare(loop_turns, A_TURN), TurnShare(loop_turns, A_TURN)
    greedy.spend(1000 * A_TURN)
    greedy.wait(lambda: None, OWN_FLOW)
    for _ in range(5):
        assert innocent.spend(A_TURN - 1)
        await turns(1)


@given(st.lists(st.integers(0, 5 * A_TURN), min_size=1, max_size=50))
def test_over_many_turns_no_more_is_done_than_they_are_worth_and_one_piece(costs):
    """And no less, as long as there is work."""

    async def work() -> None:
        clock = LoopTurns()
        share = TurnShare(clock, A_TURN)
        pending, done = costs[::-1], 0

        def go_on() -> None:
            nonlocal done
            while pending and share.spend(0):
                done += pending[-1]
                share.spend(pending.pop())
            assert done <= (clock.number + 1) * A_TURN + max(costs)
            if pending:
                assert done >= (clock.number + 1) * A_TURN
                share.wait(go_on, OWN_FLOW)

        go_on()
        await turns(sum(costs) // A_TURN + 2)
        assert not pending

    asyncio.run(work())


def test_an_application_has_its_share_until_its_last_connection_leaves():
    shares = LoopShares()
    first = shares.join(Flow("app", 1))
    assert shares.join(Flow("app", 2)) is first
    assert shares.join(Flow("other", 3)) is not first
    shares.leave(Flow("app", 1))
    assert shares.join(Flow("app", 4)) is first
    for connection in (2, 4, 4, 1):
        shares.leave(Flow("app", connection))
    assert len(shares) == 1
    assert shares.join(Flow("app", 5)) is not first


def test_applications_of_a_tenant_have_one_share_together():
    shares = LoopShares()
    mine = shares.join(Flow(f"app-0{TENANT}", 0))
    for number in range(1, 64):
        assert shares.join(Flow(f"app-{number}{TENANT}", number)) is mine
    assert shares.join(Flow(f"app-0{OTHER}", 64)) is not mine
    for number in range(64):
        shares.leave(Flow(f"app-{number}{TENANT}", number))
    assert len(shares) == 1


async def test_applications_of_a_tenant_resume_in_turn_however_many_wait_for_one(loop_turns):
    share = TurnShare(loop_turns, A_TURN)
    share.spend(A_TURN)
    went_on: list[str] = []

    def work(name: str) -> None:
        went_on.append(name)
        share.spend(A_TURN)

    for number in range(9):
        share.wait(partial(work, "many"), Flow(f"many{TENANT}", number))
    share.wait(partial(work, "few"), Flow(f"few{TENANT}", 9))
    await turns(3)
    assert went_on[:2] in (["many", "few"], ["few", "many"])
