"""Waits of the gates that tasks in the TaskManager's own process read.

Such a gate keeps no counts of its channels while data moves, so a status examines all of them.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from ....protocol.limits import MAX_CREDIT
from ...wait_status import Wait, WaitParty
from ..serve.serving_waits import READ_THE_GATE, causes, held_up
from .client import PROCESS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...gate.input_gate import InputGate
    from .client import EmbeddedClient


def embedded_gate(client: EmbeddedClient, gate: InputGate) -> WaitParty:
    """Return the party of an embedded task's gate."""
    return WaitParty("gate", gate.name, client.namespace)


def waits_of_client(client: EmbeddedClient, most_channels: int) -> Iterator[Wait]:
    """Yield the waits of a client's gates: for their tasks, or for data.

    Args:
        client: The client.
        most_channels: Maximum number of channels of a gate that are named.
    """
    for gate in client.gates:
        yield from _of_gate(embedded_gate(client, gate), client.namespace, gate, most_channels)


def _of_gate(
    party: WaitParty, application_id: str, gate: InputGate, most_channels: int
) -> Iterator[Wait]:
    channels = [
        (channel, source)
        for index, (channel, source) in enumerate(zip(gate.channels, gate.sources, strict=True))
        if index not in gate.ended
    ]
    unread = [each for each in channels if each[0].is_available(MAX_CREDIT)]
    since = gate.availability.idle_since if gate.availability.waiting else None
    if not unread:
        named = islice(channels, most_channels)
        yield from causes(party, gate, named, len(channels), since)
    elif since is None:
        reader = WaitParty("reader", PROCESS, application_id)
        text = (
            f"{len(unread)} of {len(gate.channels)} channels have data that the task does not read"
        )
        yield Wait(party, reader, text, READ_THE_GATE)
        yield from held_up(party, gate, islice(unread, most_channels), None)
