"""A TaskManager's status with a different number in every field, for tests."""

from __future__ import annotations

from shuffle.counters import BoundedCounts, Counters
from shuffle.daemon.status import (
    ApplicationStatus,
    ChannelStatus,
    ConnectionStatus,
    GateStatus,
    NetworkPoolStatus,
    PoolStatus,
    ShuffleStatus,
    TaskManagerStatus,
    TierStatus,
)

COUNTERS = Counters(
    producer_bytes_in=1001,
    producer_buffers_in=1002,
    peer_bytes_out=1003,
    peer_buffers_out=1004,
    peer_bytes_in=1005,
    peer_buffers_in=1006,
    consumer_bytes_out_local=1007,
    consumer_buffers_out_local=1008,
    consumer_bytes_out_remote=1009,
    consumer_buffers_out_remote=1010,
    credits_sent=1011,
    credits_received=1012,
    regions_written=1013,
    map_outputs_committed=1014,
    map_outputs_aborted=1015,
    map_outputs_adopted=1016,
    connections_accepted=1017,
    connections_refused=1018,
    applications_expired=1019,
    producer_credit_wait_seconds=1020.5,
    event_loop_lag_seconds=1022.5,
    late_messages=BoundedCounts(AddCredit=1023),
    errors_by_code=BoundedCounts(PARTITION_NOT_FOUND=1024),
)

STATUS = TaskManagerStatus(
    taskmanager_id="tm-1",
    version="0.1.0",
    address="node-1:7337",
    socket_path="/run/sluice/sluice.sock",
    state="ready",
    uptime_seconds=61.25,
    pools=(
        PoolStatus("gate 7", 40, 6, 48, 13, 2),
        PoolStatus("read 10.0.0.2:5000", 16, 1, None, 3, 1),
    ),
    network_pool=NetworkPoolStatus(2048, 32768, 2030, 16, 2, 2),
    storage=(
        TierStatus("memory", "/dev/shm/sluice-1", 1 << 29, 3 << 20, True, 509 << 20),
        TierStatus("disk", "/data/1", None, 5 << 30, False, 0),
    ),
    partitions=(
        ShuffleStatus("app-1", 3, 8, 1, 123456, 9),
        ShuffleStatus("app-2", 0, 4, 2, 1000, 5),
    ),
    gates=(
        GateStatus(
            7,
            "app-1",
            3,
            (
                ChannelStatus(1, "local", "node-1:7337", 4, 0, 11, 70000, 3),
                ChannelStatus(2, "remote", "node-2:7337", 5, 6, 12, 80000, 4),
                ChannelStatus(3, "remote", "node-3:7337", 50, 60, 70, 90000, 5),
            ),
        ),
    ),
    connections=(
        ConnectionStatus("node-2:7337", "client", "peer", 2, 90000, 100, 65537, False),
        ConnectionStatus("unix", "executor", "producer", 1, 5000, 50, 10, True),
    ),
    applications=(
        ApplicationStatus("app-1", 2, None, 123456),
        ApplicationStatus("app-2", 0, 12.5, 1000),
    ),
    counters=COUNTERS,
)

EMPTY_STATUS = TaskManagerStatus(
    taskmanager_id="tm-0",
    version="0.1.0",
    address="node-0:7337",
    socket_path=None,
    state="starting",
    uptime_seconds=0.0,
    pools=(),
    network_pool=NetworkPoolStatus(8, 1024, 8, 0, 0, 0),
    storage=(),
    partitions=(),
    gates=(),
    connections=(),
    applications=(),
    counters=Counters(),
)
