from __future__ import annotations

import dataclasses
import inspect
import re
import shutil
import subprocess

import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from sluice.protocol import admission
from sluice.shuffle.taskmanager.metrics.metrics import TaskManagerCollector, registry
from sluice.shuffle.taskmanager.status.reasons import CONNECTION_REASONS
from sluice.transport import access
from sluice.transport.outcomes import HANDSHAKE_REASONS
from tests.shuffle.taskmanager.metrics import rig
from tests.shuffle.taskmanager.metrics.rig import (
    RECORDED,
    families,
    page_of_sample,
    samples,
    values,
)
from tools.docs.sample_status import EMPTY_STATUS, STATUS

PROMTOOL_TIMEOUT_SECONDS = 30


def test_the_sample_has_the_recorded_metrics():
    assert page_of_sample() == RECORDED.read_text(encoding="utf-8"), (
        f"run: python -m {rig.__name__}"
    )


def test_every_counter_has_one_series():
    """Each counter of the sample has a number of its own, so each must appear exactly once."""
    counted = [value for name, value in values(STATUS).items() if "_total" in name]
    pool, counters = STATUS.network_pool, dataclasses.asdict(STATUS.counters)
    expected: list[float] = [pool.refused_requests, pool.expired_requests, pool.demand_warnings]
    expected += [STATUS.control_memory.refusals, STATUS.cluster.dials]
    expected += structs.astuple(STATUS.remote)[3:]
    expected += structs.astuple(STATUS.scrub)[:2]
    expected += structs.astuple(STATUS.traces)
    for traffic in STATUS.traffic:
        expected += structs.astuple(traffic)[1:]
    for process in STATUS.processes:
        expected += [process.restarts, process.cpu_seconds, process.bytes_in, process.bytes_out]
    for value in counters.values():
        expected += value.values() if isinstance(value, dict) else [value]
    assert sorted(counted) == sorted(expected)


@pytest.mark.parametrize(
    ("serves", "allowed"), [("authenticated", 0), ("this host", 0), ("anonymous", 1)]
)
def test_anonymous_access_is_seen(serves, allowed):
    found = values(structs.replace(STATUS, serves=serves))
    assert found["sluice_anonymous_allowed"] == allowed


def test_refusals_begin_at_zero():
    begun = values(EMPTY_STATUS)
    assert begun['sluice_connections_refused_total{reason="wrong proof"}'] == 0
    assert begun['sluice_http_refused_total{reason="other name"}'] == 0


def test_every_reason_for_which_an_accepted_connection_is_refused_has_a_series():
    sources = [inspect.getsource(module) for module in (admission, access)]
    said = {word for text in sources for word in re.findall(r'"([^"]+)"', _reasons(text))}
    assert said == set(CONNECTION_REASONS)


def test_every_reason_for_which_a_handshake_fails_has_a_series():
    begun = values(EMPTY_STATUS)
    for reason in HANDSHAKE_REASONS:
        assert begun[f'sluice_connections_refused_total{{reason="{reason}"}}'] == 0


@pytest.mark.parametrize(
    ("changes", "takes_work"),
    [({}, 1), ({"state": "draining"}, 0), ({"no_room_because": "full"}, 0)],
)
def test_readiness_is_a_metric(changes, takes_work):
    found = values(structs.replace(STATUS, **changes))
    assert found["sluice_taskmanager_takes_work"] == takes_work


def _reasons(text: str) -> str:
    return "\n".join(re.findall(r"reason=(.+)", text))


def test_a_pipelined_partition_in_a_passing_state_adds_no_series():
    passing = structs.replace(STATUS.pipelined_partitions[0], state="finishing")
    found = values(structs.replace(STATUS, pipelined_partitions=(passing,)))
    assert found.keys() == values(STATUS).keys()
    assert found['sluice_pipelined_partitions{state="open"}'] == 0
    assert found["sluice_subpartitions"] == passing.subpartitions


def test_a_pool_of_an_unknown_kind_adds_no_series():
    strange = structs.replace(STATUS.pools[0], kind="app-7", lent_segments=9)
    found = values(structs.replace(STATUS, pools=(strange,)))
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
    loaded = structs.replace(
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


def test_a_data_process_that_is_down_has_a_metric():
    found = values(STATUS)
    assert found['sluice_process_up{process="0"}'] == 1
    assert found['sluice_process_up{process="1"}'] == 0
    assert found['sluice_process_event_loop_lag_max_seconds{process="0"}'] == 0.625


def test_a_single_process_has_no_series_by_process():
    assert not [name for name in values(EMPTY_STATUS) if "sluice_process_" in name]


def test_the_process_is_measured_too():
    assert "process_resident_memory_bytes" in families(STATUS)


@pytest.mark.parametrize("status", [STATUS, EMPTY_STATUS])
def test_the_page_is_valid_openmetrics(status):
    made = CollectorRegistry()
    made.register(TaskManagerCollector(lambda: status))
    page = openmetrics.generate_latest(made).decode()
    found = {family.name: family for family in text_string_to_metric_families(page)}
    assert samples(found).keys() == values(status).keys()


def test_a_histogram_has_buckets_a_count_and_a_sum():
    family = families(STATUS)["sluice_region_read_seconds"]
    assert family.type == "histogram"
    (_, remote) = STATUS.latencies.region_reads
    of_remote = [each for each in family.samples if each.labels["tier"] == "remote"]
    assert {each.labels["directory"] for each in of_remote} == {"s3://bucket"}
    assert [
        (float(each.labels["le"]), each.value)
        for each in of_remote
        if each.name == "sluice_region_read_seconds_bucket"
    ] == remote.read.cumulative()
    assert [each.value for each in of_remote if each.name.endswith("_count")] == [remote.read.count]
    assert [each.value for each in of_remote if each.name.endswith("_sum")] == [
        remote.read.sum_seconds
    ]


def test_two_structs_of_the_same_labels_are_not_one_histogram():
    """Nothing says how their percentiles become one; ``combine`` has made one of them before."""
    twice = STATUS.latencies.region_reads[:1] * 2
    status = structs.replace(
        STATUS, latencies=structs.replace(STATUS.latencies, region_reads=twice)
    )
    with pytest.raises(ValueError, match="too many values"):
        values(status)


def test_the_registry_asks_only_when_scraped():
    def starting():
        raise AssertionError("asked before the first scrape")

    made = registry(starting)
    with pytest.raises(AssertionError, match="asked before"):
        generate_latest(made)
