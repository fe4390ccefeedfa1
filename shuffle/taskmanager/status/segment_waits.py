"""Waits for segments of the network memory, and the applications that hold them meanwhile.

An application that holds segments waits in turn for the gates, channels and partitions that hold
them without progress. They are named only while something waits for segments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...wait_status import NETWORK_MEMORY, Wait, WaitParty, pipelined_partition
from ..ingest.producer_handler import ProducerHandler
from ..ingest.producing_waits import MORE_SEGMENTS, for_segments, owner_party
from ..serve.serving_waits import gate_party

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TypeAlias

    from ...memory import LocalBufferPool, NetworkBufferPool, SegmentOwner
    from ..serve.consumer_handler import ConsumerHandler
    from ..serve.peer_handler import PeerHandler

    Holder: TypeAlias = ConsumerHandler | PeerHandler | ProducerHandler

_KINDS: Final = {"gate": "gate", "read": "read"}
"""Kinds of pools whose names are those of the waiters. Map outputs and pipelined partitions have
waits of their own."""

MAX_APPLICATIONS: Final = 50
"""Applications that are named, those that hold the most segments."""

HELD: Final = "Look at the waits of the application; quota_network_segments limits it"
NOT_READ: Final = (
    "Let its task read; after gate_progress_timeout_seconds its segments are reclaimed"
)
ASKS_AGAIN: Final = "Raise network_segments, or run fewer tasks at once"


def waits_for_segments(pool: NetworkBufferPool, holders: Iterable[Holder]) -> Iterator[Wait]:
    """Yield the waits for segments of a network pool.

    Args:
        pool: The network pool.
        holders: The handlers of connections that can hold segments.
    """
    limited: set[SegmentOwner] = set()
    for share in pool.shares.all():
        for local in share.starving:
            limited.add(local.share.owner)
            yield from _of_pool(local)
    starving = [each for each in pool.starving if each.wants_segment]
    for local in starving:
        if not local.share.may_hold(1):
            limited.add(local.share.owner)
        yield from _of_pool(local)
    for owner, segments in pool.refused:
        text = f"It was refused {segments} segments, and asks again"
        yield Wait(owner_party(owner), NETWORK_MEMORY, text, ASKS_AGAIN)
    holding: list[SegmentOwner] = []
    if starving or len(pool.requests) or any(pool.refused):
        shares = [each for each in pool.shares.all() if each.held_segments and not each.parts]
        shares.sort(key=lambda each: each.held_segments, reverse=True)
        for share in shares[:MAX_APPLICATIONS]:
            holding.append(share.owner)
            party = owner_party(share.owner)
            is_own = party.kind == "taskmanager"
            who = "The TaskManager's own work" if is_own else "The application"
            text = f"{who} holds {share.held_segments} of {pool.total_segments} segments"
            yield Wait(NETWORK_MEMORY, party, text, MORE_SEGMENTS if is_own else HELD)
    named = limited.union(holding)
    if named:
        for holder in holders:
            for each in holder.unmoved():
                if each.owner is not None and each.owner in named:
                    party = _held(holder, each.number)
                    text = f"The {holder.held_kind} holds segments, and nobody takes its data"
                    yield Wait(owner_party(each.owner), party, text, NOT_READ)


def _of_pool(pool: LocalBufferPool) -> Iterator[Wait]:
    kind = _KINDS.get(pool.kind)
    if kind is not None:
        owner = owner_party(pool.share.owner)
        yield for_segments(WaitParty(kind, pool.name, owner.application_id), pool)


def _held(holder: Holder, number: int) -> WaitParty:
    """Return the party of what holds segments, by its number on its connection."""
    if not isinstance(holder, ProducerHandler):
        return gate_party(holder, number)
    output = next(each for each in holder.pipelined_outputs if each.number == number)
    return pipelined_partition(output.key, output.map_attempt_id)
