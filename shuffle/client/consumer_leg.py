"""The consumer leg, client side: one connection, the channels of many gates.

A channel does not see whether another TaskManager or its own one sends: memory, credit, sequence
numbers and failures are those of a peer connection, and so is the code. Only opening and closing
differ: a gate is requested with all its channels at once.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...protocol.errors import SluiceError
from ...protocol.limits import DAMAGE_REPORTS, MAX_LOST_ATTEMPTS
from ...protocol.remote_error import RemoteError
from ...protocol.schema import (
    CloseGate,
    ErrorResponse,
    GateChannel,
    GateClosed,
    GateOpened,
    HelloAck,
    Message,
    OpenGate,
    ReportDamage,
)
from ...transport.connection import Connection
from ...transport.errors import ConnectionLost, DeadlineExceeded
from ..counters import Counters
from ..gate.channel_opener import ChannelSource
from ..gate.partition_request_client import PartitionRequestClient
from ..gate.remote_input_channel import RemoteInputChannel
from ..names import SubpartitionRange
from .traced import trace_context

if TYPE_CHECKING:
    from ..legs.producer_leg import SilenceWatch


class _Gate(NamedTuple):
    channels: Sequence[RemoteInputChannel]
    deadline: asyncio.TimerHandle


class ConsumerLeg(PartitionRequestClient):
    """Opens gates on one TaskManager.

    Args:
        connection: The open connection.
        ack: The description of the TaskManager in its handshake.
        counters: The client's counters.
        answer_timeout_seconds: Time for the TaskManager to open a gate.
    """

    def __init__(
        self,
        connection: Connection,
        ack: HelloAck,
        counters: Counters,
        answer_timeout_seconds: float,
    ) -> None:
        super().__init__(connection, ack, counters)
        self._answer_timeout_seconds = answer_timeout_seconds
        self._opening: dict[int, _Gate] = {}
        self._gates: set[int] = set()
        """Numbers in use: of open gates, and of closed ones until the close is confirmed."""
        self._closing_gates: set[int] = set()
        self.lost: SluiceError | None = None
        self.closed = asyncio.Event()
        """Set when the connection is gone."""
        self.watch: SilenceWatch | None = None
        """Ends the connection if the TaskManager is silent; set by its owner."""

    @property
    def is_waiting(self) -> bool:
        """Whether the TaskManager has something to send, now or later."""
        return bool(self._channels or self._gates)

    def open_gate(
        self,
        wanted: SubpartitionRange,
        channels: Sequence[tuple[RemoteInputChannel, ChannelSource]],
    ) -> int:
        """Ask for a gate with these channels, which have their buffers already.

        A refusal, or no answer in time, fails all of them.

        Returns:
            The number of the gate, for :meth:`close_gate`.

        Raises:
            ConnectionLost: The connection has ended meanwhile.
        """
        if self.closing:
            raise ConnectionLost(f"Connection to {self.connection.remote} was lost")
        gate = self._new_number()
        named: list[GateChannel] = []
        initial_credit = channels[0][0].initial_credit
        for channel, source in channels:
            channel.number = self._new_number()
            self._channels[channel.number] = channel
            self._counters.credits_sent += initial_credit
            named.append(
                GateChannel(
                    channel.number,
                    source.taskmanager_id,
                    source.address.host,
                    source.address.port,
                    list(source.map_attempt_ids),
                )
            )
        self._gates.add(gate)
        deadline = asyncio.get_running_loop().call_later(
            self._answer_timeout_seconds, self._opening_late, gate
        )
        self._opening[gate] = _Gate([channel for channel, _ in channels], deadline)
        trace = trace_context(gate, self.features)
        if trace is not None:
            self.connection.send(trace)
        self.connection.send(
            OpenGate(
                gate, wanted.shuffle.shuffle_id, wanted.start, wanted.end, initial_credit, named
            )
        )
        for channel, _ in channels:
            channel.request_sent()
        return gate

    def close_gate(self, gate: int) -> None:
        """Close a gate; the owner of its channels releases them. Idempotent."""
        if gate not in self._gates or gate in self._closing_gates:
            return
        opening = self._opening.pop(gate, None)
        if opening is not None:
            opening.deadline.cancel()
        if not self.closing:
            self._closing_gates.add(gate)
            self.connection.send(CloseGate(gate))

    def report_damage(self, wanted: SubpartitionRange, source: ChannelSource) -> None:
        """Report that stored data of a source arrived damaged.

        Nothing is sent to a TaskManager that does not know the message, or does not read.
        """
        if self.closing or not self.features & DAMAGE_REPORTS:
            return
        attempts = list(source.map_attempt_ids)
        for first in range(0, len(attempts), MAX_LOST_ATTEMPTS):
            if self.connection.writable:
                self.connection.send(
                    ReportDamage(
                        wanted.shuffle.shuffle_id,
                        wanted.start,
                        wanted.end,
                        source.taskmanager_id,
                        source.address.host,
                        source.address.port,
                        attempts[first : first + MAX_LOST_ATTEMPTS],
                    )
                )

    def message_received(self, message: Message, payload_length: int) -> None:
        """Handle a message of the TaskManager."""
        if type(message) is GateOpened:
            opening = self._opening.pop(message.gate, None)
            if opening is not None:
                opening.deadline.cancel()
        elif type(message) is GateClosed:
            self._gates.discard(message.gate)
            self._closing_gates.discard(message.gate)
        elif type(message) is ErrorResponse and message.channel in self._opening:
            self._gates.discard(message.channel)
            self._fail(message.channel, RemoteError(message))
        else:
            super().message_received(message, payload_length)

    def connection_lost(self, error: SluiceError) -> None:
        """Fail every channel."""
        self.lost = error
        self.closed.set()
        if self.watch is not None:
            self.watch.close()
            self.watch = None  # it refers to this leg
        for opening in self._opening.values():
            opening.deadline.cancel()
        self._opening.clear()
        self._gates.clear()
        self._closing_gates.clear()
        super().connection_lost(error)

    def _opening_late(self, gate: int) -> None:
        self._closing_gates.add(gate)
        self.connection.send(CloseGate(gate))  # it may still open, and hold memory
        self._fail(
            gate,
            DeadlineExceeded(
                "TaskManager does not answer OpenGate",
                value=self.connection.remote,
                limit=f"{self._answer_timeout_seconds} s",
                remedy="Check its log and load, or raise answer_timeout_seconds",
            ),
        )

    def _fail(self, gate: int, error: SluiceError) -> None:
        opening = self._opening.pop(gate)
        opening.deadline.cancel()
        for channel in opening.channels:
            self._channels.pop(channel.number, None)
            channel.fail(error)

    def _new_number(self) -> int:
        """Return a number that no channel and no gate has; both share one space."""
        while True:
            number = self._free_number()
            if number not in self._gates:
                return number
