"""One status of several data processes: amounts are added, and no total ever falls."""

from __future__ import annotations

import dataclasses
import itertools
import json
import typing
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec import structs

from sluice.shuffle.counters import MAX_KEYS, OTHER_KEY, BoundedCounts, Counters, ServingSeconds
from sluice.shuffle.taskmanager.bounds.accounts import ApplicationStatus, HoldingStatus
from sluice.shuffle.taskmanager.metrics.metrics import TaskManagerCollector
from sluice.shuffle.taskmanager.processes.combined_status import combine, process_status, remains
from sluice.shuffle.taskmanager.serve.serving_status import ServedChannelsStatus
from sluice.shuffle.taskmanager.status.process_status import ProcessStatus
from sluice.shuffle.taskmanager.status.status import (
    EventLoopStatus,
    TaskManagerStatus,
    TrafficStatus,
)
from sluice.shuffle.taskmanager.store.store_status import ShuffleStatus, TierStatus
from tools.docs.sample_status import EMPTY_STATUS
from tools.docs.sample_status import STATUS as STATUS_OF_SEVERAL

STATUS = structs.replace(STATUS_OF_SEVERAL, processes=())


def series(status: TaskManagerStatus, *kinds: str) -> dict[tuple[object, ...], float]:
    """Return the values of all metrics of some kinds by their names and labels."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in TaskManagerCollector(lambda: status).collect()
        if family.type in kinds
        for sample in family.samples
    }


def counters(status: TaskManagerStatus) -> dict[tuple[object, ...], float]:
    return series(status, "counter", "histogram")


def hints_of(kind: type[Any]) -> dict[str, Any]:
    """Return the types of the fields of a struct or dataclass."""
    hints = typing.get_type_hints(kind)
    return {
        name: hint for name, hint in hints.items() if typing.get_origin(hint) != typing.ClassVar
    }


def is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and (
        issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind)
    )


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for values of the type of a field."""
    if is_struct(kind):
        fields = {name: values_of(hint) for name, hint in hints_of(kind).items()}
        if kind is TaskManagerStatus:
            fields["processes"] = st.just(())
        return st.builds(kind, **fields)
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        keys = getattr(arguments[0], "key_fields", ())
        unique = (lambda item: tuple(getattr(item, key) for key in keys)) if keys else None
        return st.lists(values_of(arguments[0]), max_size=2, unique_by=unique).map(tuple)
    if typing.get_origin(kind) is typing.Literal:
        return st.sampled_from(arguments)
    if arguments:
        return st.one_of([values_of(each) for each in arguments])
    simple: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(0, 1 << 50),
        float: st.floats(0, 1e9),
        bool: st.booleans(),
        str: st.sampled_from(["", "consumer", "peer", "x"]),
        type(None): st.none(),
        BoundedCounts: st.dictionaries(
            st.sampled_from(["region", "other", "x", "y"]), st.integers(0, 1 << 50)
        ).map(BoundedCounts),
    }
    return simple[kind]


STATUSES = values_of(TaskManagerStatus)

EXAMPLES = settings(max_examples=20, phases=(Phase.reuse, Phase.generate))
"""A random status has a few hundred values, and to shrink one takes minutes."""


@EXAMPLES
@given(first=STATUSES, second=STATUSES, again=STATUSES, last=STATUSES)
def test_no_total_falls_when_processes_end_and_start_again(first, second, again, last):
    nothing = TaskManagerStatus()
    one_left = remains(second)
    two_left = combine([one_left, remains(again)])
    three_left = combine([two_left, remains(first)])
    wholes = [
        combine([first, second]),
        combine([first], [one_left]),
        combine([first, nothing], [one_left]),
        combine([first, again], [nothing, one_left]),
        combine([first], [two_left]),
        combine([last, first], [two_left]),
        combine([last], [three_left]),
    ]
    for before, after in itertools.pairwise(map(counters, wholes)):
        assert not {name for name in before if after[name] < before[name]}


