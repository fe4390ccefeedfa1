"""The waits of a TaskManager: collected from their owners, sorted, and bounded.

The owners look at their state when they are asked; while nobody asks, this costs nothing. Names
come from tenants, so they are cut.
"""

from __future__ import annotations

import heapq
from collections import Counter
from time import monotonic
from typing import TYPE_CHECKING, Final

from msgspec import structs

from ...names import utf8_text
from ...partition.pipelined_result_partition import PipelinedResultPartition
from ...wait_status import (
    EVENT_LOOP,
    MAX_WAITS,
    Wait,
    WaitParty,
    WaitStatus,
    application,
    map_output,
    pipelined_partition,
)
from ..drivers.driver_handler import DriverHandler
from ..ingest.producer_handler import ProducerHandler
from ..ingest.producing_waits import waits_of_partition, waits_of_producer
from ..ingest.stored_output import StoredOutput
from ..replicas.copy_waits import waits_of_copies
from ..serve.consumer_handler import ConsumerHandler
from ..serve.peer_handler import PeerHandler
from ..serve.serving_waits import gate_party, waits_of_gates, waits_of_peer, waits_of_requests
from .segment_waits import waits_for_segments

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ...names import ShuffleKey
    from ..ingest.pipelined_output import PipelinedOutput
    from ..wiring import NetworkEnvironment

MAX_NAME_CHARACTERS: Final = 160
MAX_TEXT_CHARACTERS: Final = 400

ONE_TENANT: Final = "Nothing if it is short: turns share the event loop among tenants"
MORE_DIALS: Final = "Check the addresses that its gates name: some do not answer"
DRIVER_ANSWERS: Final = "Check the driver; the move continues after move_noted_timeout_seconds"
DRAINS: Final = (
    "Let its task end. A stop waits at most drain_timeout_seconds; sluice undrain cancels a drain"
)


def waits_of(environment: NetworkEnvironment) -> tuple[tuple[WaitStatus, ...], int]:
    """Return the waits of a TaskManager, the longest first, and the number of the others.

    Those whose time is not known come last. The cost grows with the channels of gates that wait.
    """
    now = monotonic()
    found = list(_all(environment))
    longest = heapq.nsmallest(MAX_WAITS, found, key=_rank)
    taskmanager_id = environment.taskmanager_id
    return tuple(_status(each, now, taskmanager_id) for each in longest), len(found) - len(longest)


def _rank(wait: Wait) -> tuple[bool, float]:
    return wait.began_at is None, wait.began_at or 0.0


def _status(wait: Wait, now: float, taskmanager_id: str) -> WaitStatus:
    return WaitStatus(
        _bounded(wait.waiter),
        _bounded(wait.resource),
        None if wait.began_at is None else round(max(0.0, now - wait.began_at), 3),
        _cut(wait.text, MAX_TEXT_CHARACTERS),
        wait.remedy,
        taskmanager_id,
    )


def _bounded(party: WaitParty) -> WaitParty:
    """Return a party with a name that is cut and can be shown; the same for the same party."""
    return structs.replace(
        party,
        name=_cut(party.name, MAX_NAME_CHARACTERS),
        application_id=_cut(party.application_id, MAX_NAME_CHARACTERS),
    )


def _cut(text: str, most: int) -> str:
    text = utf8_text(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _all(environment: NetworkEnvironment) -> Iterator[Wait]:
    written: dict[tuple[ShuffleKey, int], tuple[PipelinedOutput, str]] = {}
    handlers = list(environment.handlers.values())
    for handler in handlers:
        if isinstance(handler, ConsumerHandler):
            yield from waits_of_gates(handler)
        elif isinstance(handler, PeerHandler):
            yield from waits_of_peer(handler)
        elif isinstance(handler, ProducerHandler):
            yield from waits_of_producer(handler)
            for output in handler.pipelined_outputs:
                written[output.key, output.map_attempt_id] = output, handler.remote
        else:
            yield from _of_driver(handler)
    partitions = environment.partitions
    for key, map_attempt_id, partition in partitions.pipelined:
        if isinstance(partition, PipelinedResultPartition):
            writer = written.get((key, map_attempt_id))
            yield from waits_of_partition(key, map_attempt_id, partition, writer)
    yield from waits_of_requests(partitions)
    holders = [each for each in handlers if not isinstance(each, DriverHandler)]
    yield from waits_for_segments(environment.network_pool, holders)
    yield from environment.store.waits()
    yield from waits_of_copies(environment.copies)
    yield from _of_turns(environment)
    if environment.is_draining:
        yield from _of_drain(environment, holders)


def _of_driver(handler: DriverHandler) -> Iterator[Wait]:
    for each in handler.unnoted.values():
        key, place = each.key, each.place
        waiter = WaitParty(
            "drain", f"move of shuffle {key.shuffle_id} to {place}", key.application_id
        )
        driver = WaitParty("driver", handler.remote, key.application_id)
        text = f"The driver has to acknowledge the new place of {each.map_outputs} map outputs"
        yield Wait(waiter, driver, text, DRIVER_ANSWERS, each.told_at)


def _of_turns(environment: NetworkEnvironment) -> Iterator[Wait]:
    """Yield the tenants whose connections wait for a turn of the event loop, or to be made."""
    for tenant, (share, _) in environment.listener.loop_shares.by_tenant.items():
        waiting = len(share.reads.waiting) + len(share.sends.waiting)
        if waiting and isinstance(tenant, str):
            text = f"{waiting} connections wait for their turn to send or receive"
            yield Wait(application(tenant), EVENT_LOOP, text, ONE_TENANT)
    dials = environment.gate_services.dials
    for owner, requests in dials.waiting.items():
        resource = WaitParty("rate", "connections being made")
        text = f"{len(requests)} connections to other TaskManagers wait until others are made"
        yield Wait(application(owner), resource, text, MORE_DIALS)


def _of_drain(
    environment: NetworkEnvironment,
    holders: Iterable[ConsumerHandler | PeerHandler | ProducerHandler],
) -> Iterator[Wait]:
    """Yield what a drain waits for: outputs that are written, gates that are read."""
    drain = WaitParty("drain", "drain")
    began_at = environment.drain_began
    for holder in holders:
        if isinstance(holder, ProducerHandler):
            for output in holder.outputs:
                key, map_attempt_id = output.key, output.map_attempt_id
                is_stored = isinstance(output, StoredOutput)
                party = (map_output if is_stored else pipelined_partition)(key, map_attempt_id)
                yield Wait(drain, party, "The output is being written", DRAINS, began_at)
        elif isinstance(holder, ConsumerHandler):
            for number in holder.gates:
                text = "The gate is being read"
                yield Wait(drain, gate_party(holder, number), text, DRAINS, began_at)
        else:
            by_application = Counter(
                "" if each.account is None else each.account.name
                for each in holder.readers.values()
            )
            for name, channels in by_application.items():
                party = WaitParty("channels", f"channels of {holder.connection.label}", name)
                text = f"Another TaskManager reads {channels} channels"
                yield Wait(drain, party, text, DRAINS, began_at)
    for key, map_attempt_id, partition in environment.partitions.pipelined:
        if not partition.is_consumed:
            party = pipelined_partition(key, map_attempt_id)
            yield Wait(drain, party, "The partition is not read to its end", DRAINS, began_at)
