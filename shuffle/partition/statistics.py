"""Frozen snapshots of result partitions."""

from dataclasses import dataclass

from shuffle.memory import LocalBufferPoolStatistics


@dataclass(frozen=True, slots=True)
class PipelinedPartitionStatistics:
    """A pipelined partition at one moment.

    Args:
        name: Its name.
        state: Its state, in a word.
        queued_buffers: Buffers and events that wait, by subpartition; their extremes and their mean
            are the queue lengths of the output.
        bytes_out: Data bytes that readers have taken.
        buffers_out: Data buffers that readers have taken.
        soft_back_pressured_seconds: Time the writer waited between records.
        hard_back_pressured_seconds: Time it waited within one.
        pool: Its memory.
    """

    name: str
    state: str
    queued_buffers: tuple[int, ...]
    bytes_out: int
    buffers_out: int
    soft_back_pressured_seconds: float
    hard_back_pressured_seconds: float
    pool: LocalBufferPoolStatistics
