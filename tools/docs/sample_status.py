"""A TaskManager's status with a different number in every field, for pages and tests."""

from __future__ import annotations

from sluice.shuffle.counters import PROGRESS_KINDS, BoundedCounts, Counters, ServingSeconds
from sluice.shuffle.histogram import BOUNDS_SECONDS, Histogram
from sluice.shuffle.histogram_status import HistogramStatus
from sluice.shuffle.partition_status import PipelinedPartitionStatus
from sluice.shuffle.taskmanager.bounds.accounts import ApplicationStatus, HoldingStatus
from sluice.shuffle.taskmanager.cluster.members_status import MembersStatus, WatchedMemberStatus
from sluice.shuffle.taskmanager.ingest.producing_status import ProducersStatus
from sluice.shuffle.taskmanager.integrity.scrub_status import ScrubStatus
from sluice.shuffle.taskmanager.replicas.copies_status import CopiesStatus
from sluice.shuffle.taskmanager.serve.serving_status import (
    ChannelStatus,
    GateStatus,
    ServedChannelsStatus,
)
from sluice.shuffle.taskmanager.status.latencies_status import LatenciesStatus
from sluice.shuffle.taskmanager.status.pool_status import NetworkPoolStatus, PoolStatus
from sluice.shuffle.taskmanager.status.process_status import ProcessStatus
from sluice.shuffle.taskmanager.status.reasons import DROP_REASONS, HTTP_REASONS, REFUSAL_REASONS
from sluice.shuffle.taskmanager.status.recent import RecentSample
from sluice.shuffle.taskmanager.status.status import (
    ConnectionStatus,
    ControlMemoryStatus,
    EventLoopStatus,
    TaskManagerStatus,
    TrafficStatus,
)
from sluice.shuffle.taskmanager.store.store_status import (
    RegionAreasStatus,
    RegionReadsStatus,
    RemoteStatus,
    ShuffleStatus,
    TierStatus,
)
from sluice.shuffle.taskmanager.tracing.traces_status import TracesStatus
from sluice.shuffle.wait_status import WaitParty, WaitStatus


def _histogram(number: int) -> HistogramStatus:
    """Return a histogram of other numbers for each argument, with a time in every bucket."""
    histogram = Histogram()
    for seconds in (*BOUNDS_SECONDS, *[number / 1024] * number, 2.0 * BOUNDS_SECONDS[-1]):
        histogram.record(seconds)
    return HistogramStatus.taken(histogram)


COUNTERS = Counters(
    producer_bytes_in=1001,
    producer_buffers_in=1002,
    region_area_bytes_in=1040,
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
    memory_tier_refusals=1033,
    map_outputs_committed=1014,
    map_outputs_aborted=1015,
    map_outputs_adopted=1016,
    copies_made=1041,
    copy_bytes_out=1042,
    copies_found=1043,
    copies_failed=1044,
    damaged_map_outputs_dropped=1061,
    damaged_map_outputs_repaired=1062,
    damage_reports=BoundedCounts(
        {"damaged": 1063, "intact": 1064, "repeated": 1065, "refused": 1066, "unknown": 1067}
    ),
    remote_copies_made=1068,
    remote_copy_bytes=1069,
    remote_copies_failed=1070,
    commits_without_copies=1045,
    map_outputs_moved=1046,
    gates_opened=1030,
    connections_accepted=1017,
    connections_refused=1018,
    tls_reloads=1031,
    tls_reload_failures=1032,
    refused_connections=BoundedCounts(
        {reason: 1101 + number for number, reason in enumerate(REFUSAL_REASONS)}
    ),
    http_refused=BoundedCounts(
        {reason: 1201 + number for number, reason in enumerate(HTTP_REASONS)}
    ),
    http_dropped=BoundedCounts(
        {reason: 1401 + number for number, reason in enumerate(DROP_REASONS)}
    ),
    applications_expired=1019,
    pipelined_partitions_opened=1025,
    pipelined_partitions_finished=1026,
    pipelined_partitions_failed=1027,
    producer_credit_wait_seconds=1020.5,
    pipelined_credit_wait_seconds=1021.5,
    peer_serving=ServingSeconds(2001.5, 2002.5, 2003.5, 2004.5, 2005.5),
    consumer_serving=ServingSeconds(3001.5, 3002.5, 3003.5, 3004.5, 3005.5),
    socket_file_restorations=1,
    events_by_type=BoundedCounts(CheckpointBarrier=1028),
    backward_messages=BoundedCounts(TaskEvent=1029),
    late_messages=BoundedCounts(AddCredit=1023),
    errors_by_code=BoundedCounts(PARTITION_NOT_FOUND=1024),
    quota_refusals=BoundedCounts(disk_tier_bytes=2),
    progress_deadlines=BoundedCounts(
        {kind: 1501 + number for number, kind in enumerate(PROGRESS_KINDS)}
    ),
)

