"""Joins what a task writes and reads to a trace of OpenTelemetry."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from ...protocol.limits import MAX_NAME_CHARACTERS, TRACES
from ...protocol.schema import TraceContext
from ..errors import InvalidRequest

_CONTEXT: Final[ContextVar[str | None]] = ContextVar("sluice_traceparent", default=None)


@contextmanager
def traced(traceparent: str = "") -> Iterator[None]:
    """Trace the partitions and gates that are opened in this block.

    ::

        with traced("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"):
            async with client.open_result_partition(1, 0, 4, ...) as partition:
                ...

    The TaskManagers make the spans, if their ``traces_endpoint`` is set; otherwise nothing happens.

    Args:
        traceparent: The parent span, in the form of W3C Trace Context. If it is empty or invalid,
            the TaskManager begins a trace for each partition and gate.

    Raises:
        InvalidRequest: The text is longer than 256 characters.
    """
    if len(traceparent) > MAX_NAME_CHARACTERS:
        raise InvalidRequest(
            "traceparent is too long",
            value=f"{len(traceparent)} characters",
            limit=f"{MAX_NAME_CHARACTERS} characters",
            remedy="Give it the form 00-<trace id>-<parent id>-<flags> of W3C Trace Context",
        )
    before = _CONTEXT.set(traceparent)
    try:
        yield
    finally:
        _CONTEXT.reset(before)


def trace_context(number: int, features: int) -> TraceContext | None:
    """Return the context of a partition or gate; None if it is not traced.

    Args:
        number: Number of the partition or gate.
        features: The features that both sides of the connection have.
    """
    traceparent = _CONTEXT.get()
    if traceparent is None or not features & TRACES:
        return None
    return TraceContext(number, traceparent, None, None)
