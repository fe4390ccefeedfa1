"""A batch of records, sorted by where they go and framed before anything is written."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from shuffle.partition.result_partition_writer import ALL_SUBPARTITIONS
from shuffle.records.errors import no_such_subpartition
from shuffle.records.framing import BytesLike, join_frames


class BatchPart(NamedTuple):
    """The records of a batch that go the same way.

    Attributes:
        subpartition: Where they go; ``ALL_SUBPARTITIONS`` is possible.
        frames: All of them, framed.
        payloads: Each of them.
    """

    subpartition: int
    frames: bytes
    payloads: Sequence[BytesLike]


def batch_parts(
    payloads: Sequence[BytesLike],
    subpartitions: Sequence[int] | int,
    num_subpartitions: int,
    maximum_record_bytes: int,
) -> list[BatchPart]:
    """Sort and frame a batch; the order within each subpartition stays.

    Args:
        payloads: The records.
        subpartitions: Where each goes, or where all go.
        num_subpartitions: How many there are.
        maximum_record_bytes: Longer records are refused.

    Raises:
        InvalidSubpartition: A record goes where there is no subpartition.
        RecordTooLarge: A record is too long.
        ValueError: Not one subpartition for each record.
    """
    groups: Sequence[tuple[int, Sequence[BytesLike]]]
    if isinstance(subpartitions, int):
        groups = [(subpartitions, payloads)] if payloads else []
    else:
        groups = _grouped(payloads, subpartitions)
    for subpartition, _ in groups:
        if not ALL_SUBPARTITIONS <= subpartition < num_subpartitions:
            raise no_such_subpartition(subpartition, num_subpartitions)
    return [
        BatchPart(subpartition, join_frames(group, maximum_record_bytes), group)
        for subpartition, group in groups
    ]


def _grouped(
    payloads: Sequence[BytesLike], subpartitions: Sequence[int]
) -> list[tuple[int, list[BytesLike]]]:
    groups: defaultdict[int, list[BytesLike]] = defaultdict(list)
    for payload, subpartition in zip(payloads, subpartitions, strict=True):
        groups[subpartition].append(payload)
    if ALL_SUBPARTITIONS not in groups or len(groups) == 1:
        return list(groups.items())
    # A broadcast record must not change places with one to any of the subpartitions.
    pairs = zip(subpartitions, payloads, strict=True)
    return [
        (subpartition, [payload for _, payload in run])
        for subpartition, run in groupby(pairs, key=lambda pair: pair[0])
    ]