STATUS = TaskManagerStatus(
    taskmanager_id="tm-1",
    version="0.1.0",
    data_path="interpreted",
    address="node-1:7337",
    socket_path="/run/sluice/taskmanager.sock",
    state="ready",
    uptime_seconds=61.25,
    pools=(
        PoolStatus("gate 7 of 10.0.0.2:5000", 40, 6, 48, 13, 2, "gate", 0, 0, 0, "app-1"),
        PoolStatus("reads for 10.0.0.2:5000", 16, 1, None, 3, 1, "read", 0, 0, 0, "app-1"),
        PoolStatus(
            "pipelined partition 5 of shuffle 4", 10, 4, 10, 12, 0, "pipelined", 2, 7, 1, "app-1"
        ),
    ),
    network_pool=NetworkPoolStatus(2048, 32768, 2018, 28, 2, 3, 2100, 4, 41, 42, 43),
    storage=(
        TierStatus("memory", "/memory/1", 1 << 29, 3 << 20, True, 509 << 20, ""),
        TierStatus(
            "disk",
            "/data/1",
            None,
            5 << 30,
            False,
            0,
            "a probe failed: Input/output error",
            journal_full=True,
        ),
    ),
    partitions=(
        ShuffleStatus("app-1", 3, 8, 1, 123456, 9),
        ShuffleStatus("app-2", 0, 4, 2, 1000, 5),
    ),
    pipelined_partitions=(
        PipelinedPartitionStatus(
            "app-1",
            4,
            5,
            "PIPELINED_BOUNDED",
            "open",
            3,
            9,
            1,
            6,
            8,
            10,
            2,
            0,
            True,
            33.5,
            7000,
            21,
        ),
        PipelinedPartitionStatus(
            "app-1", 4, 6, "PIPELINED", "finished", 1, 2, 2, 2, 2, 4, 0, 0, False, 0.5, 8000, 22
        ),
    ),
    gates=(
        GateStatus(
            7,
            "app-1",
            3,
            (
                ChannelStatus(1, "local", "node-1:7337", 4, 0, 11, 70000, 3, 0),
                ChannelStatus(2, "remote", "node-2:7337", 5, 6, 12, 80000, 4, 7),
                ChannelStatus(3, "remote", "node-3:7337", 50, 60, 70, 90000, 5, 8),
            ),
            4,
            4,
            40,
            40,
            10.5,
            20.5,
            30.5,
            "40.9",
            "unix:/run/sluice/tm.sock connection 40.9",
        ),
    ),
    served_channels=(
        ServedChannelsStatus("peer", 51, 52, 53, 54, 55.5),
        ServedChannelsStatus("consumer", 61, 62, 63, 64, 65.5),
    ),
    producers=(
        ProducersStatus("map_output", 71, 72, 73.5),
        ProducersStatus("pipelined", 81, 82, 83.5),
    ),
    region_areas=RegionAreasStatus(91, 92),
    remote=RemoteStatus(2001, 2002, 2003, 2004, 2005, 2006, 2007, 2008, 2009, 2010),
    copies=CopiesStatus(93, 94, 95, True, 96, 97, "b: STORAGE_FULL", 101, 102),
    cluster=MembersStatus(
        "node-1",
        "zone-a",
        (
            WatchedMemberStatus(
                "tm-2",
                "10.0.0.2:7337",
                "node-2:7337",
                7338,
                "node-2",
                "zone-b",
                "present",
                True,
                104,
                105,
            ),
            WatchedMemberStatus(watched_at="10.0.0.3:7337", presence="away"),
        ),
        106,
        107,
    ),
    scrub=ScrubStatus(98, 99, 100.5),
    traces=TracesStatus(511, 512, 513),
    control_memory=ControlMemoryStatus(191, 192, 193),
    connections=(
        ConnectionStatus("node-2:7337", "peer", "peer out", 2, 90000, 100, 65537, False, "credit"),
        ConnectionStatus("unix", "producer", "producer", 1, 5000, 50, 10, True, "watermark"),
    ),
    traffic=(
        TrafficStatus("handshake", 4001, 4002, 4003, 4004),
        TrafficStatus("producer", 4011, 4012, 4013, 4014),
        TrafficStatus("consumer", 4021, 4022, 4023, 4024),
        TrafficStatus("driver", 4031, 4032, 4033, 4034),
        TrafficStatus("copier", 4051, 4052, 4053, 4054),
        TrafficStatus("peer", 4041, 4042, 4043, 4044),
    ),
    applications=(
        ApplicationStatus(
            "app-1",
            2,
            None,
            123456,
            (HoldingStatus("disk_tier_bytes", 123456, 1 << 30, used_ratio=0.25),),
        ),
        ApplicationStatus("app-2", 0, 12.5, 1000, (HoldingStatus("channels", 3, None),)),
    ),
    event_loop=EventLoopStatus(0.25, 0.75),
    latencies=LatenciesStatus(
        commit=_histogram(1),
        region_reads=(
            RegionReadsStatus("disk", "/data/1", _histogram(2)),
            RegionReadsStatus("remote", "s3://bucket", _histogram(3)),
        ),
        map_output_credit_wait=_histogram(4),
        pipelined_credit_wait=_histogram(5),
        peer_credit_wait=_histogram(6),
        consumer_credit_wait=_histogram(7),
        partition_request_wait=_histogram(8),
        connect=_histogram(9),
        event_loop_lag=_histogram(10),
    ),
    tls_certificate_expires_at=1800000000.0,
    counters=COUNTERS,
    serves="authenticated",
    no_room_because=None,
    cpu_seconds=31.5,
    processes=(
        ProcessStatus(
            0, "tm-1", "node-1:7337", 4321, "ready", "", 5001, 51.5, 32.5, 0.625, 5002, 5003, 5004
        ),
        ProcessStatus(
            1,
            "tm-1-1",
            "node-1:7339",
            0,
            "ended",
            "exit code 1",
            5011,
            0.0,
            33.5,
            0.0,
            0,
            5013,
            5014,
        ),
    ),
    waits=(
        WaitStatus(
            WaitParty("map_output", "map output 8 of shuffle 3", "app-2"),
            WaitParty("network_memory", "network memory"),
            12.5,
            "A segment is needed, and none is free",
            "Read open gates and close unneeded ones, or raise network_segments",
            "tm-1",
        ),
        WaitStatus(
            WaitParty("network_memory", "network memory"),
            WaitParty("application", "app-1", "app-1"),
            None,
            "The application holds 40 of 2048 segments",
            "Look at the waits of the application; quota_network_segments limits it",
            "tm-1",
        ),
        WaitStatus(
            WaitParty("gate", "gate 7 of 10.0.0.2:5000", "app-1"),
            WaitParty("reader", "10.0.0.2:5000", "app-1"),
            30.25,
            "3 of 3 channels have data, and their reader grants no credit",
            "Look at the task that reads: it is busy, paused or blocked by what it writes",
            "tm-1",
        ),
        WaitStatus(
            WaitParty("application", "app-1", "app-1"),
            WaitParty("gate", "gate 7 of 10.0.0.2:5000", "app-1"),
            None,
            "The gate holds segments, and nobody takes its data",
            "Let its task read; after gate_progress_timeout_seconds its segments are reclaimed",
            "tm-1",
        ),
    ),
    waits_omitted=5021,
    recent=(
        RecentSample(
            6001, 7.5, 5.5, 6002, 6003, 6004, 60.5, 6.5, 6005, 6006, 0.5, 6007, 6008, 6009
        ),
        RecentSample(
            6002, 2.5, 5.25, 6012, 6013, 6014, 61.5, 7.5, 6015, 6016, 0.25, 6017, 6018, 6019
        ),
    ),
)

EMPTY_STATUS = TaskManagerStatus(
    taskmanager_id="tm-0",
    version="0.1.0",
    data_path="interpreted",
    address="node-0:7337",
    socket_path=None,
    state="starting",
    uptime_seconds=0.0,
    pools=(),
    network_pool=NetworkPoolStatus(8, 1024, 8, 0, 0, 0, 0, 0, 0, 0, 0),
    storage=(),
    partitions=(),
    pipelined_partitions=(),
    gates=(),
    served_channels=(),
    producers=(),
    region_areas=RegionAreasStatus(0, 0),
    remote=RemoteStatus(),
    copies=CopiesStatus(0, 0, 0, False, 0, 0, ""),
    scrub=ScrubStatus(0, 0, None),
    control_memory=ControlMemoryStatus(0, 67108864, 0),
    connections=(),
    traffic=(),
    applications=(),
    event_loop=EventLoopStatus(0.0, 0.0),
    tls_certificate_expires_at=None,
    counters=Counters(),
    serves="this host",
    no_room_because=None,
    cpu_seconds=0.0,
    processes=(),
)
