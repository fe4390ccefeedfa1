"""Exchanges reports between the members of a cluster, and sends them to drivers.

A TaskManager sends a report about itself and about its members to each connected driver and
member, and again when a member joins. A report about another TaskManager is a claim until this one
has reached that TaskManager: then the member reports itself, and that report counts.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from ....protocol.schema import MEMBER_DRAINING, MemberReport
from ....transport.connection import Connection
from ...names import TaskManagerPlace

REPORT_SECONDS: Final = 5.0
"""Interval at which this TaskManager checks whether its load has changed."""


class MemberReports:
    """Sends and keeps the reports of members.

    Args:
        own: Returns the report of this TaskManager.
        on_claim: Called with a TaskManager that another one reports.
    """

    def __init__(
        self, own: Callable[[], MemberReport], on_claim: Callable[[TaskManagerPlace], None]
    ) -> None:
        self._own: Final = own
        self._on_claim: Final = on_claim
        self._members: dict[str, MemberReport] = {}
        self._receivers: dict[Connection, MemberReport] = {}
        """Each connection that takes reports, and the last report of this TaskManager sent."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def members(self) -> dict[str, MemberReport]:
        """The last report of each member that this TaskManager has reached, by id."""
        return self._members

    def subscribe(self, connection: Connection) -> None:
        """Send all reports to the other side of a connection, and further ones as they change."""
        self._send_own(connection, self._own())
        for report in self._members.values():
            connection.send(report)
        self._start_timer()

    def unsubscribe(self, connection: Connection) -> None:
        """Send nothing more. Idempotent."""
        self._receivers.pop(connection, None)
        if not self._receivers:
            self.close()

    def received(self, report: MemberReport, reached: TaskManagerPlace | None) -> None:
        """Record a report.

        Args:
            report: The report.
            reached: The sender, if this TaskManager has connected to it; None: the sender has
                connected to this one, so its address is a claim.
        """
        place = TaskManagerPlace(report.taskmanager_id, report.host, report.port)
        if place == reached:
            self._record(report)
        else:
            self._on_claim(place)

    def location_of(self, place: TaskManagerPlace) -> tuple[str, str]:
        """Return node and zone of another TaskManager; without a report, its host and no zone."""
        report = self._members.get(place.taskmanager_id)
        return (place.host, "") if report is None else (report.node or report.host, report.zone)

    def is_draining(self, taskmanager_id: str) -> bool:
        """Return whether a member reports that it takes no new map outputs."""
        report = self._members.get(taskmanager_id)
        return report is not None and report.state == MEMBER_DRAINING

    def forget(self, taskmanager_id: str) -> None:
        """Forget a TaskManager that is no longer a member. Idempotent."""
        self._members.pop(taskmanager_id, None)

    def own_changed(self) -> None:
        """Send the report of this TaskManager again, if it has changed."""
        report = self._own()
        for connection in self._open():
            if _differs(self._receivers[connection], report):
                self._send_own(connection, report)

    def close(self) -> None:
        """Stop the timer. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _record(self, report: MemberReport) -> None:
        """Record a member's report of itself; pass it on if more than its load has changed."""
        before = self._members.get(report.taskmanager_id)
        self._members[report.taskmanager_id] = report
        if before is None or _identity(before) != _identity(report):
            for connection in self._open():
                connection.send(report)

    def _send_own(self, connection: Connection, report: MemberReport) -> None:
        self._receivers[connection] = report
        connection.send(report)

    def _open(self) -> list[Connection]:
        return [each for each in self._receivers if not each.closing]

    def _start_timer(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(REPORT_SECONDS, self._check_load)

    def _check_load(self) -> None:
        self._timer = None
        self.own_changed()
        if self._receivers:
            self._start_timer()


def _identity(report: MemberReport) -> tuple[object, ...]:
    """Return what a receiver must know, apart from the load."""
    return (report.host, report.port, report.http_port, report.node, report.zone, report.state)


def _differs(before: MemberReport, now: MemberReport) -> bool:
    """Return whether a receiver would choose differently: loads are compared in powers of two."""
    return (
        _identity(before) != _identity(now)
        or before.free_bytes.bit_length() != now.free_bytes.bit_length()
        or before.open_outputs.bit_length() != now.open_outputs.bit_length()
    )
