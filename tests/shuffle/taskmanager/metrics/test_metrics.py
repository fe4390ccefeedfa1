from __future__ import annotations

import dataclasses
import inspect
import operator
import re
import shutil
import subprocess

import pytest
from prometheus_client import generate_latest

from sluice.protocol import handshake
from sluice.shuffle.counters import Counters, ServingSeconds
from sluice.shuffle.taskmanager.metrics.metrics import registry
from sluice.shuffle.taskmanager.status.reasons import CONNECTION_REASONS
from sluice.transport import access, certificate_roles
from sluice.transport.outcomes import HANDSHAKE_REASONS
from tests.shuffle.taskmanager.metrics.rig import families, values
from tools.docs.sample_status import EMPTY_STATUS, STATUS

PROMTOOL_TIMEOUT_SECONDS = 30


@pytest.mark.parametrize(
    ("series", "value"),
    [
        (
            'sluice_taskmanager_info{data_path="interpreted",taskmanager_id="tm-1",version="0.1.0"}',
            1,
        ),
        ('sluice_taskmanager_state{state="ready"}', 1),
        ('sluice_taskmanager_state{state="draining"}', 0),
        ("sluice_uptime_seconds", 61.25),
        ("sluice_event_loop_lag_last_seconds", 0.25),
        ("sluice_event_loop_lag_max_seconds", 0.75),
        ('sluice_network_memory_segments{state="free"}', 2018),
        ('sluice_network_memory_segments{state="lent"}', 28),
        ('sluice_network_memory_segments{state="in_flight"}', 2),
        ("sluice_network_memory_segment_size_bytes", 32768),
        ("sluice_network_memory_wanted_segments", 2100),
        ("sluice_network_memory_waiting_requests", 4),
        ('sluice_local_pools{kind="gate"}', 1),
        ('sluice_local_pools{kind="map_output"}', 0),
        ('sluice_local_pool_limit_segments{kind="read"}', 16),
        ('sluice_local_pool_lent_segments{kind="gate"}', 13),
        ('sluice_local_pool_overdraft_segments{kind="pipelined"}', 2),
        ("sluice_local_pool_full_channels", 1),
        ("sluice_local_pool_waiting_listeners", 3),
        ('sluice_storage_capacity_bytes{directory="/memory/1",tier="memory"}', 1 << 29),
        ('sluice_storage_used_bytes{directory="/data/1",tier="disk"}', 5 << 30),
        ('sluice_storage_free_bytes{directory="/data/1",tier="disk"}', 0),
        ('sluice_storage_healthy{directory="/data/1",tier="disk"}', 0),
        ('sluice_storage_healthy{directory="/memory/1",tier="memory"}', 1),
        ("sluice_applications", 2),
        ("sluice_shuffles", 2),
        ('sluice_map_outputs{state="committed"}', 12),
        ('sluice_map_outputs{state="open"}', 3),
        ("sluice_regions", 14),
        ("sluice_stored_bytes", 124456),
        ("sluice_gates", 1),
        ("sluice_gates_full", 1),
        ('sluice_input_used_buffers{kind="exclusive"}', 4),
        ('sluice_input_limit_buffers{kind="floating"}', 40),
        ('sluice_pipelined_partitions{state="open"}', 1),
        ('sluice_pipelined_partitions{state="finished"}', 1),
        ("sluice_output_used_buffers", 10),
        ("sluice_output_limit_buffers", 14),
        ("sluice_subpartitions", 4),
        ("sluice_subpartition_queued_buffers", 11),
        ("sluice_subpartition_queued_buffers_min", 1),
        ("sluice_subpartition_queued_buffers_avg", 2.75),
        ("sluice_subpartition_queued_buffers_max", 6),
        ('sluice_served_channels{activity="sending",leg="peer"}', 51),
        ('sluice_served_channels{activity="waiting_for_data",leg="peer"}', 52),
        ('sluice_served_channels{activity="waiting_for_credit",leg="consumer"}', 63),
        ('sluice_served_channel_available_credit{leg="consumer"}', 64),
        ('sluice_producer_available_credit{kind="map_output"}', 71),
        ('sluice_producers_without_credit{kind="pipelined"}', 82),
        ("sluice_control_memory_used_bytes", 191),
        ("sluice_control_memory_capacity_bytes", 192),
        ("sluice_region_areas", 91),
        ("sluice_region_areas_used_bytes", 92),
        ('sluice_channels{kind="remote"}', 2),
        ('sluice_channels{kind="local"}', 1),
        ('sluice_channel_queued_buffers{kind="remote"}', 55),
        ('sluice_channel_queued_buffers_min{kind="remote"}', 5),
        ('sluice_channel_queued_buffers_avg{kind="remote"}', 27.5),
        ('sluice_channel_queued_buffers_max{kind="remote"}', 50),
        ('sluice_channel_available_credit{kind="remote"}', 66),
        ('sluice_channel_unannounced_credit{kind="remote"}', 15),
        ('sluice_channel_backlog_buffers{kind="local"}', 11),
        ('sluice_connections{flow_control="credit",leg="peer out",role="peer"}', 1),
        ('sluice_connections{flow_control="watermark",leg="producer",role="producer"}', 1),
        ('sluice_connections_unwritable{leg="peer out"}', 1),
        ('sluice_connections_unwritable{leg="producer"}', 0),
        ('sluice_connection_write_buffer_bytes{leg="peer out"}', 65537),
        ("sluice_tls_certificate_expiry_timestamp_seconds", 1800000000),
    ],
)
def test_a_gauge_shows_the_snapshot(series, value):
    assert values(STATUS)[series] == value


