"""Waits of the serving side: gates and channels for credit or data, requests for partitions.

A gate has one wait for each of its causes, however many channels it has, and so has a connection of
another TaskManager, except for its channels to pipelined partitions.

A TaskManager may have thousands of gates, each with hundreds of channels, and a status has 200
waits. So :func:`waiting_gates` reads only the counts of each gate. The caller chooses the gates
that have waited longest, and :func:`waits_of_gate` examines some channels of each.
"""

from __future__ import annotations

from collections import Counter
from heapq import nsmallest
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from ...gate.local_input_channel import LocalInputChannel
from ...gate.remote_input_channel import RemoteInputChannel
from ...wait_status import (
    MAX_WAITS,
    NETWORK_MEMORY,
    REMOTE_TIER,
    Wait,
    WaitParty,
    map_output,
    pipelined_partition,
    place,
    request,
    subpartition,
)
from .channel_times import SENDING, WAITING_FOR_CREDIT, WAITING_FOR_DATA
from .consumer_handler import ConsumerHandler
from .read_ahead_view import ReadAheadView
from .taskmanager_channel_opener import TaskManagerChannelOpener

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Iterable, Iterator
    from typing import TypeAlias

    from ...gate.channel_opener import ChannelSource
    from ...gate.input_gate import InputChannel, InputGate
    from ...names import ShuffleKey, SubpartitionRange
    from ...partition.view import SubpartitionView
    from .credit_based_view_reader import CreditBasedViewReader
    from .peer_handler import PeerHandler
    from .result_partition_manager import ResultPartitionManager, WaitingRequest

    _Cause: TypeAlias = tuple[WaitParty, str, str]
    GateChannel: TypeAlias = tuple[InputChannel, ChannelSource]

MAX_REQUESTS: Final = 1000
"""Requests examined for one status: the oldest of the shuffles that have waited longest."""

READ_THE_GATE: Final = (
    "Look at the task that reads: it is busy, paused or blocked by what it writes"
)
CLOSE_OR_GROW: Final = "Read open gates and close unneeded ones, or raise network_segments"
LOOK_THERE: Final = "Look at the waits of that TaskManager, and at the network between the hosts"
LOOK_AT_PRODUCER: Final = "Look at the waits of the partition: its producer sends too little"
RUN_THE_TASK: Final = (
    "Let its map task run; the request fails after partition_request_timeout_seconds"
)
SLOW_READ: Final = "Check the disk and what else uses it, or raise io_threads"
SLOW_REMOTE_READ: Final = "Check that the remote store answers, and the network to it"
MORE_READ_SEGMENTS: Final = (
    "Let the task read its other channels; else raise read_segments_per_connection"
)


def gate_party(handler: ConsumerHandler | PeerHandler, number: int) -> WaitParty:
    """Return the party of a gate of a consumer, or of a channel of another TaskManager."""
    remote = handler.connection.label
    if isinstance(handler, ConsumerHandler):
        return WaitParty("gate", f"gate {number} of {remote}", handler.connection.application_id)
    reader = handler.readers.get(number)
    account = None if reader is None else reader.account
    return WaitParty(
        "channel", f"channel {number} of {remote}", "" if account is None else account.name
    )


class WaitingGate(NamedTuple):
    """A gate of which all channels, or some, wait.

    Attributes:
        handler: Serves the consumer that reads the gate.
        number: The number of the gate at this consumer.
        began_at: When the wait began, or later, as of ``time.monotonic()``; None: not known.
    """

    handler: ConsumerHandler
    number: int
    began_at: float | None


def waiting_gates(handler: ConsumerHandler) -> Iterator[WaitingGate]:
    """Yield a consumer's gates that wait, in a time that does not depend on their channels."""
    writable = handler.connection.writable
    for number, times in handler.gate_times.items():
        for_data, for_credit, sending = times.counts
        if for_credit:
            yield WaitingGate(handler, number, None if sending and writable else times.changed_at)
        elif sending:
            if not writable:
                yield WaitingGate(handler, number, times.changed_at)
        elif for_data:
            yield WaitingGate(handler, number, times.changed_at)


def waits_of_gate(waiting: WaitingGate, most_channels: int) -> Iterator[Wait]:
    """Yield the waits of a gate.

    Args:
        waiting: The gate.
        most_channels: Maximum number of channels to examine: the first ones that wait.
    """
    handler, number, since = waiting
    connection = handler.connection
    gate, readers = handler.gates[number]
    for_data, for_credit, _ = handler.gate_times[number].counts
    party = gate_party(handler, number)
    reader_party = WaitParty("reader", connection.label, connection.application_id)
    if for_credit:
        text = (
            f"{for_credit} of {len(readers)} channels have data, and their reader grants no credit"
        )
        yield Wait(party, reader_party, text, READ_THE_GATE, since)
        held = islice(_channels_in(WAITING_FOR_CREDIT, gate, readers), most_channels)
        yield from held_up(party, gate, held, since)
    elif connection.writable:
        open_channels = islice(_channels_in(WAITING_FOR_DATA, gate, readers), most_channels)
        yield from causes(party, gate, open_channels, for_data, since)
    else:
        text = "The reader does not read its connection"
        yield Wait(party, reader_party, text, READ_THE_GATE, since)


