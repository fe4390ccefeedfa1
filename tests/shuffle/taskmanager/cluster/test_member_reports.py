"""What a TaskManager reports about itself and about its members."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from sluice.protocol.schema import MEMBER_DRAINING, Message
from sluice.shuffle.names import TaskManagerPlace
from sluice.shuffle.taskmanager.cluster import member_reports
from sluice.shuffle.taskmanager.cluster.member_reports import MemberReports
from tests.support.members import member_report
from tests.support.mini_cluster import eventually

if TYPE_CHECKING:
    from sluice.transport.connection import Connection

OWN = TaskManagerPlace("own", "127.0.0.1", 7337)
OTHER = TaskManagerPlace("other", "127.0.0.2", 7337)
THIRD = TaskManagerPlace("third", "127.0.0.3", 7337)


class FakeConnection:
    """Records what is sent."""

    closing = False

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def send(self, message: Message) -> None:
        self.sent.append(message)


class Rig:
    def __init__(self) -> None:
        self.own = member_report(OWN)
        self.claims: list[TaskManagerPlace] = []
        self.reports = MemberReports(lambda: self.own, self.claims.append)

    def connect(self) -> tuple[list[Any], Connection]:
        connection = FakeConnection()
        self.reports.subscribe(cast("Connection", connection))
        return connection.sent, cast("Connection", connection)


async def test_a_connection_gets_all_reports_and_then_what_changes():
    rig = Rig()
    other = member_report(OTHER, "node-2")
    rig.reports.received(other, OTHER)
    sent, connection = rig.connect()
    assert sent == [rig.own, other]
    third = member_report(THIRD)
    rig.reports.received(third, THIRD)
    assert sent == [rig.own, other, third]
    rig.reports.received(member_report(OTHER, "node-2", open_outputs=100), OTHER)
    assert len(sent) == 3, "the load of others is theirs to report"
    draining = member_report(OTHER, "node-2", state=MEMBER_DRAINING)
    rig.reports.received(draining, OTHER)
    assert sent[3:] == [draining]
    assert rig.reports.is_draining("other")
    rig.reports.unsubscribe(connection)
    rig.reports.unsubscribe(connection)
    rig.reports.received(other, OTHER)
    assert len(sent) == 4
    rig.reports.close()


async def test_a_report_of_another_taskmanager_is_a_claim():
    rig = Rig()
    sent, _ = rig.connect()
    rig.reports.received(member_report(THIRD), OTHER)
    rig.reports.received(member_report(THIRD), None)
    rig.reports.received(member_report(OTHER._replace(port=1)), OTHER)
    assert rig.claims == [THIRD, THIRD, OTHER._replace(port=1)]
    assert rig.reports.members == {}
    assert sent == [rig.own]
    rig.reports.close()


async def test_a_changed_load_is_reported_in_steps(monkeypatch):
    monkeypatch.setattr(member_reports, "REPORT_SECONDS", 0.001)
    rig = Rig()
    sent, _ = rig.connect()
    steps = []
    for open_outputs in (4, 5, 7, 8):
        rig.own = member_report(OWN, open_outputs=open_outputs)
        if open_outputs in (4, 8):
            steps.append(rig.own)
            await eventually(lambda: sent[1:] == steps)
        else:
            rig.reports.own_changed()
    assert sent[1:] == steps
    rig.reports.close()


async def test_nothing_is_sent_over_a_connection_that_closes():
    rig = Rig()
    sent, connection = rig.connect()
    cast("Any", connection).closing = True
    rig.own = member_report(OWN, state=MEMBER_DRAINING)
    rig.reports.own_changed()
    rig.reports.received(member_report(OTHER), OTHER)
    assert len(sent) == 1
    rig.reports.close()


async def test_the_location_is_the_host_without_a_report_or_a_node():
    rig = Rig()
    assert rig.reports.location_of(OTHER) == (OTHER.host, "")
    rig.reports.received(member_report(OTHER, "", "zone-1"), OTHER)
    assert rig.reports.location_of(OTHER) == (OTHER.host, "zone-1")
    rig.reports.received(member_report(OTHER, "node-2"), OTHER)
    assert rig.reports.location_of(OTHER) == ("node-2", "")
