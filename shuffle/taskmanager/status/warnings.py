"""Turns the numbers of a status into warnings in words, each with its remedy.

It is a pure function of the status, so the HTTP thread computes the warnings and the data path does
not pay for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ....transport.settings import approximate_size
from .status import WarningStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..bounds.accounts import ApplicationStatus, HoldingStatus
    from ..store.store_status import TierStatus
    from .status import TaskManagerStatus

NEARLY_FULL: Final = 0.9
"""Share of a disk, a quota or the control memory above which it is nearly used up."""

NORMALLY_USED_UP: Final = ("memory_tier_bytes", "network_segments", "region_areas_bytes")
"""Quotas that may be used up for long in normal work. The alert of quotas omits them too."""

LATE_SECONDS: Final = 1.0
"""Lag of the event loop above which transfers suffer."""

CERTIFICATE_SECONDS: Final = 14 * 24 * 3600.0
"""Time before its expiry at which a certificate should be replaced."""

MAX_WARNINGS: Final = 50
"""Warnings in a status; the last one says how many others there are."""

MAX_NAME: Final = 64
"""Characters of a name in a warning: tenants choose the names of applications."""

_ORDER: Final = {"error": 0, "warning": 1, "note": 2}


def find_warnings(status: TaskManagerStatus, now_seconds: float) -> tuple[WarningStatus, ...]:
    """Return the warnings of a status, errors first.

    Args:
        status: A snapshot.
        now_seconds: The time, in seconds since 1970.
    """
    found = [each for look in _LOOKS for each in look(status, now_seconds)]
    found.sort(key=lambda each: _ORDER[each.severity])
    if len(found) <= MAX_WARNINGS:
        return tuple(found)
    more = len(found) - MAX_WARNINGS + 1
    last = WarningStatus("note", f"There are {more} more warnings.", "Handle these first.")
    return (*found[: MAX_WARNINGS - 1], last)


def _of_readiness(status: TaskManagerStatus, _: float) -> Iterator[WarningStatus]:
    if status.state == "draining":
        yield WarningStatus(
            "warning",
            "This TaskManager drains and takes no new map outputs.",
            "Stop it when nothing is written or read, or run: sluice undrain",
        )
    elif status.state == "ready" and status.not_ready_because is not None:
        yield WarningStatus(
            "error",
            f"This TaskManager takes no new work: {status.not_ready_because}.",
            "Make room or repair the storage; readers are still served",
        )


def _of_processes(status: TaskManagerStatus, _: float) -> Iterator[WarningStatus]:
    for each in status.processes:
        if not each.up and each.state != "starting":
            yield WarningStatus(
                "error",
                f"Data process {each.process} is {each.condition}.",
                f"Read the log lines with: process {each.process}",
            )


def _of_storage(status: TaskManagerStatus, _: float) -> Iterator[WarningStatus]:
    for tier in status.storage:
        name = f"{tier.tier} {_short(tier.directory)}"
        if tier.unread:
            yield WarningStatus(
                "error",
                f"Storage {name} has not answered since the start.",
                "Check the disk; its map outputs are served again when it answers",
            )
        elif not tier.healthy:
            yield WarningStatus(
                "error",
                f"Storage {name} accepts no data: {tier.reason or 'it is out of use'}.",
                "Check the disk, and replace it or repair the directory",
            )
        elif tier.tier == "disk" and _share(tier) > NEARLY_FULL:
            yield WarningStatus(
                "warning",
                f"Storage {name} is {_percent(_share(tier))} full: "
                f"{approximate_size(tier.free_bytes)} are free.",
                "Let shuffles end, add a data directory, or add a TaskManager",
            )


def _of_copies(status: TaskManagerStatus, _: float) -> Iterator[WarningStatus]:
    copies = status.copies
    if copies.short:
        yield WarningStatus(
            "warning",
            f"{copies.short} map outputs lack copies on other TaskManagers.",
            "Wait until they are copied again; if the number stays, add a TaskManager",
        )
    if copies.short_of_remote:
        yield WarningStatus(
            "warning",
            f"{copies.short_of_remote} map outputs lack their copy in the remote tier.",
            "Check that the remote store is reachable and accepts writes",
        )
    if copies.staying:
        yield WarningStatus(
            "warning",
            f"{copies.staying} map outputs stay in this migration: {copies.reason}.",
            "Make room on another TaskManager, then drain again",
        )


def _of_quotas(status: TaskManagerStatus, _: float) -> Iterator[WarningStatus]:
    near = [
        (used, application, holding)
        for application in status.applications
        for holding in application.holdings
        if holding.resource not in NORMALLY_USED_UP and (used := _used(holding)) >= NEARLY_FULL
    ]
    near.sort(key=lambda each: -each[0])
    for used, application, holding in near:
        yield _near_quota(used, application, holding)


def _near_quota(
    used: float, application: ApplicationStatus, holding: HoldingStatus
) -> WarningStatus:
    resource = holding.resource.removesuffix("_bytes").replace("_", " ")
    return WarningStatus(
        "warning",
        f"Application {_short(application.application_id)} uses {_percent(used)} of its quota of "
        f"{resource}.",
        f"Let its shuffles end, or raise quota_{holding.resource}",
    )


def _of_memory(status: TaskManagerStatus, _: float) -> Iterator[WarningStatus]:
    pool, memory = status.network_pool, status.control_memory
    denied = pool.refused_requests + pool.expired_requests
    if pool.waiting_requests:
        yield WarningStatus(
            "warning",
            f"{pool.waiting_requests} channels wait for network memory.",
            "Find a gate that is not read, or raise network_segments",
        )
    if denied:
        yield WarningStatus(
            "note",
            f"{denied} requests got no network memory since the start.",
            "Raise network_segments if the number grows",
        )
    if memory.capacity_bytes and memory.used_bytes > NEARLY_FULL * memory.capacity_bytes:
        yield WarningStatus(
            "warning",
            f"Control memory is {_percent(memory.used_bytes / memory.capacity_bytes)} used.",
            "Find clients that do not read their replies, or raise max_control_memory_bytes",
        )


def _of_event_loop(status: TaskManagerStatus, _: float) -> Iterator[WarningStatus]:
    late = status.event_loop.max_lag_seconds
    if late > LATE_SECONDS:
        yield WarningStatus(
            "warning",
            f"The event loop was {late:.1f} s late in the last minute.",
            "Give the TaskManager more CPU, or more processes",
        )


def _of_security(status: TaskManagerStatus, now_seconds: float) -> Iterator[WarningStatus]:
    if status.allows_anonymous:
        yield WarningStatus(
            "warning",
            "Anybody who reaches a port can read, write and remove data.",
            "Make a cluster secret and remove allow_anonymous",
        )
    expires_at = status.tls_certificate_expires_at
    if expires_at is not None and expires_at - now_seconds < CERTIFICATE_SECONDS:
        days = (expires_at - now_seconds) / (24 * 3600)
        yield WarningStatus(
            "error" if days <= 0 else "warning",
            "The TLS certificate has expired."
            if days <= 0
            else f"The TLS certificate expires in {days:.1f} days.",
            "Replace its file; the TaskManager reloads it",
        )


def _of_damage(status: TaskManagerStatus, _: float) -> Iterator[WarningStatus]:
    counters = status.counters
    lost = counters.damaged_map_outputs_dropped - counters.damaged_map_outputs_repaired
    if lost > 0:
        yield WarningStatus(
            "note",
            f"{lost} map outputs were damaged in storage and dropped since the start.",
            "Check the disk and the memory of this host",
        )
    if internal := counters.errors_by_code.get("INTERNAL", 0):
        yield WarningStatus(
            "note",
            f"{internal} internal errors since the start: a bug.",
            "Report the traceback in the log",
        )
    if counters.log_lines_dropped:
        yield WarningStatus(
            "note",
            f"{counters.log_lines_dropped} log lines were dropped since the start.",
            "Restart what reads the log of this TaskManager",
        )
    if counters.audit_lines_dropped:
        yield WarningStatus(
            "note",
            f"{counters.audit_lines_dropped} lines of the audit log were dropped since the start.",
            "Make room on the disk of audit_log_path",
        )


_LOOKS: Final[tuple[Callable[[TaskManagerStatus, float], Iterator[WarningStatus]], ...]] = (
    _of_readiness,
    _of_processes,
    _of_storage,
    _of_copies,
    _of_quotas,
    _of_memory,
    _of_event_loop,
    _of_security,
    _of_damage,
)


def _share(tier: TierStatus) -> float:
    """Return which share of what a tier can hold is used."""
    size = tier.used_bytes + tier.free_bytes
    return tier.used_bytes / size if size else 1.0


def _used(holding: HoldingStatus) -> float:
    """Return which share of its quota is used; 0 without a quota."""
    if not holding.quota:
        return 0.0
    held = holding.held if holding.subject_held is None else holding.subject_held
    return max(held, holding.held) / holding.quota


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _short(name: str) -> str:
    printable = "".join(each if each.isprintable() else "?" for each in name)
    return printable if len(printable) <= MAX_NAME else f"{printable[: MAX_NAME - 1]}…"
