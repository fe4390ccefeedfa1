"""The status of a pipelined partition."""

from typing import Annotated, Final

import msgspec

from .metric import gauge

PIPELINED_STATES: Final = ("open", "finished")
QUEUED: Final = "Buffers and events that wait in subpartitions"


class PipelinedPartitionStatus(msgspec.Struct, frozen=True, gc=False):
    """One pipelined partition that is being written or read."""

    application_id: str = ""
    shuffle_id: int = 0
    map_attempt_id: int = 0
    partition_type: str = ""
    """``"PIPELINED"``, ``"PIPELINED_BOUNDED"`` or ``"HYBRID_SELECTIVE"``."""
    state: Annotated[
        str,
        gauge(
            "Pipelined partitions; finished ones are still read.",
            "pipelined_partitions",
            by="state",
            zeros=PIPELINED_STATES,
        ),
    ] = ""
    """``"open"``, or ``"finished"`` while it is still being read."""
    subpartitions: Annotated[int, gauge("Subpartitions of pipelined partitions.")] = 0
    queued_buffers: Annotated[int, gauge(f"{QUEUED}.", "subpartition_queued_buffers")] = 0
    """Buffers and events that wait in all subpartitions."""
    shortest_queue: Annotated[
        int,
        gauge(f"{QUEUED}: the shortest queue.", "subpartition_queued_buffers_min", combine="min"),
    ] = 0
    longest_queue: Annotated[
        int,
        gauge(f"{QUEUED}: the longest queue.", "subpartition_queued_buffers_max", combine="max"),
    ] = 0
    used_segments: Annotated[
        int,
        gauge(
            "Buffers of pipelined partitions in use: output pool usage.",
            "output_used_buffers",
        ),
    ] = 0
    """Segments with data, without those that lie ready for the producer."""
    limit_segments: Annotated[
        int, gauge("Buffers that pipelined partitions may hold now.", "output_limit_buffers")
    ] = 0
    overdraft_segments: int = 0
    available_credit: int = 0
    """Credits that the producer has not used yet."""
    back_pressured: bool = False
    """Whether its producer lacks credit now, because memory for more is lacking."""
    back_pressured_seconds: float = 0.0
    bytes_out: int = 0
    buffers_out: int = 0
