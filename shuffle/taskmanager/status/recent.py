"""The recent history of a TaskManager: a ring of samples of the last minutes, for small charts.

A sample is taken every ``SAMPLE_SECONDS`` out of counters and sums that are kept anyway, so the
data path does nothing for it. Only the channels of gates are looked at, and at most
``MAX_SAMPLED`` gates and connections for a sample: it takes tens of microseconds.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, NamedTuple

import msgspec
from msgspec import structs

from ...metric import Combined
from ..serve.channel_times import WAITING_FOR_CREDIT
from ..serve.serving_handler import ServingHandler

if TYPE_CHECKING:
    from ..wiring import NetworkEnvironment

SAMPLE_SECONDS: Final = 5
SAMPLES: Final = 60
"""Samples that are kept: five minutes."""

MAX_SAMPLED: Final = 512
"""Maximum number of connections, and of gates, that a sample looks at. With more connections it
looks at others each time; of more gates it sees the first ones. Their channels stand for all."""


class RecentSample(msgspec.Struct, frozen=True, gc=False):
    """Amounts between two samples, and the state at the second one.

    Data processes sample in the same slots, and their samples are added.
    """

    key_fields: ClassVar[tuple[str, ...]] = ("slot",)

    slot: int = 0
    """Number of its time slot of ``SAMPLE_SECONDS`` on the clock of the host; later ones have
    larger numbers, and a missing one was not sampled."""
    age_seconds: Annotated[float, Combined("max")] = 0.0
    """Time since the sample."""
    seconds: Annotated[float, Combined("max")] = 0.0
    """Time between this sample and the one before."""
    bytes_in: int = 0
    """Data from map tasks and from other TaskManagers."""
    bytes_out: int = 0
    """Data to reduce tasks and to other TaskManagers."""
    commits: int = 0
    """Map outputs committed."""
    producer_seconds: float = 0.0
    """Time for which outputs were open, all outputs together."""
    producer_wait_seconds: float = 0.0
    """Time for which their producers waited for credit."""
    channels: int = 0
    """Channels that are read, of the gates and connections that were looked at."""
    channels_waiting_for_credit: int = 0
    """Those of them that have data and no credit."""
    max_lag_seconds: Annotated[float, Combined("max")] = 0.0
    """The worst lag of the event loop."""
    drawn_segments: int = 0
    """Segments that are not free in the network pool: lent, or idle in local pools."""
    memory_tier_bytes: int = 0
    disk_tier_bytes: int = 0

    @property
    def back_pressured_share(self) -> float:
        """Part of the time of producers in which they waited for credit, from 0 to 1."""
        return _share(self.producer_wait_seconds, self.producer_seconds)

    @property
    def credit_wait_share(self) -> float:
        """Part of the channels that waited for credit, from 0 to 1."""
        return _share(self.channels_waiting_for_credit, self.channels)


def _share(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole > 0 else 0.0


def merged_samples(samples: Sequence[RecentSample]) -> tuple[RecentSample, ...]:
    """Return the samples of several data processes in their order, at most ``SAMPLES``."""
    return tuple(sorted(samples, key=lambda each: each.slot)[-SAMPLES:])


class _Totals(NamedTuple):
    """Totals that only grow."""

    bytes_in: int
    bytes_out: int
    commits: int
    producer_seconds: float
    producer_wait_seconds: float


class RecentHistory:
    """Takes the samples of a TaskManager.

    Args:
        environment: Has the counters.
    """

    def __init__(self, environment: "NetworkEnvironment") -> None:
        self._environment = environment
        self._samples: deque[tuple[float, RecentSample]] = deque(maxlen=SAMPLES)
        self._before = self._totals()
        self._sampled_at = monotonic()
        self._slot = self._slot_of(self._sampled_at)
        self._worst_lag_seconds = 0.0
        self._first = 0  # of the connections to look at

    def measured(self, lag_seconds: float) -> None:
        """Take a sample if it is time; called each second with the lag of the event loop."""
        self._worst_lag_seconds = max(self._worst_lag_seconds, lag_seconds)
        now = monotonic()
        if self._slot_of(now) != self._slot:
            self._sample(now)

    def samples(self) -> tuple[RecentSample, ...]:
        """Return the samples, the oldest first."""
        now = monotonic()
        return tuple(
            structs.replace(sample, age_seconds=round(max(0.0, now - at), 3))
            for at, sample in self._samples
        )

    def _sample(self, now: float) -> None:
        environment = self._environment
        totals, before = self._totals(), self._before
        pool = environment.network_pool
        channels, waiting = self._channels()
        memory_bytes, disk_bytes = environment.store.used_bytes()
        sample = RecentSample(
            self._slot_of(now),
            0.0,
            round(now - self._sampled_at, 3),
            totals.bytes_in - before.bytes_in,
            totals.bytes_out - before.bytes_out,
            totals.commits - before.commits,
            round(totals.producer_seconds - before.producer_seconds, 6),
            round(totals.producer_wait_seconds - before.producer_wait_seconds, 6),
            channels,
            waiting,
            round(self._worst_lag_seconds, 6),
            pool.total_segments - pool.available_segments,
            memory_bytes,
            disk_bytes,
        )
        self._samples.append((now, sample))
        self._before, self._sampled_at, self._slot = totals, now, sample.slot
        self._worst_lag_seconds = 0.0

    def _totals(self) -> _Totals:
        counters, services = self._environment.counters, self._environment.producer_services
        return _Totals(
            counters.producer_bytes_in + counters.peer_bytes_in,
            counters.peer_bytes_out
            + counters.consumer_bytes_out_local
            + counters.consumer_bytes_out_remote,
            counters.map_outputs_committed,
            services.open_outputs.seconds,
            services.map_output_credit_wait.seconds + services.pipelined_credit_wait.seconds,
        )

    def _channels(self) -> tuple[int, int]:
        """Return the channels that are read, and those that wait for credit, of some gates."""
        handlers = self._environment.handlers
        if self._first >= len(handlers):
            self._first = 0
        channels = waiting = gates = 0
        for handler in islice(handlers.values(), self._first, self._first + MAX_SAMPLED):
            if isinstance(handler, ServingHandler):
                for times in islice(handler.times, MAX_SAMPLED - gates):
                    gates += 1
                    channels += sum(times.counts)
                    waiting += times.counts[WAITING_FOR_CREDIT]
                if gates >= MAX_SAMPLED:
                    break
        self._first += MAX_SAMPLED
        return channels, waiting

    @staticmethod
    def _slot_of(now: float) -> int:
        return int(now // SAMPLE_SECONDS)
