"""Warnings: the numbers that cause them, their order, their number, and when there are none."""

from __future__ import annotations

import copy

import pytest
from msgspec import structs

from sluice.shuffle.counters import BoundedCounts, Counters
from sluice.shuffle.taskmanager.bounds.accounts import ApplicationStatus, HoldingStatus
from sluice.shuffle.taskmanager.status.process_status import ProcessStatus
from sluice.shuffle.taskmanager.status.status import EventLoopStatus, TaskManagerStatus
from sluice.shuffle.taskmanager.status.warnings import (
    CERTIFICATE_SECONDS,
    MAX_NAME,
    MAX_WARNINGS,
    find_warnings,
)
from sluice.shuffle.taskmanager.store.store_status import TierStatus
from tools.docs.sample_status import EMPTY_STATUS, STATUS

NOW = 1_700_000_000.0
GIB = 1 << 30
DISK = TierStatus("disk", "/data/1", None, GIB, True, 9 * GIB, "", GIB)
HEALTHY = structs.replace(EMPTY_STATUS, state="ready", storage=(DISK,))


def counters(**changes: object) -> Counters:
    made = copy.copy(Counters())
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def holding(held: int, quota: int | None, subject_held: int | None = None) -> tuple:
    return (HoldingStatus("disk_tier_bytes", held, quota, subject_held),)


def application(name: str, holdings: tuple) -> ApplicationStatus:
    return ApplicationStatus(name, 1, None, 0, holdings)


def one_warning(status: TaskManagerStatus):
    (found,) = find_warnings(status, NOW)
    assert found.remedy
    return found


def test_a_healthy_taskmanager_has_no_warnings():
    assert find_warnings(HEALTHY, NOW) == ()
    busy = structs.replace(HEALTHY, applications=(application("a", holding(5, None)),))
    assert find_warnings(busy, NOW) == ()


@pytest.mark.parametrize(
    ("changes", "severity", "text"),
    [
        ({"state": "draining"}, "warning", "drains and takes no new map outputs"),
        (
            {"no_room_because": "no storage has room"},
            "error",
            "takes no new work: no storage has room.",
        ),
        (
            {"storage": (DISK, structs.replace(DISK, directory="/b", healthy=False, reason="EIO"))},
            "error",
            "Storage disk /b accepts no data: EIO.",
        ),
        (
            {"storage": (DISK, structs.replace(DISK, directory="/b", unread=True))},
            "error",
            "Storage disk /b has not answered since the start.",
        ),
        (
            {"storage": (structs.replace(DISK, used_bytes=95 * GIB, free_bytes=5 * GIB),)},
            "warning",
            "Storage disk /data/1 is 95 % full",
        ),
        (
            {"processes": (ProcessStatus(state="ready"), ProcessStatus(1, state="silent"))},
            "error",
            "Data process 1 is silent.",
        ),
        (
            {"copies": structs.replace(EMPTY_STATUS.copies, short=7)},
            "warning",
            "7 map outputs lack copies on other TaskManagers.",
        ),
        (
            {"copies": structs.replace(EMPTY_STATUS.copies, short_of_remote=8)},
            "warning",
            "8 map outputs lack their copy in the remote tier.",
        ),
        (
            {"copies": structs.replace(EMPTY_STATUS.copies, staying=9, reason="b is full")},
            "warning",
            "9 map outputs stay in this migration: b is full.",
        ),
        (
            {"applications": (application("app", holding(90, 100)),)},
            "warning",
            "Application app uses 90 % of its quota of disk tier.",
        ),
        (
            {"applications": (application("app", holding(1, 100, 99)),)},
            "warning",
            "Application app uses 99 % of its quota of disk tier.",
        ),
        (
            {"network_pool": structs.replace(EMPTY_STATUS.network_pool, waiting_requests=3)},
            "warning",
            "3 channels wait for network memory.",
        ),
        (
            {"network_pool": structs.replace(EMPTY_STATUS.network_pool, expired_requests=3)},
            "note",
            "3 requests got no network memory since the start.",
        ),
        (
            {"control_memory": structs.replace(EMPTY_STATUS.control_memory, used_bytes=67_000_000)},
            "warning",
            "Control memory is 100 % used.",
        ),
        (
            {"event_loop": EventLoopStatus(0.0, 2.5)},
            "warning",
            "The event loop was 2.5 s late in the last minute.",
        ),
        ({"serves": "anonymous"}, "warning", "Anybody who reaches a port"),
        (
            {"tls_certificate_expires_at": NOW + CERTIFICATE_SECONDS / 2},
            "warning",
            "The TLS certificate expires in 7.0 days.",
        ),
        ({"tls_certificate_expires_at": NOW - 1}, "error", "The TLS certificate has expired."),
        (
            {"counters": counters(damaged_map_outputs_dropped=3, damaged_map_outputs_repaired=1)},
            "note",
            "2 map outputs were damaged in storage",
        ),
        (
            {"counters": counters(errors_by_code=BoundedCounts(INTERNAL=1))},
            "note",
            "1 internal errors since the start: a bug.",
        ),
        ({"counters": counters(log_lines_dropped=5)}, "note", "5 log lines were dropped"),
        ({"counters": counters(audit_lines_dropped=5)}, "note", "5 lines of the audit log"),
    ],
)
def test_a_condition_is_a_warning_with_a_remedy(changes, severity, text):
    found = one_warning(structs.replace(HEALTHY, **changes))
    assert found.severity == severity
    assert text in found.text


def test_what_is_nearly_used_up_is_no_warning_before():
    almost = structs.replace(
        HEALTHY,
        storage=(structs.replace(DISK, used_bytes=89 * GIB, free_bytes=11 * GIB),),
        applications=(application("app", holding(89, 100)),),
        event_loop=EventLoopStatus(0.9, 0.9),
        tls_certificate_expires_at=NOW + CERTIFICATE_SECONDS + 1,
    )
    assert find_warnings(almost, NOW) == ()


def test_a_full_memory_tier_is_no_warning():
    memory = TierStatus("memory", "/m", GIB, GIB, True, 0, "", 0)
    assert find_warnings(structs.replace(HEALTHY, storage=(memory, DISK)), NOW) == ()


def test_errors_come_first():
    order = [each.severity for each in find_warnings(STATUS, NOW)]
    assert order == sorted(order, key=["error", "warning", "note"].index)
    assert {"error", "warning", "note"} == set(order)


def test_warnings_are_bounded_and_the_fullest_quotas_come_first():
    applications = tuple(application(f"a{each}", holding(each, 1000)) for each in range(900, 1000))
    found = find_warnings(structs.replace(HEALTHY, applications=applications), NOW)
    assert len(found) == MAX_WARNINGS
    assert "Application a999 " in found[0].text
    assert found[-1].text == f"There are {100 - MAX_WARNINGS + 1} more warnings."


def test_a_name_is_cut_and_has_no_control_characters():
    name = "a\x1b[31m" + "b" * 1000
    status = structs.replace(HEALTHY, applications=(application(name, holding(100, 100)),))
    text = one_warning(status).text
    assert len(text) < MAX_NAME + 60
    assert text.isprintable()
