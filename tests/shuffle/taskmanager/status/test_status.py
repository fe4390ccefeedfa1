from __future__ import annotations

import json

import pytest
from msgspec import structs

from sluice.shuffle.counters import MAX_KEYS, OTHER_KEY, BoundedCounts, Counters, ServingSeconds
from sluice.shuffle.taskmanager.status.status import InvalidStatus, TaskManagerStatus
from sluice.shuffle.taskmanager.status.table import render
from tools.docs.sample_status import EMPTY_STATUS, STATUS


@pytest.mark.parametrize("status", [STATUS, EMPTY_STATUS])
def test_the_json_form_round_trips(status):
    assert TaskManagerStatus.from_json(json.loads(status.encode())) == status


def test_a_reader_ignores_fields_of_a_newer_daemon():
    document = json.loads(STATUS.encode()) | {"later": 1}
    document["counters"]["later"] = {}
    for part in ("network_pool", "copies"):
        document[part]["later"] = {"x": []}
    for part in ("pools", "storage", "gates", "connections", "applications"):
        document[part][0]["later"] = None
    assert TaskManagerStatus.from_json(document) == STATUS


@pytest.mark.parametrize("part", [None, "network_pool", "counters", "copies", "remote"])
def test_a_reader_has_a_default_for_each_field_that_an_older_daemon_lacks(part):
    whole = json.loads(STATUS.encode())
    for name in set(whole if part is None else whole[part]) - {"taskmanager_id"}:
        document = json.loads(STATUS.encode())
        del (document if part is None else document[part])[name]
        status = TaskManagerStatus.from_json(document)
        assert list(render(status))
        assert status.encode()


def test_items_of_an_older_daemon_lack_fields_too():
    document: dict[str, object] = {"taskmanager_id": "tm-1"}
    lists = [name for name, value in json.loads(STATUS.encode()).items() if isinstance(value, list)]
    status = TaskManagerStatus.from_json(document | {name: [{}] for name in lists})
    assert [len(getattr(status, name)) for name in lists] == [1] * len(lists)
    assert list(render(status))


def test_whole_numbers_are_accepted_for_seconds():
    document = json.loads(STATUS.encode()) | {"uptime_seconds": 61}
    assert TaskManagerStatus.from_json(document).uptime_seconds == 61.0


@pytest.mark.parametrize("document", [None, [], "status", 3, {}, {"state": "ready"}])
def test_another_document_is_refused(document):
    with pytest.raises(InvalidStatus):
        TaskManagerStatus.from_json(document)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("address", 7337),
        ("state", "asleep"),
        ("serves", "nobody"),
        ("uptime_seconds", "61"),
        ("uptime_seconds", True),
        ("pools", {}),
        ("pools", [1]),
        ("socket_path", 4),
        ("counters", None),
        ("counters", {"late_messages": {"AddCredit": "1"}}),
    ],
)
def test_a_field_of_a_wrong_type_is_named(field, value):
    with pytest.raises(InvalidStatus, match=field):
        TaskManagerStatus.from_json(json.loads(STATUS.encode()) | {field: value})


@pytest.mark.parametrize("state", ["starting", "draining", "stopped"])
def test_only_a_ready_taskmanager_gets_work(state):
    assert STATUS.not_ready_because is None
    assert structs.replace(STATUS, state=state).not_ready_because == f"state is {state}"


def test_a_taskmanager_without_healthy_storage_gets_no_work():
    broken = structs.replace(STATUS, storage=STATUS.storage[1:])
    assert broken.not_ready_because == (
        "no storage directory is healthy: /data/1: a probe failed: Input/output error"
    )


def test_a_full_taskmanager_gets_no_work():
    full = structs.replace(STATUS, no_room_because="no storage has room")
    assert full.not_ready_because == "no storage has room"
    assert structs.replace(full, state="draining").not_ready_because == "state is draining"


def test_one_process_that_is_down_does_not_matter():
    assert [each.state for each in STATUS.processes] == ["ready", "ended"]
    assert STATUS.not_ready_because is None


def test_a_taskmanager_without_a_ready_process_gets_no_work():
    first, second = STATUS.processes
    starting = structs.replace(first, state="starting")
    status = structs.replace(STATUS, processes=(starting, second), storage=())
    assert status.not_ready_because == (
        "no data process is ready: 0 is starting, 1 is ended (exit code 1)"
    )
    draining = structs.replace(status, state="draining")
    assert draining.not_ready_because == "state is draining"


def test_a_snapshot_of_counters_stays_as_it_was():
    live = Counters()
    live.late_messages.bump("AddCredit")
    live.peer_serving.busy = 0.5
    taken = live.snapshot()
    live.regions_written += 1
    live.late_messages.bump("AddCredit")
    live.peer_serving.add(ServingSeconds(busy=1.0, idle=2.0))
    assert live.peer_serving == ServingSeconds(busy=1.5, idle=2.0)
    assert (taken.regions_written, taken.late_messages) == (0, {"AddCredit": 1})
    assert taken.peer_serving == ServingSeconds(busy=0.5)
    assert isinstance(taken.late_messages, BoundedCounts)


def test_counts_by_name_are_bounded():
    counts = BoundedCounts()
    for number in range(MAX_KEYS + 10):
        counts.bump(f"name-{number}")
    counts.bump("name-0", 5)
    assert counts["name-0"] == 6
    assert counts[OTHER_KEY] == 10
    assert len(counts) == MAX_KEYS + 1


def test_a_gate_is_full_when_all_its_buffers_are_in_use():
    gate = STATUS.gates[0]
    assert gate.is_full
    assert not structs.replace(gate, floating_used=39).is_full
    only_local = structs.replace(
        gate, exclusive_buffers=0, exclusive_used=0, floating_limit=0, floating_used=0
    )
    assert not only_local.is_full