@EXAMPLES
@given(parts=st.lists(STATUSES, min_size=1, max_size=3))
def test_each_total_is_the_sum_of_those_of_the_processes(parts):
    added: dict[tuple[object, ...], float] = {}
    for part in parts:
        for name, value in counters(part).items():
            added[name] = added.get(name, 0) + value
    assert counters(combine(parts)) == pytest.approx(added, abs=1e-4)
    assert counters(combine((), parts)) == counters(combine(parts))
    assert counters(combine(parts[::-1])) == counters(combine(parts))


@EXAMPLES
@given(status=STATUSES)
def test_the_combined_status_has_a_json_form(status):
    whole = structs.replace(combine([status, STATUS], [status]), taskmanager_id="tm-1")
    assert TaskManagerStatus.from_json(json.loads(whole.encode())) == whole


@EXAMPLES
@given(status=STATUSES)
def test_only_totals_remain_of_a_process_that_has_ended(status):
    left = remains(status)
    assert counters(left) == pytest.approx(counters(status), abs=1e-4)
    nothing = {name: 0 for name in series(left, "gauge")} | series(TaskManagerStatus(), "gauge")
    assert series(left, "gauge") == nothing
    both = combine([STATUS, left])
    names = (
        "counters",
        "latencies",
        "network_pool",
        "remote",
        "control_memory",
        "traffic",
        "traces",
    )
    scrub = structs.replace(both.scrub, pass_age_seconds=STATUS.scrub.pass_age_seconds)
    cluster = structs.replace(STATUS.cluster, dials=both.cluster.dials)
    totals = {name: getattr(both, name) for name in names} | {"scrub": scrub, "cluster": cluster}
    assert combine([STATUS], [left]) == structs.replace(STATUS, **totals)


def test_the_status_of_one_process_stays_as_it_is():
    assert combine([STATUS]) == STATUS
    assert combine([EMPTY_STATUS]) == EMPTY_STATUS
    assert combine([]) == TaskManagerStatus()


def test_amounts_are_added_and_properties_are_not():
    """Each number of the sample is another one, so each metric but a few must have doubled."""
    one, two = (
        series(each, "gauge", "counter", "histogram")
        for each in (STATUS, combine([STATUS, STATUS]))
    )
    assert one.keys() == two.keys()
    assert {name[0] for name, value in one.items() if value and two[name] != 2 * value} == {
        "sluice_applications",
        "sluice_channel_queued_buffers_avg",
        "sluice_channel_queued_buffers_max",
        "sluice_channel_queued_buffers_min",
        "sluice_cluster_members",
        "sluice_cluster_names_failing",
        "sluice_event_loop_lag_last_seconds",
        "sluice_event_loop_lag_max_seconds",
        "sluice_migrating",
        "sluice_network_memory_segment_size_bytes",
        "sluice_producer_credit_wait_longest_seconds",
        "sluice_quota_used_ratio",
        "sluice_scrub_pass_age_seconds",
        "sluice_served_channel_credit_wait_longest_seconds",
        "sluice_shuffles",
        "sluice_storage_healthy",
        "sluice_storage_journal_full",
        "sluice_subpartition_queued_buffers_avg",
        "sluice_subpartition_queued_buffers_max",
        "sluice_subpartition_queued_buffers_min",
        "sluice_taskmanager_state",
        "sluice_taskmanager_takes_work",
        "sluice_taskmanagers_unreachable",
        "sluice_tls_certificate_expiry_timestamp_seconds",
        "sluice_uptime_seconds",
    }


def test_structs_with_the_same_key_become_one():
    other = structs.replace(
        STATUS,
        partitions=(ShuffleStatus("app-1", 0, 1, 0, 10, 1), ShuffleStatus("app-1", 3, 2, 1, 20, 2)),
        served_channels=(ServedChannelsStatus("consumer", 1, 2, 3, 4, 70.0),),
    )
    whole = combine([STATUS, other])
    assert whole.partitions == (
        ShuffleStatus("app-1", 3, 10, 2, 123476, 11),
        ShuffleStatus("app-2", 0, 4, 2, 1000, 5),
        ShuffleStatus("app-1", 0, 1, 0, 10, 1),
    )
    assert whole.served_channels == (
        ServedChannelsStatus("peer", 51, 52, 53, 54, 55.5),
        ServedChannelsStatus("consumer", 62, 64, 66, 68, 70.0),
    )
    assert whole.gates == STATUS.gates * 2
    assert whole.connections == STATUS.connections * 2


