"""Waits of the writing side: map outputs for segments or disks, partitions for readers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...wait_status import (
    NETWORK_MEMORY,
    REMOTE_TIER,
    Wait,
    WaitParty,
    application,
    map_output,
    pipelined_partition,
    place,
    subpartition,
)
from ..bounds.accounts import Account
from .disk_region import DiskRegion
from .output_states import PipelinedState
from .stored_output import StoredOutput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ...memory import LocalBufferPool, SegmentOwner
    from ...names import ShuffleKey
    from ...partition.pipelined_result_partition import PipelinedResultPartition
    from .incoming_region import IncomingRegion
    from .pipelined_output import PipelinedOutput
    from .producer_handler import ProducerHandler

MAX_SUBPARTITIONS: Final = 3
"""Subpartitions that the waits of a partition name: those with the longest queues."""

SLOW_WRITE: Final = "Check the disk and what else uses it, or add a data directory"
SLOW_REMOTE_WRITE: Final = "Check that the remote store answers, and the network to it"
MORE_SEGMENTS: Final = "Read open gates and close unneeded ones, or raise network_segments"
QUOTA: Final = "Let tasks of the application end, or raise quota_network_segments"
READ_IT: Final = "Look at the waits of its reader; a hybrid partition would not wait"
OPEN_IT: Final = "Start the task that reads it: a pipelined exchange needs both sides at once"
TASK_SENDS: Final = "Look at the map task: it computes, or its process stands still"
SPILLS: Final = "Check the disks; the partition spills what its readers do not take"


def waits_of_producer(handler: ProducerHandler) -> Iterator[Wait]:
    """Yield the waits of the map outputs that a client writes."""
    for output in handler.outputs:
        if isinstance(output, StoredOutput):
            yield from _of_output(handler, output)


def _of_output(handler: ProducerHandler, output: StoredOutput) -> Iterator[Wait]:
    party = map_output(output.key, output.map_attempt_id)
    region = output.region
    since = output.credit_wait.began_at
    if since is not None and isinstance(region, DiskRegion):
        if region.waits_for_segment and output.pool.wants_segment:
            yield for_segments(party, output.pool, since)
        elif region.is_writing:
            yield from _of_writes(party, [region])
    elif since is None and region is not None and output.available_credit > 0:
        writer = WaitParty("writer", handler.remote, output.key.application_id)
        text = f"{region.received_bytes} of {region.length} bytes of a region have come"
        yield Wait(party, writer, text, TASK_SENDS)
    elif output.is_storing:
        yield from _of_writes(party, output.written)


def _of_writes(party: WaitParty, regions: Iterable[IncomingRegion]) -> Iterator[Wait]:
    """Yield a wait for each directory that has not taken a region yet."""
    places: dict[str, float | None] = {}
    for region in regions:
        if region.is_writing and region.place not in places:
            places[region.place] = region.write_began
    for name, began_at in places.items():
        text = "A region is being written there"
        where = place(name)
        remedy = SLOW_REMOTE_WRITE if where.kind == REMOTE_TIER.kind else SLOW_WRITE
        yield Wait(party, where, text, remedy, began_at)


def owner_party(owner: SegmentOwner) -> WaitParty:
    """Return the party of an owner of segments: an application, or the TaskManager itself."""
    if isinstance(owner, Account):
        return application(owner.application_id)
    return WaitParty("taskmanager", "this TaskManager")


def for_segments(party: WaitParty, pool: LocalBufferPool, since: float | None = None) -> Wait:
    """Return the wait of a pool that is below its limit: for others, or for its owner's quota."""
    share = pool.share
    if not share.may_hold(1):
        text = f"The quota of network segments is used up: {share.tenant.held_segments} are held"
        return Wait(party, owner_party(share.owner), text, QUOTA, since)
    text = "A segment is needed, and none is free"
    return Wait(party, NETWORK_MEMORY, text, MORE_SEGMENTS, since)


def waits_of_partition(
    key: ShuffleKey,
    map_attempt_id: int,
    partition: PipelinedResultPartition,
    written: tuple[PipelinedOutput, str] | None,
) -> Iterator[Wait]:
    """Yield the waits of a pipelined partition.

    Args:
        key: The shuffle.
        map_attempt_id: The map attempt.
        partition: The partition.
        written: Its output and the client that writes it; None: a task of this process writes it,
            or it is finished.
    """
    party = pipelined_partition(key, map_attempt_id)
    pool = partition.memory.pool
    since = None
    if written is not None:
        since = written[0].credit_wait.began_at
        is_waiting = since is not None
    else:
        tasks = pool.waiting_for_availability + pool.waiting_listeners
        is_waiting = not pool.is_destroyed and tasks > 0
    if not is_waiting:
        yield from _of_client(party, partition, written)
        return
    if pool.wants_segment:
        yield for_segments(party, pool, since)
        return
    if partition.may_spill:
        storage = WaitParty("storage", "storage tiers")
        yield Wait(party, storage, "Its buffers are being spilled", SPILLS, since)
        return
    queues = [(each.queued_buffers, index) for index, each in enumerate(partition.subpartitions)]
    for queued, index in sorted(queues, reverse=True)[:MAX_SUBPARTITIONS]:
        if queued:
            resource = subpartition(key, map_attempt_id, index)
            text = f"{queued} buffers and events wait there for their reader"
            yield Wait(party, resource, text, READ_IT, since)
            if index not in partition.requested:
                reader = WaitParty(
                    "missing_reader", f"reader of {resource.name}", key.application_id
                )
                yield Wait(resource, reader, "No reader has asked for it", OPEN_IT, since)


def _of_client(
    party: WaitParty,
    partition: PipelinedResultPartition,
    written: tuple[PipelinedOutput, str] | None,
) -> Iterator[Wait]:
    """Yield the wait for the client, if the partition has nothing to read."""
    if written is None:
        return
    output, remote = written
    if (
        output.state is PipelinedState.OPEN
        and output.available_credit > 0
        and not any(each.queued_buffers for each in partition.subpartitions)
    ):
        writer = WaitParty("writer", remote, party.application_id)
        text = f"All data is read, and the task has credit for {output.available_credit} buffers"
        yield Wait(party, writer, text, TASK_SENDS)