def _channels_in(
    activity: int, gate: InputGate, readers: list[CreditBasedViewReader]
) -> Iterator[GateChannel]:
    """Yield the open channels of a gate that have an activity."""
    for reader, channel, source in zip(readers, gate.channels, gate.sources, strict=False):
        if reader.activity == activity and reader.view is not None:
            yield channel, source


def held_up(
    party: WaitParty, gate: InputGate, channels: Iterable[GateChannel], since: float | None
) -> Iterator[Wait]:
    """Yield the local pipelined subpartitions that wait for a gate.

    Args:
        party: The party of the gate.
        gate: The gate.
        channels: Its channels that have data.
        since: When their wait began; None: not known.
    """
    for channel, source in channels:
        if isinstance(channel, LocalInputChannel) and channel.is_pipelined:
            key, start, _ = gate.opener.wanted
            waiter = subpartition(key, source.map_attempt_ids[0], start)
            text = f"Its buffers wait for {party.name}"
            yield Wait(waiter, party, text, READ_THE_GATE, since)


def causes(
    party: WaitParty,
    gate: InputGate,
    channels: Iterable[GateChannel],
    waiting: int,
    since: float | None,
) -> Iterator[Wait]:
    """Yield a wait for each reason why a gate has no data.

    Args:
        party: The party of the gate.
        gate: The gate.
        channels: Channels to examine, which wait for data.
        waiting: Number of all its channels that wait for data.
        since: When their wait began; None: not known.
    """
    found: Counter[_Cause] = Counter()
    sought = request(gate.opener.wanted), "the partition is not here yet", RUN_THE_TASK
    listed = 0
    for channel, source in channels:
        listed += 1
        cause = _cause(gate, channel, source, sought)
        if cause is not None:
            found[cause] += 1
    more = f"; {waiting - listed} more channels wait" if waiting > listed else ""
    for (resource, text, remedy), count in found.items():
        some = "1 channel" if count == 1 else f"{count} channels"
        yield Wait(party, resource, f"{some}: {text}{more}", remedy, since)


def _cause(
    gate: InputGate, channel: InputChannel, source: ChannelSource, sought: _Cause
) -> _Cause | None:
    opener = gate.opener
    if isinstance(channel, RemoteInputChannel):
        taskmanager = WaitParty("taskmanager", str(source.address))
        if channel.buffers is not None:
            return taskmanager, "the TaskManager has credit and sends nothing", LOOK_THERE
        if isinstance(opener, TaskManagerChannelOpener):
            if channel in opener.unopened:
                return None
            if opener.asks_for_segments:
                text = "exclusive segments are not free"
                return NETWORK_MEMORY, text, CLOSE_OR_GROW
        return taskmanager, "the TaskManager is being connected", LOOK_THERE
    if not isinstance(channel, LocalInputChannel):
        return None
    if channel.view is None:
        return sought
    if channel.is_pipelined:
        partition = pipelined_partition(opener.wanted.shuffle, source.map_attempt_ids[0])
        return partition, "the partition has nothing to read", LOOK_AT_PRODUCER
    return _cause_of_view(channel.view)


def _cause_of_view(view: SubpartitionView | None) -> _Cause | None:
    if isinstance(view, ReadAheadView):
        if view.waits_for_segment:
            return NETWORK_MEMORY, "a read needs a segment", MORE_READ_SEGMENTS
        directory = view.reads_from
        if directory:
            where = place(directory)
            remedy = SLOW_REMOTE_READ if where.kind == REMOTE_TIER.kind else SLOW_READ
            return where, "a read is under way", remedy
    return None


