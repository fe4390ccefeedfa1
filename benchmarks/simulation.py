"""One TaskManager of a large cluster while a shuffle is read, in virtual time, without sockets.

The workload is even: every host runs as many map and reduce tasks, and every block has the same
size. So one host is like all others, and receives as much from its peers as it sends to them.
The *watched* host is played channel by channel: its gates, buffers and credits, and at the other
end of each channel a sender that has everything at hand. Messages are encoded by
``sluice.protocol.schema`` and credit is counted by ``sluice.protocol.credit``; the rules for
floating buffers are those of ``sluice.shuffle.gate.buffer_manager``, for numbers of buffers instead
of memory.

Not played: time in the CPU, loss, and the queues of senders. Incoming data shares the watched
host's link; a message takes the link's time for its bytes and then the latency of one way.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sluice.protocol.credit import ReceiverCredit, SenderCredit
from sluice.protocol.events import encode_end_of_partition
from sluice.protocol.limits import MAX_LARGE_PAYLOAD_BYTES
from sluice.protocol.schema import (
    DATA,
    EVENT,
    AddCredit,
    BufferResponse,
    Message,
    PartitionRequest,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Callable

MAP_ATTEMPT_ID = 1 << 20
"""About what Spark's task attempt ids are in a large application: the size of requests."""

APPLICATION_ID = "app-20260101000000-0000"


@dataclass(frozen=True, slots=True)
class Workload:
    """A shuffle and the cluster it runs on.

    Attributes:
        hosts: TaskManagers, each with an even share of the tasks.
        maps: Map outputs, a multiple of the hosts.
        reducers: Reduce tasks, a multiple of the hosts.
        block_bytes: Bytes of each map task for each reduce task, including the block header.
        slots_per_host: Reduce tasks that run at a time on a host.
        partitions_per_task: Subpartitions that a reduce task reads, as one range.
    """

    hosts: int
    maps: int
    reducers: int
    block_bytes: int
    slots_per_host: int = 4
    partitions_per_task: int = 1

    def __post_init__(self) -> None:
        for name in ("maps", "reducers"):
            if getattr(self, name) % self.hosts:
                raise ValueError(
                    f"{name} = {getattr(self, name)} is not a multiple of the {self.hosts} hosts"
                )


@dataclass(frozen=True, slots=True)
class Setting:
    """The configuration of the TaskManagers, and the network between them.

    Attributes:
        segment_size_bytes: Size of a buffer.
        exclusive_buffers: Exclusive buffers of each remote channel.
        floating_buffers: Floating buffers of each gate.
        most_open_channels: Remote channels that a gate has open at a time; None for all.
        group_bytes: Most bytes of one frame.
        latency_seconds: Latency of one way.
        link_bytes_per_second: Incoming rate of the watched host.
        task_bytes_per_second: Rate at which a reduce task takes data.
    """

    segment_size_bytes: int = 32 * 1024
    exclusive_buffers: int = 2
    floating_buffers: int = 32
    most_open_channels: int | None = 64
    group_bytes: int = MAX_LARGE_PAYLOAD_BYTES
    latency_seconds: float = 250e-6
    link_bytes_per_second: float = 1.25e9
    task_bytes_per_second: float = 500e6


@dataclass(slots=True)
class Outcome:
    """The figures of the watched host.

    Attributes:
        seconds: Virtual time until its last reduce task had ended.
        messages: Messages of the peer leg for its channels, by type, both directions.
        control_bytes: Their bytes without payloads of data.
        data_bytes: Payloads of data that it received.
        credit_waits: Times that a sender had data and no credit left.
        most_segments: The most segments that were exclusive or lent at one time.
        most_open_channels: The most channels that were open at one time.
    """

    seconds: float = 0.0
    messages: Counter[str] = field(default_factory=Counter)
    control_bytes: int = 0
    data_bytes: int = 0
    credit_waits: int = 0
    most_segments: int = 0
    most_open_channels: int = 0


def simulate(workload: Workload, setting: Setting | None = None) -> Outcome:
    """Play the watched host's reduce tasks to their ends."""
    return _Host(workload, setting or Setting()).run()


