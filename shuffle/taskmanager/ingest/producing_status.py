"""The status of producers: their credit."""

from typing import Annotated, ClassVar

import msgspec

from ...metric import gauge


class ProducersStatus(msgspec.Struct, frozen=True, gc=False):
    """All producers of one kind of partition together."""

    key_fields: ClassVar[tuple[str, ...]] = ("kind",)

    kind: str = ""
    """``"map_output"`` or ``"pipelined"``."""
    available_credit: Annotated[
        int,
        gauge(
            "Credits granted to producers and not used yet.", "producer_available_credit", by="kind"
        ),
    ] = 0
    without_credit: Annotated[
        int,
        gauge(
            "Partitions whose producer waits for credit.",
            "producers_without_credit",
            by="kind",
        ),
    ] = 0
    """Number of producers that have data to send and no credit."""
    credit_wait_longest_seconds: Annotated[
        float,
        gauge(
            "The longest time since when a producer has waited for credit.",
            "producer_credit_wait_longest_seconds",
            by="kind",
            combine="max",
        ),
    ] = 0.0
    """0 if none waits."""
