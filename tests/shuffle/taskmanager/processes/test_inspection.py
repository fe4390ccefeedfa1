"""A page of a shuffle from several data processes, with objects that stand in for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sluice.protocol.errors import SluiceError
from sluice.protocol.identity import NAMESPACE_LETTERS
from sluice.shuffle.taskmanager.metrics.published_snapshot import DataLoopSilent
from sluice.shuffle.taskmanager.process.control import Answer
from sluice.shuffle.taskmanager.processes.data_process import DataProcessEnded
from sluice.shuffle.taskmanager.processes.inspection import inspect
from sluice.shuffle.taskmanager.status.status import TaskManagerStatus
from sluice.shuffle.taskmanager.store.shuffle_page import (
    OutputDetail,
    ShufflePage,
    ShuffleQuery,
    UnknownShuffle,
)

QUERY = ShuffleQuery("app", 1)
ONE, OTHER = (f"app@{letter * NAMESPACE_LETTERS}" for letter in "ab")


class Process:
    """A data process that answers with a page, with names of applications, or not at all."""

    def __init__(self, index, found, *, ready=True) -> None:
        self.index = index
        self.ready = asyncio.Event()
        if ready:
            self.ready.set()
        self._found = found

    async def ask(self, request, seconds):
        assert request.shuffle == (*QUERY,)
        if isinstance(self._found, Exception):
            raise self._found
        return Answer.of(request, TaskManagerStatus(), page=self._found)


def page(application, attempt) -> ShufflePage:
    return ShufflePage(application, 1, 1, 10, (OutputDetail(attempt),), None)


async def asked(*found):
    processes: list[Any] = [Process(*each) for each in enumerate(found)]
    return await inspect(processes, QUERY, 1.0)


async def test_the_pages_of_all_processes_are_one():
    whole = await asked(page(ONE, 2), page(ONE, 1), ())
    assert [each.map_attempt_id for each in whole.outputs] == [1, 2]
    assert (whole.application_id, whole.map_outputs) == (ONE, 2)


@pytest.mark.parametrize("other", [page("app", 1), ()])
async def test_a_silent_process_is_told_and_not_left_out(other):
    with pytest.raises(DataLoopSilent, match="data process 1 has not answered for 1"):
        await asked(other, TimeoutError())


@pytest.mark.parametrize("error", [DataProcessEnded("It has ended"), SluiceError("It failed")])
async def test_a_process_that_fails_is_told(error):
    with pytest.raises(SluiceError) as raised:
        await asked(page("app", 1), error)
    assert raised.value is error


async def test_a_process_that_starts_again_is_left_out():
    processes: list[Any] = [Process(0, page("app", 1)), Process(1, TimeoutError(), ready=False)]
    assert (await inspect(processes, QUERY, 1.0)).map_outputs == 1
    with pytest.raises(DataLoopSilent):
        await inspect(processes[1:], QUERY, 1.0)


async def test_an_application_that_no_process_knows():
    with pytest.raises(UnknownShuffle, match="No application of this name"):
        await asked((), ())


@pytest.mark.parametrize(
    "found",
    [
        ((ONE, OTHER), ()),
        ((ONE, OTHER), page(ONE, 1)),
        (page(ONE, 1), page(OTHER, 2)),
    ],
)
async def test_several_applications_of_a_name_are_named(found):
    with pytest.raises(UnknownShuffle, match=f"Several applications .* {ONE}, {OTHER}"):
        await asked(*found)


async def test_the_exact_name_is_meant_before_those_with_a_namespace():
    whole = await asked(page(ONE, 1), page("app", 2))
    assert [each.map_attempt_id for each in whole.outputs] == [2]
