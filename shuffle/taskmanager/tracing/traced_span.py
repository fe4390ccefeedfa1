"""One span of a trace, and the text with which another TaskManager continues it."""

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Final, TypeAlias

from opentelemetry.trace import (
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ....protocol.errors import SluiceError
from ....protocol.schema import TraceContext
from ....transport.errors import one_line

Value: TypeAlias = str | bool | int | float | Sequence[str] | None
"""The value of an attribute; an attribute without a value is left out."""

_TEXT: Final = TraceContextTextMapPropagator()


class TracedSpan:
    """A span that is recorded; as a context manager it ends with the block.

    Args:
        tracer: Begins the children.
        span: The span, which has begun.
        origin: The context that the client sent, with Spark's stage and task attempt.

    Attributes:
        before_end: Called before the span ends.
    """

    __slots__ = ("_origin", "_span", "_tracer", "before_end")

    def __init__(self, tracer: Tracer, span: Span, origin: TraceContext) -> None:
        self._tracer: Final = tracer
        self._span: Final = span
        self._origin: Final = origin
        self.before_end: Callable[[], None] | None = None

    @property
    def context(self) -> TraceContext:
        """The context for another TaskManager that continues the trace below this span."""
        carrier: dict[str, str] = {}
        _TEXT.inject(carrier, set_span_in_context(self._span))
        origin = self._origin
        return TraceContext(0, carrier["traceparent"], origin.stage_id, origin.task_attempt_id)

    def child(
        self, name: str, attributes: Mapping[str, Value] | None = None, *, sends: bool = False
    ) -> "TracedSpan":
        """Begin a span below this one, which may have ended.

        Args:
            name: Its name.
            attributes: Its attributes.
            sends: Whether another process continues the trace below it.
        """
        span = self._tracer.start_span(
            name,
            set_span_in_context(self._span),
            SpanKind.CLIENT if sends else SpanKind.INTERNAL,
            present(attributes or {}) | spark_attributes(self._origin),
        )
        return TracedSpan(self._tracer, span, self._origin)

    @property
    def identity(self) -> SpanContext:
        """The ids of the span, for :meth:`link`; valid after its end, too."""
        return self._span.get_span_context()

    def link(self, other: SpanContext) -> None:
        """Link to the span of the data that this span reads, usually in another trace."""
        self._span.add_link(other)

    def end(
        self,
        attributes: Mapping[str, Value] | None = None,
        error: BaseException | str | None = None,
    ) -> None:
        """End the span. Idempotent.

        Args:
            attributes: More attributes.
            error: Why the work failed.
        """
        span = self._span
        if not span.is_recording():
            return
        before, self.before_end = self.before_end, None  # it may refer to this span
        if before is not None:
            before()
        span.set_attributes(present(attributes or {}))
        if error is not None and error != "":
            if isinstance(error, SluiceError):
                span.set_attribute("error.type", error.code.name)
            text = one_line(error) if isinstance(error, BaseException) else error
            span.set_status(Status(StatusCode.ERROR, str(text)))
        span.end()

    def __enter__(self) -> "TracedSpan":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end(error=error)


def present(attributes: Mapping[str, Value]) -> dict[str, str | bool | int | float | Sequence[str]]:
    """Return the attributes that have a value."""
    return {name: value for name, value in attributes.items() if value is not None}


def spark_attributes(
    origin: TraceContext,
) -> dict[str, str | bool | int | float | Sequence[str]]:
    """Return Spark's stage and task attempt as attributes."""
    return present(
        {"spark.stage.id": origin.stage_id, "spark.task.attempt_id": origin.task_attempt_id}
    )