def test_traffic_has_role_and_direction():
    found = values(STATUS)
    assert found['sluice_connection_messages_total{direction="in",role="producer"}'] == 4011
    assert found['sluice_connection_messages_total{direction="out",role="producer"}'] == 4012
    assert found['sluice_connection_bytes_total{direction="in",role="peer"}'] == 4043
    assert found['sluice_connection_bytes_total{direction="out",role="peer"}'] == 4044


def test_every_counter_has_one_series():
    """Each counter of the sample has a number of its own, so each must appear exactly once."""
    counted = [value for name, value in values(STATUS).items() if "_total" in name]
    pool = STATUS.network_pool
    expected: list[float] = [pool.refused_requests, pool.expired_requests, pool.demand_warnings]
    expected.append(STATUS.control_memory.refusals)
    remote = dataclasses.astuple(STATUS.remote)
    expected += remote[3:]
    for field in dataclasses.fields(Counters):
        value = getattr(STATUS.counters, field.name)
        if isinstance(value, ServingSeconds):
            expected += dataclasses.astuple(value)
        else:
            expected += value.values() if isinstance(value, dict) else [value]
    for traffic in STATUS.traffic:
        expected += dataclasses.astuple(traffic)[1:]
    assert sorted(counted) == sorted(expected)


@pytest.mark.parametrize(
    ("series", "field"),
    [
        ('sluice_received_bytes_total{leg="producer"}', "producer_bytes_in"),
        ('sluice_received_bytes_total{leg="peer"}', "peer_bytes_in"),
        ('sluice_received_buffers_total{leg="peer"}', "peer_buffers_in"),
        ('sluice_sent_bytes_total{leg="peer",source="local"}', "peer_bytes_out"),
        ('sluice_sent_bytes_total{leg="consumer",source="local"}', "consumer_bytes_out_local"),
        ('sluice_sent_bytes_total{leg="consumer",source="remote"}', "consumer_bytes_out_remote"),
        (
            'sluice_sent_buffers_total{leg="consumer",source="remote"}',
            "consumer_buffers_out_remote",
        ),
        ('sluice_map_outputs_finished_total{outcome="adopted"}', "map_outputs_adopted"),
        ("sluice_gates_opened_total", "gates_opened"),
        ("sluice_memory_tier_refusals_total", "memory_tier_refusals"),
        ('sluice_tls_reloads_total{result="loaded"}', "tls_reloads"),
        ('sluice_tls_reloads_total{result="refused"}', "tls_reload_failures"),
        ('sluice_connections_finished_handshake_total{result="refused"}', "connections_refused"),
        (
            'sluice_producer_credit_wait_seconds_total{kind="map_output"}',
            "producer_credit_wait_seconds",
        ),
        (
            'sluice_producer_credit_wait_seconds_total{kind="pipelined"}',
            "pipelined_credit_wait_seconds",
        ),
        (
            'sluice_pipelined_partitions_ended_total{outcome="failed"}',
            "pipelined_partitions_failed",
        ),
        (
            'sluice_served_channel_wait_seconds_total{leg="peer",wait="credit"}',
            "peer_serving.credit_wait",
        ),
        ('sluice_serving_seconds_total{leg="consumer",state="idle"}', "consumer_serving.idle"),
        (
            'sluice_serving_seconds_total{leg="peer",state="back_pressured"}',
            "peer_serving.back_pressured",
        ),
    ],
)
def test_a_counter_is_under_its_name(series, field):
    assert values(STATUS)[series] == operator.attrgetter(field)(STATUS.counters)


def test_incidents_are_by_type_and_code():
    found = values(STATUS)
    assert found['sluice_late_messages_total{type="AddCredit"}'] == 1023
    assert found['sluice_errors_total{code="PARTITION_NOT_FOUND"}'] == 1024


