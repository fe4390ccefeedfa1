"""Reports of members for tests."""

from __future__ import annotations

from sluice.protocol.schema import MEMBER_ACTIVE, MemberReport
from sluice.shuffle.names import TaskManagerPlace
from sluice.shuffle.taskmanager.cluster.member_reports import MemberReports


def member_report(
    place: TaskManagerPlace,
    node: str = "",
    zone: str = "",
    *,
    state: int = MEMBER_ACTIVE,
    free_bytes: int = 1 << 30,
    open_outputs: int = 0,
) -> MemberReport:
    """Make the report of a TaskManager with one data process."""
    return MemberReport(*place, 7338, 0, 1, node, zone, state, free_bytes, open_outputs)


def reports_of(*reports: MemberReport) -> MemberReports:
    """Make the reports of a TaskManager that has reached these members."""
    own = member_report(TaskManagerPlace("own", "127.0.0.1", 7337))
    made = MemberReports(lambda: own, lambda place: None)
    for report in reports:
        made.received(report, TaskManagerPlace(report.taskmanager_id, report.host, report.port))
    return made
