"""Slots that owners share: none waits for another one, and none is lost."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from sluice.shuffle.taskmanager.bounds.owner_slots import OwnerSlots
from tests.support.peers import turns


def taking(slots: OwnerSlots, *owners: str) -> list[asyncio.Task[None]]:
    return [asyncio.ensure_future(slots.take(each)) for each in owners]


def done(tasks: list[asyncio.Task[None]]) -> list[bool]:
    return [task.done() for task in tasks]


async def test_an_owner_always_has_one_slot():
    slots = OwnerSlots(2, 2)
    greedy = taking(slots, "a", "a", "a")
    await turns()
    assert done(greedy) == [True, True, False]
    others = taking(slots, "b", "b", "c")
    await turns()
    assert done(others) == [True, False, True]
    assert (slots.held, slots.held_by("a"), slots.held_by("b")) == (4, 2, 1)
    for task in (greedy[2], others[1]):
        task.cancel()


async def test_the_owner_with_the_fewest_slots_is_next():
    slots = OwnerSlots(3, 3)
    taking(slots, "a", "a", "a", "b")
    await turns()
    a, b, again = taking(slots, "a", "b", "a")
    slots.release("a")
    await turns()
    assert done([a, b, again]) == [False, False, False]  # four were held, and three are the most
    slots.release("a")
    await turns()
    assert done([a, b, again]) in ([True, False, False], [False, True, False])
    slots.release("a" if a.done() else "b")
    await turns()
    assert done([a, b, again])[:2] == [True, True]
    again.cancel()


async def test_an_owner_has_a_maximum():
    slots = OwnerSlots(100, 2)
    tasks = taking(slots, *"aaa")
    await turns()
    assert done(tasks) == [True, True, False]
    slots.release("a")
    await turns()
    assert done(tasks) == [True, True, True]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["take", "give", "cancel"]))))
def test_no_slot_is_lost_or_given_twice(steps):
    async def run() -> None:
        slots = OwnerSlots(3, 2)
        tasks: dict[str, list[asyncio.Task[None]]] = {name: [] for name in "abc"}
        for name, step in steps:
            mine = tasks[name]
            if step == "take":
                mine += taking(slots, name)
            elif step == "cancel" and mine:
                mine.pop().cancel()  # and its slot, if it has one, is returned below
                if slots.held_by(name) > sum(done(mine)):
                    slots.release(name)
            elif step == "give" and any(done(mine)):
                mine.pop(done(mine).index(True))
                slots.release(name)
            await turns()
            for each, its in tasks.items():
                assert slots.held_by(each) == sum(done(its))
                assert bool(its) == (slots.held_by(each) > 0)
            if slots.held < 3:
                assert all(slots.held_by(each) in (2, len(its)) for each, its in tasks.items())
        for its in tasks.values():
            for task in its:
                task.cancel()
            await asyncio.gather(*its, return_exceptions=True)

    asyncio.run(run())