def waits_of_peer(handler: PeerHandler, most_channels: int) -> Iterator[Wait]:
    """Yield the waits of the channels that another TaskManager reads.

    Args:
        handler: Serves the other TaskManager.
        most_channels: Maximum number of channels to examine: the oldest ones that wait.
    """
    connection = handler.connection
    (times,) = handler.times
    writable = connection.writable
    since = None if times.counts[SENDING] and writable else times.changed_at
    taskmanager = WaitParty("taskmanager", connection.label)
    for_credit: Counter[str] = Counter()
    unread: Counter[str] = Counter()
    for_data: Counter[tuple[str, _Cause]] = Counter()
    for reader in islice(_waiting_readers(handler), most_channels):
        name = "" if reader.account is None else reader.account.name
        producer = handler.producer_of(reader)
        wanted = handler.sought_by(reader)
        if producer is not None:
            yield from _pipelined(handler, reader, producer, since)
        elif wanted is not None:
            cause = request(wanted), "the partition is not here yet", RUN_THE_TASK
            for_data[name, cause] += 1
        elif reader.activity == WAITING_FOR_CREDIT:
            for_credit[name] += 1
        elif reader.activity == SENDING:
            unread[name] += 1
        elif reader.activity == WAITING_FOR_DATA:
            found = _cause_of_view(reader.view)
            if found is not None:
                for_data[name, found] += 1
    for name, channels in for_credit.items():
        text = f"{channels} channels have data, and the TaskManager grants no credit"
        yield Wait(_channels(handler, name), taskmanager, text, LOOK_THERE, since)
    for name, channels in unread.items():
        text = f"{channels} channels have data, and the TaskManager does not read its connection"
        yield Wait(_channels(handler, name), taskmanager, text, LOOK_THERE, since)
    for (name, (resource, text, remedy)), channels in for_data.items():
        text = f"{channels} channels: {text}"
        yield Wait(_channels(handler, name), resource, text, remedy, since)


def waiting_channels(handler: PeerHandler) -> int:
    """Return the number of channels of another TaskManager that wait."""
    (times,) = handler.times
    for_data, for_credit, sending = times.counts
    return for_data + for_credit + (0 if handler.connection.writable else sending)


def _waiting_readers(handler: PeerHandler) -> Iterator[CreditBasedViewReader]:
    writable = handler.connection.writable
    for reader in handler.readers.values():
        if reader.activity != SENDING or not writable:
            yield reader


def _channels(handler: PeerHandler, application_id: str) -> WaitParty:
    return WaitParty("channels", f"channels of {handler.connection.label}", application_id)


def _pipelined(
    handler: PeerHandler,
    reader: CreditBasedViewReader,
    producer: tuple[ShuffleKey, int, int],
    since: float | None,
) -> Iterator[Wait]:
    """Yield the waits around one channel that reads a pipelined partition."""
    key, map_attempt_id, index = producer
    party = gate_party(handler, reader.channel)
    is_unread = reader.activity == SENDING and not handler.connection.writable
    if reader.activity == WAITING_FOR_CREDIT or is_unread:
        waiter = subpartition(key, map_attempt_id, index)
        text = f"Its buffers wait for {party.name}"
        yield Wait(waiter, party, text, LOOK_THERE, since)
        taskmanager = WaitParty("taskmanager", handler.connection.label)
        lacks = "does not read its connection" if is_unread else "grants no credit"
        text = f"The channel has data, and the TaskManager {lacks}"
        yield Wait(party, taskmanager, text, LOOK_THERE, since)
    elif reader.activity == WAITING_FOR_DATA:
        partition = pipelined_partition(key, map_attempt_id)
        text = "The partition has nothing to read"
        yield Wait(party, partition, text, LOOK_AT_PRODUCER, since)


def oldest_requests(partitions: ResultPartitionManager) -> tuple[list[WaitingRequest], int]:
    """Return the oldest requests for partitions that are not here yet.

    Equal requests of several gates count once.

    Returns:
        At most as many requests as a status has waits, and the number of the others.
    """
    oldest = nsmallest(MAX_WAITS, partitions.waiting.values(), key=_first)
    most = MAX_REQUESTS // max(1, len(oldest))
    found: dict[tuple[SubpartitionRange, int | None], WaitingRequest] = {}
    listed = 0
    for requests in oldest:
        for each in islice(requests.values(), most):
            wanted, missing, began_at = each
            if found.setdefault((wanted, missing), each).began_at > began_at:
                found[wanted, missing] = each
            listed += 1
    longest = nsmallest(MAX_WAITS, found.values(), key=attrgetter("began_at"))
    return longest, partitions.waiting_requests - listed + len(found) - len(longest)


def _first(requests: dict[Future[None], WaitingRequest]) -> float:
    """Return the time of the first request for a shuffle."""
    return next(iter(requests.values())).began_at


def wait_of_request(partitions: ResultPartitionManager, waiting: WaitingRequest) -> Wait:
    """Return the wait of a request whose partition is not here yet."""
    wanted, missing, began_at = waiting
    key = wanted.shuffle
    if missing is None:
        name = f"a map output of shuffle {key.shuffle_id}"
        resource = WaitParty("map_output", name, key.application_id)
    elif partitions.pipelined.has(key, missing):
        resource = pipelined_partition(key, missing)
    else:
        resource = map_output(key, missing)
    text = f"{resource.name} is not here, or cannot be read yet"
    return Wait(request(wanted), resource, text, RUN_THE_TASK, began_at)