def test_directories_of_the_processes_stay_apart_and_a_shared_one_becomes_one():
    own = TierStatus("disk", "/data/1/process-1", None, 7, True, 5, "", 5, 1)
    shared = TierStatus("remote", "s3://bucket", 100, 10, True, 90, "", 90, 2)
    others = structs.replace(shared, used_bytes=20, healthy=False, reason="slow")
    whole = combine(
        [structs.replace(STATUS, storage=(shared,)), structs.replace(STATUS, storage=(own, others))]
    )
    assert whole.storage == (
        TierStatus("remote", "s3://bucket", 200, 30, True, 180, "slow", 90, 4),
        own,
    )


def test_holdings_of_an_application_are_added():
    first = ApplicationStatus("a", 1, None, 5, (HoldingStatus("channels", 3, 10, 4),))
    second = ApplicationStatus(
        "a", 0, 9.5, 6, (HoldingStatus("connections", 1), HoldingStatus("channels", 2, 10, 2))
    )
    whole = combine([structs.replace(STATUS, applications=(each,)) for each in (first, second)])
    assert whole.applications == (
        ApplicationStatus(
            "a", 1, None, 11, (HoldingStatus("channels", 5, 20, 6), HoldingStatus("connections", 1))
        ),
    )


@pytest.mark.parametrize(
    ("expiries", "expected"), [((3.0, 5.0), 5.0), ((3.0, None), None), ((None, None), None)]
)
def test_an_application_expires_with_its_last_process(expiries, expected):
    whole = combine(
        [
            structs.replace(STATUS, applications=(ApplicationStatus("a", 0, each),))
            for each in expiries
        ]
    )
    assert whole.applications[0].expires_in_seconds == expected


@pytest.mark.parametrize(
    ("quotas", "expected"), [((3, 5), 8), ((3, None), None), ((None, None), None)]
)
def test_no_quota_in_one_process_is_no_quota_in_all(quotas, expected):
    whole = combine(
        [
            structs.replace(
                STATUS, applications=(ApplicationStatus("a", holdings=(HoldingStatus("x", 1, q),)),)
            )
            for q in quotas
        ]
    )
    assert whole.applications[0].holdings == (HoldingStatus("x", 2, expected),)


@pytest.mark.parametrize(
    ("times", "expected"), [((9.0, 7.0), 7.0), ((None, 7.0), 7.0), ((None, None), None)]
)
def test_the_earliest_end_of_a_certificate_counts(times, expected):
    whole = combine([structs.replace(STATUS, tls_certificate_expires_at=each) for each in times])
    assert whole.tls_certificate_expires_at == expected


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [(("full", "broken"), "full"), (("full", None), None), ((None, None), None)],
)
def test_there_is_room_while_one_process_has_room(reasons, expected):
    whole = combine([structs.replace(STATUS, no_room_because=each) for each in reasons])
    assert whole.no_room_because == expected
    assert whole.not_ready_because == expected


def test_a_process_that_has_ended_does_not_make_room():
    full = structs.replace(STATUS, no_room_because="full")
    assert combine([full], [remains(STATUS)]).no_room_because == "full"


def test_the_worst_lag_counts():
    lags = EventLoopStatus(0.5, 0.75), EventLoopStatus(0.25, 1.0)
    whole = combine([structs.replace(STATUS, event_loop=each) for each in lags])
    assert whole.event_loop == EventLoopStatus(0.5, 1.0)


def test_the_identity_is_that_of_the_first_process():
    other = structs.replace(
        STATUS,
        taskmanager_id="tm-2",
        address="node-1:7339",
        socket_path="/x.1",
        copies=EMPTY_STATUS.copies,
    )
    whole = combine([STATUS, other], [remains(other)])
    for name in ("taskmanager_id", "version", "data_path", "address", "socket_path", "serves"):
        assert getattr(whole, name) == getattr(STATUS, name)
    assert combine([other, STATUS]).copies == STATUS.copies


