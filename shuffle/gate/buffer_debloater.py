"""Buffer debloating: makes the buffers of a gate smaller when its reader is slow.

Data in flight fills the buffers however long a slow reader takes for it, and a barrier waits behind
that data. So the size of the buffers follows the reader: the bytes that it takes in the target
time, divided by the buffers in use. A fast reader keeps full buffers.

The buffers in use are all those between the producer's ``emit`` and the reader: those that wait in
the gate and at the TaskManagers, which the channels report, and :data:`UNSEEN_BUFFERS` of each
channel that has any, which nobody reports.

The arithmetic has no clock (:class:`BufferSizeCalculator`); :class:`BufferDebloater` asks it once a
period and announces its answer.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

ANNOUNCE_THRESHOLD: Final = 0.1
"""A size is announced if it differs from the last one by more than this part of it. The data in
flight is then at most 1 / (1 - 0.1) = 1.11 times that of the target."""

UNSEEN_BUFFERS: Final = 3
"""Most buffers of a channel that no queue on the way reports while its reader asks for a size: the
producing client fills one or keeps it for want of credit, is about to write the records of another,
and the reader reads the third."""

SMOOTHING: Final = 0.3
"""Weight of the last period in the averages."""

LEAST_BUSY_PART: Final = 0.01
"""Part of a period for which a reader that took data counts as busy, at least."""


class DebloatSettings(NamedTuple):
    """The aim and the bounds of a gate's debloating.

    Attributes:
        target_seconds: Time that the reader should need for the data in flight.
        period_seconds: Time between two measurements.
        least_bytes: Smallest size to announce.
        largest_bytes: Largest one: a segment.
    """

    target_seconds: float
    period_seconds: float
    least_bytes: int
    largest_bytes: int


class DebloatConfig(Protocol):
    """The part of a configuration that is about debloating."""

    @property
    def debloat_target_seconds(self) -> float | None:
        """The target; None if it is off."""

    @property
    def debloat_period_seconds(self) -> float:
        """Time between two measurements."""

    @property
    def debloat_min_buffer_size_bytes(self) -> int:
        """Smallest size to announce."""


def debloat_settings(config: DebloatConfig, segment_size_bytes: int) -> DebloatSettings | None:
    """Return the settings that a configuration asks for; None if debloating is off."""
    if config.debloat_target_seconds is None:
        return None
    return DebloatSettings(
        config.debloat_target_seconds,
        config.debloat_period_seconds,
        min(config.debloat_min_buffer_size_bytes, segment_size_bytes),
        segment_size_bytes,
    )


class BufferSizeCalculator:
    """Follows the throughput and the buffers in use of one gate, by exponential averages.

    Args:
        settings: The aim and the bounds.

    Attributes:
        size_bytes: The size that was announced last; the largest one before.
        throughput: Bytes per second of busy time; None before the first data.
        buffers_in_use: Buffers with data, here, at the sender and with the producing client.
    """

    __slots__ = ("_settings", "buffers_in_use", "size_bytes", "throughput")

    def __init__(self, settings: DebloatSettings) -> None:
        self._settings = settings
        self.size_bytes = settings.largest_bytes
        self.throughput: float | None = None
        self.buffers_in_use = 0.0

    @property
    def in_flight_seconds(self) -> float | None:
        """Time the reader needs for the buffers in use if they are full; None if not known."""
        if not self.throughput:
            return None
        return self.buffers_in_use * self.size_bytes / self.throughput

    def measured(self, consumed_bytes: int, busy_seconds: float, buffers: int) -> int | None:
        """Update the averages with one period.

        Args:
            consumed_bytes: Bytes that the reader has taken in the period.
            busy_seconds: Part of the period in which the reader did not wait for data.
            buffers: Buffers in use at its end.

        Returns:
            The size to announce, or None if the last one will do. A bound is announced however
            near the last size was.
        """
        known = self.throughput
        if busy_seconds <= 0 or (known is None and not consumed_bytes):
            return None  # nothing came, or nothing was requested: the reader was not measured
        throughput = consumed_bytes / busy_seconds
        if known is None:
            self.buffers_in_use = float(buffers)
        else:
            throughput = known + SMOOTHING * (throughput - known)
            self.buffers_in_use += SMOOTHING * (buffers - self.buffers_in_use)
        self.throughput = throughput
        settings = self._settings
        wish = settings.target_seconds * throughput / max(1.0, self.buffers_in_use)
        size_bytes = round(min(max(wish, settings.least_bytes), settings.largest_bytes))
        last = self.size_bytes
        if size_bytes == last:
            return None
        at_bound = size_bytes in (settings.least_bytes, settings.largest_bytes)
        if not at_bound and abs(size_bytes - last) <= ANNOUNCE_THRESHOLD * last:
            return None
        self.size_bytes = size_bytes
        return size_bytes


class QueuedData(NamedTuple):
    """The data of a channel that its reader has not taken.

    Attributes:
        buffers: Data buffers, here, at the sender and with the producing client.
        bytes_here: Bytes that the channel has counted and the reader has not taken.
    """

    buffers: int
    bytes_here: int


def all_in_flight(buffers: int) -> int:
    """Add the unseen buffers of a channel to those that wait in its queues.

    If none waits the channel is as fast as its producer, which then holds none back.
    """
    return buffers + UNSEEN_BUFFERS if buffers else 0


class MeasuredChannel(Protocol):
    """A channel as the debloater sees it."""

    @property
    def bytes_in(self) -> int:
        """Payload bytes of data so far."""

    def queued_data(self) -> QueuedData:
        """Return the amount of data that waits to be read."""


class DebloatedGate(Protocol):
    """A gate as the debloater sees it."""

    @property
    def channels(self) -> Sequence[MeasuredChannel]:
        """Its channels."""

    @property
    def has_ended(self) -> bool:
        """True if nothing more will come."""

    def announce_buffer_size(self, size_bytes: int) -> None:
        """Ask all producers for buffers of at most this size from now on."""


class BufferDebloater:
    """Measures a gate once a period, and announces sizes, from the start until it is stopped.

    Args:
        gate: The gate; the debloater stops by itself when it has ended.
        settings: The aim and the bounds.
        busy_seconds: Tells the time so far in which the gate's reader did not wait for data.
    """

    def __init__(
        self, gate: DebloatedGate, settings: DebloatSettings, busy_seconds: Callable[[], float]
    ) -> None:
        self.calculator = BufferSizeCalculator(settings)
        self._gate = gate
        self._period_seconds = settings.period_seconds
        self._busy_seconds = busy_seconds
        self._consumed_bytes = 0
        self._busy_before = busy_seconds()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        """True between :meth:`start` and the end."""
        return self._timer is not None

    def start(self) -> None:
        """Begin with the first period. Idempotent."""
        if self._timer is None:
            self._set_timer()

    def stop(self) -> None:
        """Stop measuring; the size that was announced last stays. Idempotent."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def recalculate(self) -> None:
        """End a period now: measure, and announce a size if it has changed enough."""
        buffers = consumed_bytes = 0
        for channel in self._gate.channels:
            queued = channel.queued_data()
            buffers += queued.buffers
            consumed_bytes += channel.bytes_in - queued.bytes_here
        # A failed channel has dropped its data, which must not count against later periods.
        taken = max(0, consumed_bytes - self._consumed_bytes)
        self._consumed_bytes = consumed_bytes
        busy_seconds = self._busy_seconds()
        busy = busy_seconds - self._busy_before
        self._busy_before = busy_seconds
        least_busy = self._period_seconds * LEAST_BUSY_PART
        if busy < least_busy:
            busy = least_busy if taken else 0.0
        size_bytes = self.calculator.measured(taken, busy, buffers)
        if size_bytes is not None:
            self._gate.announce_buffer_size(size_bytes)

    def _set_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._period_seconds, self._period_over)

    def _period_over(self) -> None:
        self._timer = None
        if not self._gate.has_ended:
            self._set_timer()
            self.recalculate()
