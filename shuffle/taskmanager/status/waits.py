"""The waits of a TaskManager: collected from their owners, sorted, and bounded.

The owners look at their state when they are asked; while nobody asks, this costs nothing. Names
come from tenants, so they are cut.
"""

from __future__ import annotations

import heapq
from collections import Counter
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Final

from msgspec import structs

from ...names import ShuffleKey, utf8_text
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
from ..serve.serving_waits import (
    WaitingGate,
    gate_party,
    oldest_requests,
    wait_of_request,
    waiting_channels,
    waiting_gates,
    waits_of_gate,
    waits_of_peer,
)
from .segment_waits import waits_for_segments

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ..embedded.client import EmbeddedClient
    from ..ingest.pipelined_output import PipelinedOutput
    from ..serve.result_partition_manager import WaitingRequest
    from ..wiring import NetworkEnvironment

MAX_CHANNELS: Final = 1000
"""Channels examined for one status: of all gates of clients together, and of all other TaskManagers
together. Also the channels named of all gates of embedded tasks together."""

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

    Waits of unknown time come last. The number of the others is an estimate: each gate, request and
    channel of another TaskManager that was not examined counts as one wait.

    The cost has a bound for any number of channels and requests of clients. It grows with the
    numbers of gates, shuffles, connections and outputs that are written, all of which have quotas,
    and with the channels of embedded tasks.
    """
    now = monotonic()
    found = _Found()
    _collect(environment, found)
    longest = heapq.nsmallest(MAX_WAITS, found.waits, key=_rank)
    omitted = found.omitted + len(found.waits) - len(longest)
    taskmanager_id = environment.taskmanager_id
    return tuple(_status(each, now, taskmanager_id) for each in longest), omitted


class _Found:
    """The waits of one status.

    Attributes:
        waits: The waits.
        omitted: The estimated number of waits that are not among them.
    """

    def __init__(self) -> None:
        self.waits: list[Wait] = []
        self.omitted = 0

    def add_some(self, waits: Iterable[Wait]) -> None:
        """Add the first waits, up to the number that a status has, and count the others."""
        waits = iter(waits)
        self.waits += islice(waits, MAX_WAITS)
        self.omitted += sum(1 for _ in waits)


def _rank(wait: Wait | WaitingGate | WaitingRequest) -> tuple[bool, float]:
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


def _collect(environment: NetworkEnvironment, found: _Found) -> None:
    handlers = list(environment.handlers.values())
    _collect_readers(environment, handlers, found)
    written: dict[tuple[ShuffleKey, int], tuple[PipelinedOutput, str]] = {}
    for handler in handlers:
        if isinstance(handler, ProducerHandler):
            found.waits += waits_of_producer(handler)
            for output in handler.pipelined_outputs:
                written[output.key, output.map_attempt_id] = output, handler.remote
        elif isinstance(handler, DriverHandler):
            found.waits += _of_driver(handler)
    for key, map_attempt_id, partition in environment.partitions.pipelined:
        if isinstance(partition, PipelinedResultPartition):
            writer = written.get((key, map_attempt_id))
            found.waits += waits_of_partition(key, map_attempt_id, partition, writer)
    holders = [each for each in handlers if not isinstance(each, DriverHandler)]
    found.waits += waits_for_segments(environment.network_pool, holders)
    found.waits += environment.store.waits()
    found.waits += waits_of_copies(environment.copies)
    found.waits += _of_turns(environment)
    if environment.is_draining:
        found.add_some(_of_drain(environment, holders))


def _collect_readers(
    environment: NetworkEnvironment, handlers: Sequence[object], found: _Found
) -> None:
    """Collect the waits of gates, of channels of other TaskManagers, and of requests."""
    gates: list[WaitingGate] = [
        gate
        for handler in handlers
        if isinstance(handler, ConsumerHandler)
        for gate in waiting_gates(handler)
    ]
    if environment.embedded:
        _collect_embedded(environment.embedded, found)
    requests, others = oldest_requests(environment.partitions)
    candidates: list[WaitingGate | WaitingRequest] = [*gates, *requests]
    longest = heapq.nsmallest(MAX_WAITS, candidates, key=_rank)
    found.omitted += others + len(gates) + len(requests) - len(longest)
    most = MAX_CHANNELS // max(1, len(longest))
    for each in longest:
        if isinstance(each, WaitingGate):
            found.waits += waits_of_gate(each, most)
        else:
            found.waits.append(wait_of_request(environment.partitions, each))
    peers = [each for each in handlers if isinstance(each, PeerHandler) and each.readers]
    most = max(1, MAX_CHANNELS // max(1, len(peers)))
    for peer in peers:
        found.waits += waits_of_peer(peer, most)
        found.omitted += max(0, waiting_channels(peer) - most)


def _collect_embedded(clients: Iterable[EmbeddedClient], found: _Found) -> None:
    from ..embedded.embedded_waits import waits_of_client  # not in a daemon

    gates = sum(len(each.gates) for each in clients)
    most = max(1, MAX_CHANNELS // max(1, gates))
    for client in clients:
        found.add_some(waits_of_client(client, most))


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
    if environment.embedded:
        yield from _of_drain_embedded(environment.embedded, drain, began_at)
    for key, map_attempt_id, partition in environment.partitions.pipelined:
        if not partition.is_consumed:
            party = pipelined_partition(key, map_attempt_id)
            yield Wait(drain, party, "The partition is not read to its end", DRAINS, began_at)


def _of_drain_embedded(
    clients: Iterable[EmbeddedClient], drain: WaitParty, began_at: float | None
) -> Iterator[Wait]:
    """Yield the gates and map outputs of embedded tasks, without pipelined partitions."""
    from ..embedded.embedded_waits import embedded_gate

    for client in clients:
        for gate in client.gates:
            party = embedded_gate(client, gate)
            yield Wait(drain, party, "The gate is being read", DRAINS, began_at)
        for each in client.partitions:
            if each.is_stored:
                key = ShuffleKey(client.namespace, each.shuffle_id)
                party = map_output(key, each.map_attempt_id)
                yield Wait(drain, party, "The output is being written", DRAINS, began_at)