def test_the_counters_of_the_whole_are_its_own():
    status = structs.replace(EMPTY_STATUS, counters=Counters(peer_serving=ServingSeconds(busy=1.5)))
    for whole in (combine([status]), combine([]), remains(status)):
        whole.counters.late_messages.bump("AddCredit")
        whole.counters.peer_serving.busy += 1
        whole.counters.regions_written += 1
    assert status.counters == Counters(peer_serving=ServingSeconds(busy=1.5))
    assert combine([]).counters == Counters()


def test_counts_by_name_stay_bounded():
    parts = [
        structs.replace(
            EMPTY_STATUS,
            counters=Counters(late_messages=BoundedCounts({f"{part}-{n}": 1 for n in range(60)})),
        )
        for part in range(3)
    ]
    counts = combine(parts).counters.late_messages
    assert len(counts) == MAX_KEYS + 1
    assert counts[OTHER_KEY] == 180 - MAX_KEYS


def test_fractions_of_seconds_do_not_let_a_total_fall():
    """Rounding of 0.1 + 0.2 and of 0.3 is not the same, and a total must not show it."""
    seconds = [0.1, 0.2, 0.3, 0.7, 1.1]
    parts = [
        structs.replace(EMPTY_STATUS, counters=Counters(producer_credit_wait_seconds=each))
        for each in seconds
    ]
    totals = {
        combine(parts[:cut], [combine(parts[cut:])]).counters.producer_credit_wait_seconds
        for cut in range(len(parts))
    }
    assert len(totals) == 1
    assert totals.pop() == pytest.approx(sum(seconds), abs=1e-5)


def test_every_total_in_a_list_has_a_key():
    """Without one it would not be added to what is left of ended processes."""
    unkeyed = {
        typing.get_args(hint)[0]
        for kind in structs_in(TaskManagerStatus)
        for hint in hints_of(kind).values()
        if typing.get_origin(hint) is tuple and not hasattr(typing.get_args(hint)[0], "key_fields")
    }
    assert {kind for kind in unkeyed if has_totals(kind)} == {ProcessStatus}


def structs_in(kind: type[Any]) -> set[type[Any]]:
    found = {kind}
    for hint in hints_of(kind).values():
        for each in (hint, *typing.get_args(hint)):
            if is_struct(each):
                found |= structs_in(each)
    return found


def has_totals(kind: type[Any]) -> bool:
    hints = typing.get_type_hints(kind, include_extras=True).values()
    return any(
        getattr(note, "kind", "") in ("counter", "histogram")
        for hint in hints
        for note in getattr(hint, "__metadata__", ())
    )


def test_a_process_has_a_row_of_its_own():
    assert process_status(1, 4321, 2, STATUS, "exit code 1") == ProcessStatus(
        index=1,
        taskmanager_id="tm-1",
        address="node-1:7337",
        pid=4321,
        state="ready",
        restarts=2,
        uptime_seconds=61.25,
        cpu_seconds=31.5,
        max_lag_seconds=0.75,
        connections=2,
        bytes_in=sum(each.bytes_in for each in STATUS.traffic),
        bytes_out=sum(each.bytes_out for each in STATUS.traffic),
    )


def test_a_process_that_does_not_run_keeps_its_name_and_its_reason():
    row = process_status(1, 0, 2, STATUS, "exit code 1")
    assert row == ProcessStatus(
        1, "tm-1", "node-1:7337", state="ended", reason="exit code 1", restarts=2
    )
    assert (row.process, row.up, row.condition) == ("1", False, "ended (exit code 1)")
    assert process_status(0, 7, 0, TaskManagerStatus()).condition == "starting"


def test_traffic_of_a_role_that_only_an_ended_process_had_is_kept():
    ended = structs.replace(EMPTY_STATUS, traffic=(TrafficStatus("copier", 1, 2, 3, 4),))
    assert combine([EMPTY_STATUS], [remains(ended)]).traffic == ended.traffic
