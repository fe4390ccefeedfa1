"""Statuses of a busy TaskManager: as many gates and applications as wanted, numbers that move."""

from __future__ import annotations

import copy
from typing import Any

from msgspec import structs

from sluice.shuffle.taskmanager.bounds.accounts import ApplicationStatus, HoldingStatus, Resource
from sluice.shuffle.taskmanager.ingest.producing_status import ProducersStatus
from sluice.shuffle.taskmanager.serve.serving_status import (
    ChannelStatus,
    GateStatus,
    ServedChannelsStatus,
)
from sluice.shuffle.taskmanager.status.pool_status import NetworkPoolStatus, PoolStatus
from sluice.shuffle.taskmanager.status.status import ConnectionStatus, TaskManagerStatus
from sluice.shuffle.taskmanager.store.store_status import ShuffleStatus, TierStatus
from tools.docs.sample_status import STATUS

GIB = 1 << 30
PRESSED_EVERY = 7
"""Of so many gates one has a reader that does not read."""


class StatusWithStory(TaskManagerStatus, frozen=True):
    """A status whose waits and history are what a test or a picture wants to show."""

    waits: Any = ()
    waits_omitted: int = 0
    recent: Any = ()


def with_story(
    status: TaskManagerStatus, waits: list[dict[str, object]], recent: Any = ()
) -> StatusWithStory:
    """Return a status with waits, and samples of the last minutes, as their JSON has them."""
    kept = {name: getattr(status, name) for name in TaskManagerStatus.__struct_fields__}
    return StatusWithStory(**kept | {"waits": waits, "waits_omitted": 0, "recent": recent})


def busy_status(
    seconds: float, *, gates: int = 12, channels: int = 8, applications: int = 5, number: int = 1
) -> TaskManagerStatus:
    """Return the status of a healthy, busy TaskManager some time after its start.

    Args:
        seconds: Time since the start; all counters grow with it.
        gates: Open gates.
        channels: Channels of each gate.
        applications: Applications with gates, data and quotas.
        number: Tells TaskManagers of a cluster apart.
    """
    names = [f"app-20261129-{each:04}" for each in range(applications)]
    counters = copy.copy(STATUS.counters)
    counters.producer_bytes_in = int(180e6 * seconds)
    counters.consumer_bytes_out_local = int(50e6 * seconds)
    counters.consumer_bytes_out_remote = int(110e6 * seconds)
    counters.peer_bytes_in = int(110e6 * seconds)
    counters.peer_bytes_out = int(95e6 * seconds)
    counters.map_outputs_committed = int(8 * seconds)
    return structs.replace(
        STATUS,
        taskmanager_id=f"tm-{number}",
        address=f"node-{number}:7337",
        uptime_seconds=3600.0 + seconds,
        storage=(
            TierStatus("memory", "/dev/shm/sluice", 4 * GIB, 3 * GIB, True, GIB, "", GIB, 1200),
            TierStatus("disk", "/data/1", None, 210 * GIB, True, 650 * GIB, "", GIB, 9100),
            TierStatus("disk", "/data/2", None, 801 * GIB, True, 59 * GIB, "", GIB, 30100),
        ),
        network_pool=NetworkPoolStatus(16384, 32768, 9000, 7200, 184, 40, 9000),
        pools=tuple(
            PoolStatus(f"gate {each}", 80, 16, 80, each % 81, each % 3 == 0, "gate")
            for each in range(gates)
        ),
        gates=tuple(_gate(each, names, channels, seconds) for each in range(gates)),
        partitions=tuple(
            ShuffleStatus(name, each, 200 + each, 3, GIB * (each + 1), 400 + each)
            for each, name in enumerate(names)
        ),
        pipelined_partitions=(),
        applications=tuple(_application(name, each) for each, name in enumerate(names)),
        connections=tuple(
            ConnectionStatus(
                f"node-{each}:7337",
                "peer",
                "peer out",
                24,
                int(30e6 * seconds * each),
                int(25e6 * seconds * each),
            )
            for each in range(2, 10)
        ),
        copies=structs.replace(STATUS.copies, short=0, short_of_remote=0, staying=0, reason=""),
        event_loop=structs.replace(STATUS.event_loop, last_lag_seconds=0.002, max_lag_seconds=0.03),
        control_memory=structs.replace(
            STATUS.control_memory, used_bytes=1 << 20, capacity_bytes=64 << 20
        ),
        producers=(ProducersStatus("map_output", 240, 2), ProducersStatus("pipelined", 0, 0)),
        served_channels=(
            ServedChannelsStatus("peer", 60, 30, 40, 210),
            ServedChannelsStatus("consumer", 50, 20, 36, 190),
        ),
        processes=(),
        traffic=tuple(
            structs.replace(each, bytes_in=int(7e7 * seconds), bytes_out=int(6e7 * seconds))
            for each in STATUS.traffic
        ),
        counters=counters,
    )


def _gate(number: int, names: list[str], channels: int, seconds: float) -> GateStatus:
    pressed = number % PRESSED_EVERY == PRESSED_EVERY - 1
    return GateStatus(
        number,
        names[number % len(names)],
        number % len(names),
        tuple(
            ChannelStatus(
                each,
                "remote" if each else "local",
                f"node-{each + 2}:7337",
                4 if pressed else each % 2,
                0 if pressed else 4,
                9 if pressed else each,
                int(2e6 * seconds) + each,
                int(64 * seconds),
            )
            for each in range(channels)
        ),
        2 * channels,
        2 * channels if pressed else channels // 2,
        40,
        40 if pressed else 5,
        0.0 if pressed else 0.3 * seconds,
        0.1 * seconds,
        seconds if pressed else 0.02 * seconds,
        f"40.{number + 1}",
        f"10.0.0.9:{50_000 + number}",
    )


def _application(name: str, number: int) -> ApplicationStatus:
    holdings = tuple(
        HoldingStatus(each.name.lower(), (number + 1) * 1000, 60_000 if each % 2 else None)
        for each in Resource
    )
    return ApplicationStatus(name, 4 + number, None, GIB * (number + 1), holdings)
