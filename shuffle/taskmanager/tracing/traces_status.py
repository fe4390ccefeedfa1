"""The status of the spans that a TaskManager sends to its collector."""

from typing import Annotated

import msgspec

from ...metric import total

_SPANS = total(
    "Ended spans of traces: sent to the collector, refused by it, or dropped because too many "
    "waited.",
    "trace_spans",
)


class TracesStatus(msgspec.Struct, frozen=True, gc=False):
    """Spans by outcome; all zero if traces are off."""

    exported: Annotated[int, _SPANS.at(outcome="exported")] = 0
    failed: Annotated[int, _SPANS.at(outcome="failed")] = 0
    dropped: Annotated[int, _SPANS.at(outcome="dropped")] = 0