@pytest.mark.parametrize(
    ("serves", "allowed"), [("authenticated", 0), ("this host", 0), ("anonymous", 1)]
)
def test_anonymous_access_is_seen(serves, allowed):
    found = values(dataclasses.replace(STATUS, serves=serves))
    assert found["sluice_anonymous_allowed"] == allowed


def test_refusals_are_by_reason_and_begin_at_zero():
    found, begun = values(STATUS), values(EMPTY_STATUS)
    assert found['sluice_connections_refused_total{reason="wrong proof"}'] == 1105
    assert found['sluice_http_refused_total{reason="wrong token"}'] == 1202
    assert begun['sluice_connections_refused_total{reason="wrong proof"}'] == 0
    assert begun['sluice_http_refused_total{reason="other host"}'] == 0


def test_every_reason_for_which_an_accepted_connection_is_refused_has_a_series():
    """The other side's word, of the side that connects, is not counted here."""
    sources = [inspect.getsource(module) for module in (handshake, access, certificate_roles)]
    said = {word for text in sources for word in re.findall(r'"([^"]+)"', _reasons(text))}
    assert said - {"unproven TaskManager"} == set(CONNECTION_REASONS)


def test_every_reason_for_which_a_handshake_fails_has_a_series():
    found, begun = values(STATUS), values(EMPTY_STATUS)
    series = [
        f'sluice_connections_refused_total{{reason="{reason}"}}' for reason in HANDSHAKE_REASONS
    ]
    assert [found[each] for each in series] == list(range(1112, 1112 + len(series)))
    assert [begun[each] for each in series] == [0] * len(series)


@pytest.mark.parametrize(
    ("changes", "takes_work"),
    [({}, 1), ({"state": "draining"}, 0), ({"no_room_because": "full"}, 0)],
)
def test_readiness_is_a_metric(changes, takes_work):
    found = values(dataclasses.replace(STATUS, **changes))
    assert found["sluice_taskmanager_takes_work"] == takes_work


def _reasons(text: str) -> str:
    return "\n".join(re.findall(r"reason=(.+)", text))


def test_events_are_by_type_and_direction():
    found = values(STATUS)
    assert found['sluice_events_received_total{type="CheckpointBarrier"}'] == 1028
    assert found['sluice_backward_messages_received_total{type="TaskEvent"}'] == 1029


def test_a_pool_of_an_unknown_kind_adds_no_series():
    strange = dataclasses.replace(STATUS.pools[0], kind="app-7", lent_segments=9)
    found = values(dataclasses.replace(STATUS, pools=(strange,)))
    assert found.keys() == values(STATUS).keys()
    assert found['sluice_local_pool_lent_segments{kind="other"}'] == 9


@pytest.mark.parametrize("status", [STATUS, EMPTY_STATUS])
def test_promtool_finds_nothing_to_complain_about(status):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=generate_latest(registry(lambda: status)),
        capture_output=True,
        timeout=PROMTOOL_TIMEOUT_SECONDS,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_the_series_do_not_grow_with_the_load():
    loaded = dataclasses.replace(
        STATUS,
        pools=STATUS.pools * 100,
        partitions=STATUS.partitions * 100,
        pipelined_partitions=STATUS.pipelined_partitions * 100,
        gates=STATUS.gates * 100,
        connections=STATUS.connections * 100,
        applications=STATUS.applications * 100,
    )
    assert values(loaded).keys() == values(STATUS).keys()


def test_no_label_names_an_application():
    names = {
        name for family in families(STATUS).values() for s in family.samples for name in s.labels
    }
    assert not {name for name in names if "application" in name or "shuffle" in name}
    assert "app-1" not in "".join(values(STATUS))


def test_names_and_types_follow_the_conventions():
    for name, family in families(STATUS).items():
        assert family.documentation
        if name.startswith("sluice_"):
            assert not name.endswith(("_ms", "_kb", "_mib", "_percent"))
            assert (family.type == "counter") == all(
                sample.name.endswith("_total") for sample in family.samples
            )


def test_a_taskmanager_without_anything_has_metrics_too():
    found = values(EMPTY_STATUS)
    assert found['sluice_network_memory_segments{state="free"}'] == 8
    assert found["sluice_gates"] == 0


def test_the_process_is_measured_too():
    assert "process_resident_memory_bytes" in families(STATUS)


def test_the_registry_asks_only_when_scraped():
    def starting():
        raise AssertionError("asked before the first scrape")

    made = registry(starting)
    with pytest.raises(AssertionError, match="asked before"):
        generate_latest(made)
