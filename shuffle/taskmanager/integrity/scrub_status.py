"""The status of the scrub of stored data."""

from typing import Annotated, ClassVar

import msgspec

from ...metric import gauge, total


class ScrubStatus(msgspec.Struct, frozen=True, gc=False):
    """The scrub; all zero if it is off."""

    metric_prefix: ClassVar[str] = "scrub_"

    read_bytes: Annotated[int, total("Stored bytes that the scrub has verified.")] = 0
    passes: Annotated[int, total("Passes of the scrub over all stored data.")] = 0
    pass_age_seconds: Annotated[
        float | None,
        gauge(
            "Time since the last pass over all stored data ended; absent before the first.",
            combine="max",
        ),
    ] = None