class _Channel:
    """Both ends of a channel: the sender's remaining bytes, and the receiver's buffers."""

    __slots__ = (
        "arrived_end", "credit", "exclusive", "floating", "gate", "left_bytes", "number", "queued",
        "required", "sender", "sequence_number", "waiting",
    )  # fmt: skip

    def __init__(self, gate: _Gate, number: int, left_bytes: int, exclusive: int) -> None:
        self.gate = gate
        self.number = number
        self.left_bytes = left_bytes
        self.sender = SenderCredit(0)
        self.sequence_number = 0
        self.credit = ReceiverCredit(exclusive)
        self.exclusive = exclusive
        self.floating = 0
        self.required = exclusive
        self.waiting = False
        self.queued = 0  # groups that the task has not worked through
        self.arrived_end = False

    @property
    def missing(self) -> int:
        return self.required - self.exclusive - self.floating


class _Gate:
    """One reduce task: channels that wait to be opened, floating buffers, and the task's queue."""

    __slots__ = ("floating", "queue", "to_open", "unfinished", "waiters", "working")

    def __init__(self, channels: int, floating: int) -> None:
        self.floating = floating
        self.waiters: deque[_Channel] = deque()
        self.queue: deque[tuple[_Channel, int, int, int]] = deque()
        self.to_open = channels
        self.unfinished = channels
        self.working = False


