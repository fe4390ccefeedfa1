"""A union of input gates: one reader for the data of several upstream tasks.

The gates take turns, however many channels each has; one with a priority event comes first.
Channels are numbered consecutively: those of the first gate, those of the second, and so on.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from itertools import accumulate

from ..errors import InvalidRequest
from ..gate.input_gate import GateStatistics, InputGate
from ..gate.readable_gate import BufferOrEvent, ReadableGate
from ..gate.task_events import send_to_all


class UnionInputGate(ReadableGate):
    """Reads several gates as one.

    Args:
        gates: They have all their channels (known or not) and no other reader.

    Raises:
        InvalidRequest: There is no gate, or one is part of a union already.
    """

    def __init__(self, gates: Sequence[InputGate]) -> None:
        if not gates:
            raise InvalidRequest("A union needs gates to read", value=0, limit="at least 1")
        super().__init__()
        self.gates = tuple(gates)
        self._offsets = [0, *accumulate(len(gate.channels) for gate in gates)]
        for number, gate in enumerate(self.gates):
            gate.set_reader(partial(self._gate_available, number))
            if gate.is_available:
                self._gate_available(number)

    @property
    def channels(self) -> int:
        """Number of channels of all gates."""
        return self._offsets[-1]

    # ---- reading ---------------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """True if nothing more will come from any gate."""
        return all(gate.has_ended for gate in self.gates)

    def _poll_source(self, number: int) -> BufferOrEvent | None:
        gate = self.gates[number]
        try:
            taken = gate.poll()
        finally:  # a failed channel leaves its gate available: the next poll raises it again
            self._gate_changed(number)
        if taken is None:
            return None
        return BufferOrEvent(self._offsets[number] + taken.channel_index, taken.buffer)

    # ---- to the producers ------------------------------------------------------------------------

    def resume_consumption(self, channel_index: int) -> None:
        """Resume a channel after a blocking event.

        Raises:
            InvalidRequest: There is no such channel, or nothing can have blocked it.
        """
        if not 0 <= channel_index < self.channels:
            raise InvalidRequest(
                "No such channel in the union", value=channel_index, limit=self.channels - 1
            )
        number = bisect_right(self._offsets, channel_index) - 1
        self.gates[number].resume_consumption(channel_index - self._offsets[number])

    def send_task_event(self, event_type: int, payload: bytes = b"") -> None:
        """Send an event to the producers of all channels that have not ended.

        Raises:
            SluiceError: The first of those that ``InputGate.send_task_event`` raises; every gate
                is tried.
        """
        send_to_all(self.gates, event_type, payload)

    def statistics(self) -> GateStatistics:
        """Return the totals of all gates, and the time spent waiting for any of them."""
        return sum_up([gate.statistics() for gate in self.gates], self.availability.idle_seconds)

    def release(self) -> None:
        """Release all gates. Idempotent; buffers already taken stay valid until released."""
        for gate in self.gates:
            gate.release()

    # ---- inner workings --------------------------------------------------------------------------

    def _gate_available(self, number: int) -> None:
        self._gate_changed(number)
        self.availability.wake()

    def _gate_changed(self, number: int) -> None:
        """Queue a gate that has something to read."""
        gate = self.gates[number]
        if gate.has_priority_event:
            self._hurry(number)
        elif gate.is_available:
            self._queue(number)


def sum_up(parts: Sequence[GateStatistics], idle_seconds: float) -> GateStatistics:
    """Add the statistics of several gates; ``idle_seconds`` is that of their common reader."""
    return GateStatistics(
        sum(part.channels for part in parts),
        sum(part.ended_channels for part in parts),
        sum(part.bytes_in_local for part in parts),
        sum(part.buffers_in_local for part in parts),
        sum(part.bytes_in_remote for part in parts),
        sum(part.buffers_in_remote for part in parts),
        idle_seconds,
    )
