from __future__ import annotations

import dataclasses

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from shuffle.counters import Counters
from shuffle.daemon.metrics import registry
from tests.daemon.samples import EMPTY_STATUS, STATUS


def families(status):
    text = generate_latest(registry(lambda: status)).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def values(status) -> dict[str, float]:
    """Return every sample of Sluice's own, written as Prometheus writes it."""
    found = {}
    for family in families(status).values():
        for sample in family.samples:
            labels = ",".join(f'{k}="{v}"' for k, v in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return {name: value for name, value in found.items() if name.startswith("sluice_")}


@pytest.mark.parametrize(
    ("series", "value"),
    [
        ('sluice_taskmanager_info{taskmanager_id="tm-1",version="0.1.0"}', 1),
        ('sluice_taskmanager_state{state="ready"}', 1),
        ('sluice_taskmanager_state{state="draining"}', 0),
        ("sluice_uptime_seconds", 61.25),
        ('sluice_network_memory_segments{state="free"}', 2030),
        ('sluice_network_memory_segments{state="lent"}', 16),
        ('sluice_network_memory_segments{state="in_flight"}', 2),
        ("sluice_network_memory_segment_size_bytes", 32768),
        ("sluice_local_pools", 2),
        ("sluice_local_pool_waiting_listeners", 3),
        ('sluice_storage_capacity_bytes{directory="/dev/shm/sluice-1",tier="memory"}', 1 << 29),
        ('sluice_storage_used_bytes{directory="/data/1",tier="disk"}', 5 << 30),
        ('sluice_storage_free_bytes{directory="/data/1",tier="disk"}', 0),
        ('sluice_storage_healthy{directory="/data/1",tier="disk"}', 0),
        ('sluice_storage_healthy{directory="/dev/shm/sluice-1",tier="memory"}', 1),
        ("sluice_applications", 2),
        ("sluice_shuffles", 2),
        ('sluice_map_outputs{state="committed"}', 12),
        ('sluice_map_outputs{state="open"}', 3),
        ("sluice_regions", 14),
        ("sluice_stored_bytes", 124456),
        ("sluice_gates", 1),
        ('sluice_channels{kind="remote"}', 2),
        ('sluice_channels{kind="local"}', 1),
        ('sluice_channel_queued_buffers{kind="remote"}', 55),
        ('sluice_channel_available_credit{kind="remote"}', 66),
        ('sluice_channel_backlog_buffers{kind="local"}', 11),
        ('sluice_connections{leg="peer",role="client"}', 1),
        ('sluice_connections_unwritable{leg="peer"}', 1),
        ('sluice_connections_unwritable{leg="producer"}', 0),
        ('sluice_connection_write_buffer_bytes{leg="peer"}', 65537),
    ],
)
def test_a_gauge_shows_the_snapshot(series, value):
    assert values(STATUS)[series] == value


def test_every_counter_has_one_series():
    """Each counter of the sample has a number of its own, so each must appear exactly once."""
    counted = [value for name, value in values(STATUS).items() if "_total" in name]
    expected: list[float] = []
    for field in dataclasses.fields(Counters):
        value = getattr(STATUS.counters, field.name)
        expected += value.values() if isinstance(value, dict) else [value]
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
        ('sluice_connections_finished_handshake_total{result="refused"}', "connections_refused"),
        ("sluice_producer_credit_wait_seconds_total", "producer_credit_wait_seconds"),
    ],
)
def test_a_counter_is_under_its_name(series, field):
    assert values(STATUS)[series] == getattr(STATUS.counters, field)


def test_incidents_are_by_type_and_code():
    found = values(STATUS)
    assert found['sluice_late_messages_total{type="AddCredit"}'] == 1023
    assert found['sluice_errors_total{code="PARTITION_NOT_FOUND"}'] == 1024


def test_the_series_do_not_grow_with_the_load():
    loaded = dataclasses.replace(
        STATUS,
        pools=STATUS.pools * 100,
        partitions=STATUS.partitions * 100,
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
