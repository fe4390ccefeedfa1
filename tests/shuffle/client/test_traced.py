"""The scope in which partitions and gates are traced."""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol.limits import TRACES
from sluice.protocol.schema import TraceContext
from sluice.shuffle.client.traced import trace_context, traced
from sluice.shuffle.errors import InvalidRequest


def test_there_is_no_context_outside_of_the_scope():
    assert trace_context(3, TRACES) is None
    with traced("outer"):
        with traced("inner"):
            assert trace_context(3, TRACES) == TraceContext(3, "inner", None, None)
        assert trace_context(4, TRACES) == TraceContext(4, "outer", None, None)
        assert trace_context(4, ~TRACES) is None
    assert trace_context(3, TRACES) is None


def test_the_default_asks_for_a_new_trace():
    with traced():
        assert trace_context(1, TRACES) == TraceContext(1, "", None, None)


async def test_tasks_do_not_share_a_scope():
    async def ask(traceparent: str) -> str | None:
        with traced(traceparent):
            await asyncio.sleep(0)
            context = trace_context(0, TRACES)
        return None if context is None else context.traceparent

    assert list(await asyncio.gather(ask("a"), ask("b"))) == ["a", "b"]


def test_a_text_that_is_too_long_is_refused():
    with pytest.raises(InvalidRequest, match="257"), traced("0" * 257):
        pass
