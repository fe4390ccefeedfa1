"""Waits of the serving side: gates and channels for credit or data, requests for partitions.

A gate has one wait for each of its causes, however many channels it has, and so has a connection of
another TaskManager, except for its channels to pipelined partitions.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from ...gate.local_input_channel import LocalInputChannel
from ...gate.remote_input_channel import RemoteInputChannel
from ...names import SubpartitionRange
from ...wait_status import (
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
    from collections.abc import Iterator
    from typing import TypeAlias

    from ...gate.channel_opener import ChannelSource
    from ...gate.input_gate import InputChannel, InputGate
    from ...names import ShuffleKey
    from ...partition.view import SubpartitionView
    from .channel_times import ChannelTimes
    from .credit_based_view_reader import CreditBasedViewReader
    from .peer_handler import PeerHandler
    from .result_partition_manager import ResultPartitionManager

    _Cause: TypeAlias = tuple[WaitParty, str, str]

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


def waits_of_gates(handler: ConsumerHandler) -> Iterator[Wait]:
    """Yield the waits of a consumer's gates."""
    connection = handler.connection
    reader_party = WaitParty("reader", connection.label, connection.application_id)
    for number, (gate, readers) in handler.gates.items():
        times = handler.gate_times[number]
        waiting_for_data, waiting_for_credit, sending = (
            times.counts[each] for each in (WAITING_FOR_DATA, WAITING_FOR_CREDIT, SENDING)
        )
        party = gate_party(handler, number)
        if waiting_for_credit:
            text = (
                f"{waiting_for_credit} of {len(readers)} channels have data, and their reader "
                "grants no credit"
            )
            since = None if sending and connection.writable else times.changed_at
            yield Wait(party, reader_party, text, READ_THE_GATE, since)
            yield from _held_up(party, gate, readers, since)
        elif sending and not connection.writable:
            text = "The reader does not read its connection"
            yield Wait(party, reader_party, text, READ_THE_GATE, times.changed_at)
        elif waiting_for_data and not sending:
            yield from _causes(party, gate, readers, times)


def _held_up(
    party: WaitParty, gate: InputGate, readers: list[CreditBasedViewReader], since: float | None
) -> Iterator[Wait]:
    """Yield the local pipelined subpartitions that wait for a gate."""
    for reader, channel, source in zip(readers, gate.channels, gate.sources, strict=False):
        if (
            reader.activity == WAITING_FOR_CREDIT
            and isinstance(channel, LocalInputChannel)
            and channel.is_pipelined
        ):
            key, start, _ = gate.opener.wanted
            waiter = subpartition(key, source.map_attempt_ids[0], start)
            text = f"Its buffers wait for credit of channel {reader.channel}"
            yield Wait(waiter, party, text, READ_THE_GATE, since)


def _causes(
    party: WaitParty,
    gate: InputGate,
    readers: list[CreditBasedViewReader],
    times: ChannelTimes,
) -> Iterator[Wait]:
    """Yield one wait for each cause for which a gate has no data."""
    causes: Counter[_Cause] = Counter()
    sought = request(gate.opener.wanted), "the partition is not here yet", RUN_THE_TASK
    for reader, channel, source in zip(readers, gate.channels, gate.sources, strict=False):
        if reader.activity == WAITING_FOR_DATA and reader.view is not None:
            cause = _cause(gate, channel, source, sought)
            if cause is not None:
                causes[cause] += 1
    for (resource, text, remedy), channels in causes.items():
        some = "1 channel" if channels == 1 else f"{channels} channels"
        yield Wait(party, resource, f"{some}: {text}", remedy, times.changed_at)


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


def waits_of_peer(handler: PeerHandler) -> Iterator[Wait]:
    """Yield the waits of the channels that another TaskManager reads."""
    connection = handler.connection
    (times,) = handler.times
    since = None if times.counts[SENDING] and connection.writable else times.changed_at
    taskmanager = WaitParty("taskmanager", connection.label)
    for_credit: Counter[str] = Counter()
    unread: Counter[str] = Counter()
    for_data: Counter[tuple[str, _Cause]] = Counter()
    for reader in list(handler.readers.values()):
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
            unread[name] += not connection.writable
        elif reader.activity == WAITING_FOR_DATA:
            found = _cause_of_view(reader.view)
            if found is not None:
                for_data[name, found] += 1
    for name, channels in for_credit.items():
        text = f"{channels} channels have data, and the TaskManager grants no credit"
        yield Wait(_channels(handler, name), taskmanager, text, LOOK_THERE, since)
    for name, channels in unread.items():
        if channels:
            text = (
                f"{channels} channels have data, and the TaskManager does not read its connection"
            )
            yield Wait(_channels(handler, name), taskmanager, text, LOOK_THERE, since)
    for (name, (resource, text, remedy)), channels in for_data.items():
        text = f"{channels} channels: {text}"
        yield Wait(_channels(handler, name), resource, text, remedy, since)


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


def waits_of_requests(partitions: ResultPartitionManager) -> Iterator[Wait]:
    """Yield the requests whose partitions are not here yet, the same ones of several gates once."""
    for key, requests in partitions.waiting.items():
        began: dict[tuple[int, int, int | None], float] = {}
        for (_, start, end), missing, began_at in requests.values():
            before = began.get((start, end, missing), began_at)
            began[start, end, missing] = min(before, began_at)
        for (start, end, missing), began_at in began.items():
            if missing is None:
                resource = WaitParty(
                    "map_output", f"a map output of shuffle {key.shuffle_id}", key.application_id
                )
            else:
                resource = map_output(key, missing)
                if partitions.pipelined.has(key, missing):
                    resource = pipelined_partition(key, missing)
            text = f"{resource.name} is not here, or cannot be read yet"
            waiter = request(SubpartitionRange(key, start, end))
            yield Wait(waiter, resource, text, RUN_THE_TASK, began_at)