class _Host:
    """The watched host and the events of its virtual time."""

    def __init__(self, workload: Workload, setting: Setting) -> None:
        self._workload = workload
        self._setting = setting
        self._outcome = Outcome()
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._numbers = itertools.count()
        self._link_free = 0.0
        self._tasks_left = workload.reducers // workload.hosts
        self._open_channels = 0
        self._floating_lent = 0
        self._maps_per_host = workload.maps // workload.hosts

    def run(self) -> Outcome:
        for _ in range(min(self._workload.slots_per_host, self._tasks_left)):
            self._start_task()
        while self._events:
            self._now, _, happen = heapq.heappop(self._events)
            happen()
        self._outcome.seconds = self._now
        return self._outcome

    # ---- virtual time and the wire ---------------------------------------------------------------

    def _after(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._now + seconds, next(self._order), happen))

    def _count(self, message: Message, payload: int = 0) -> int:
        """Count a message; return its bytes on the wire."""
        head = len(encode(message, payload))
        self._outcome.messages[type(message).__name__] += 1
        self._outcome.control_bytes += head
        return head + payload

    def _to_peer(self, message: Message, then: Callable[[], None]) -> None:
        self._count(message)
        self._after(self._setting.latency_seconds, then)

    def _from_peer(self, message: Message, payload: int, then: Callable[[], None]) -> None:
        taken = self._count(message, payload) / self._setting.link_bytes_per_second
        self._link_free = max(self._link_free, self._now) + taken
        self._after(self._link_free - self._now + self._setting.latency_seconds, then)

    # ---- tasks and channels ----------------------------------------------------------------------

    def _start_task(self) -> None:
        if not self._tasks_left:
            return
        self._tasks_left -= 1
        gate = _Gate(self._workload.hosts - 1, self._setting.floating_buffers)
        most = self._setting.most_open_channels or gate.to_open
        for _ in range(min(most, gate.to_open)):
            self._open(gate)
        if not gate.unfinished:
            self._start_task()

    def _open(self, gate: _Gate) -> None:
        workload, setting = self._workload, self._setting
        gate.to_open -= 1
        size = workload.block_bytes * self._maps_per_host * workload.partitions_per_task
        channel = _Channel(gate, next(self._numbers), size, setting.exclusive_buffers)
        self._open_channels += 1
        outcome = self._outcome
        outcome.most_open_channels = max(outcome.most_open_channels, self._open_channels)
        self._note_segments()
        request = PartitionRequest(
            channel.number,
            APPLICATION_ID,
            1,
            [MAP_ATTEMPT_ID + each for each in range(self._maps_per_host)],
            workload.reducers - 1,
            workload.reducers,
            setting.exclusive_buffers,
        )
        self._to_peer(request, lambda: self._credit_arrives(channel, setting.exclusive_buffers))

    def _close(self, channel: _Channel) -> None:
        gate = channel.gate
        self._open_channels -= 1
        self._give_back(gate, channel.floating)
        gate.unfinished -= 1
        if gate.to_open:
            self._open(gate)
        elif not gate.unfinished:
            self._start_task()

    def _note_segments(self) -> None:
        held = self._open_channels * self._setting.exclusive_buffers + self._floating_lent
        self._outcome.most_segments = max(self._outcome.most_segments, held)

    # ---- the sender ------------------------------------------------------------------------------

    def _credit_arrives(self, channel: _Channel, credit: int) -> None:
        channel.sender.add(credit)
        size = self._setting.segment_size_bytes
        while channel.left_bytes and channel.sender.available:
            most = min(channel.sender.available * size, self._setting.group_bytes)
            length = min(channel.left_bytes, most)
            buffers = -(-length // size)
            channel.left_bytes -= length
            channel.sender.available -= buffers
            self._send(channel, length, buffers, -(-channel.left_bytes // size))
        if channel.left_bytes:
            self._outcome.credit_waits += 1
        elif not channel.arrived_end:
            self._send_end(channel)

    def _send(self, channel: _Channel, length: int, buffers: int, backlog: int) -> None:
        message = BufferResponse(channel.number, channel.sequence_number, backlog, DATA)
        channel.sequence_number += 1
        self._outcome.data_bytes += length
        self._from_peer(message, length, lambda: self._arrives(channel, length, buffers, backlog))

    def _send_end(self, channel: _Channel) -> None:
        channel.left_bytes = 0
        message = BufferResponse(channel.number, channel.sequence_number, 0, EVENT)
        event = encode_end_of_partition(channel.sequence_number, channel.sequence_number)
        self._outcome.control_bytes += len(event)
        channel.arrived_end = True  # nothing is sent behind it; the receiver hears of it below
        self._from_peer(message, len(event), lambda: self._end_arrives(channel))

    # ---- the receiver ----------------------------------------------------------------------------

    def _arrives(self, channel: _Channel, length: int, buffers: int, backlog: int) -> None:
        floating = min(buffers, channel.floating)
        exclusive = buffers - floating
        channel.floating -= floating
        channel.exclusive -= exclusive
        if channel.exclusive < 0:
            raise AssertionError("data without a buffer: the model grants more than it has")
        channel.queued += 1
        channel.gate.queue.append((channel, length, exclusive, floating))
        channel.required = backlog + self._setting.exclusive_buffers
        if not channel.waiting:
            self._ask_for_floating(channel)
        if channel.credit.used(channel.number, buffers):
            self._announce(channel)
        self._work(channel.gate)

    def _end_arrives(self, channel: _Channel) -> None:
        channel.queued += 1
        channel.gate.queue.append((channel, 0, 0, 0))
        self._work(channel.gate)

    def _ask_for_floating(self, channel: _Channel) -> None:
        """Give a channel its missing buffers if the gate has them; it waits for others."""
        gate = channel.gate
        taken = min(gate.floating, max(channel.missing, 0))
        if taken:
            gate.floating -= taken
            self._floating_lent += taken
            channel.floating += taken
            self._note_segments()
            self._free(channel, taken)
        channel.waiting = channel.missing > 0
        if channel.waiting:
            gate.waiters.append(channel)

    def _give_back(self, gate: _Gate, floating: int) -> None:
        gate.floating += floating
        self._floating_lent -= floating
        while gate.floating and gate.waiters:
            self._ask_for_floating(gate.waiters.popleft())

    def _free(self, channel: _Channel, buffers: int) -> None:
        if channel.credit.free(buffers):
            self._announce(channel)

    def _announce(self, channel: _Channel) -> None:
        """Announce, after this instant, the buffers that have become free by then."""
        self._after(0.0, lambda: self._announce_now(channel))

    def _announce_now(self, channel: _Channel) -> None:
        if not channel.arrived_end and (credit := channel.credit.announce()):
            message = AddCredit(channel.number, credit)
            self._to_peer(message, lambda: self._credit_arrives(channel, credit))

    # ---- the reduce task -------------------------------------------------------------------------

    def _work(self, gate: _Gate) -> None:
        if gate.working or not gate.queue:
            return
        gate.working = True
        channel, length, exclusive, floating = gate.queue.popleft()
        seconds = length / self._setting.task_bytes_per_second
        self._after(seconds, lambda: self._worked(channel, length, exclusive, floating))

    def _worked(self, channel: _Channel, length: int, exclusive: int, floating: int) -> None:
        gate = channel.gate
        gate.working = False
        channel.queued -= 1
        if length:
            self._recycle(channel, exclusive, floating)
        else:
            self._close(channel)
        self._work(gate)

    def _recycle(self, channel: _Channel, exclusive: int, floating: int) -> None:
        if exclusive:
            channel.exclusive += exclusive
            surplus = max(0, min(exclusive, channel.floating, -channel.missing))
            channel.floating -= surplus
            floating += surplus
            if surplus < exclusive:
                self._free(channel, exclusive - surplus)
        gate = channel.gate
        alone = channel.waiting and len(gate.waiters) == 1
        if floating and alone and floating < channel.missing:
            channel.floating += floating
            self._free(channel, floating)
        elif floating:
            self._give_back(gate, floating)
