"""``sluice check``: one line and the exit code of a Nagios plugin."""

from __future__ import annotations

import json
import re

import pytest
from msgspec import structs

from sluice.cli.check_command import CheckLimits, judge, line
from sluice.cli.endpoints import EndpointAnswer
from sluice.protocol.identity import ClusterSecrets
from sluice.shuffle.taskmanager.http.http_access import HttpAccess
from sluice.shuffle.taskmanager.replicas.copies_status import CopiesStatus
from sluice.shuffle.taskmanager.status.status import EventLoopStatus
from sluice.shuffle.taskmanager.store.store_status import TierStatus
from tests.cli.rig import NOWHERE, run, taskmanager_serving
from tests.protocol.identity_vectors import SECRET
from tests.support.http_servers import page_serving
from tools.docs.sample_status import STATUS

DAY = 86400.0
NOW = 1_800_000_000.0
GOOD = structs.replace(
    STATUS,
    storage=(TierStatus("disk", "/data/1", None, 20, True, 80),),
    copies=CopiesStatus(),
    event_loop=EventLoopStatus(),
    tls_certificate_expires_at=None,
    serves="authenticated",
)
PLUGIN_LINE = re.compile(
    r"SLUICE (OK|WARNING|CRITICAL|UNKNOWN) - [^|\n]+ \| [a-z_]+=[0-9.]+[a-zA-Z%]*[;0-9.]*"
    r"( [a-z_]+=[0-9.]+[a-zA-Z%]*[;0-9.]*)*\n"
)


DEFAULTS = CheckLimits()


def judged(limits=DEFAULTS, **changes):
    answer = EndpointAnswer("http://tm:7338", structs.replace(GOOD, **changes))
    return judge([answer], limits, NOW)


def disk(used, free, healthy=True, reason=""):
    return (TierStatus("disk", "/data/1", None, used, healthy, free, reason),)


def test_a_healthy_taskmanager_is_ok():
    report = judged()
    assert (report.severity, report.findings) == ("ok", ())
    assert line(report).startswith("SLUICE OK - 1 of 1 TaskManagers ready | ready=1 ")


@pytest.mark.parametrize(
    ("changes", "severity", "text"),
    [
        ({"state": "draining"}, "warning", "it drains"),
        ({"state": "starting"}, "critical", "it takes no work: state is starting"),
        ({"no_room_because": "full|up"}, "critical", "it takes no work: full|up"),
        ({"storage": disk(86, 14)}, "warning", "disk /data/1 is 86 % full, 14 B are free"),
        ({"storage": disk(96, 4)}, "critical", "disk /data/1 is 96 % full"),
        ({"storage": disk(0, 0)}, "critical", "disk /data/1 is 100 % full"),
        (
            {"storage": disk(1, 9) + disk(0, 0, False, "a probe failed")},
            "warning",
            "disk /data/1 is out of use: a probe failed",
        ),
        ({"event_loop": EventLoopStatus(0, 1.5)}, "warning", "the event loop was 1.5 s late"),
        ({"event_loop": EventLoopStatus(0, 6)}, "critical", "the event loop was 6.0 s late"),
        ({"copies": CopiesStatus(short=3)}, "warning", "3 map outputs lack copies"),
        ({"copies": CopiesStatus(staying=2)}, "warning", "2 map outputs cannot be moved"),
        ({"tls_certificate_expires_at": NOW + 13 * DAY}, "warning", "expires in 13.0 days"),
        ({"tls_certificate_expires_at": NOW + 2 * DAY}, "critical", "(limit 3)"),
        ({"tls_certificate_expires_at": NOW - DAY}, "critical", "expired"),
        ({"serves": "anonymous"}, "warning", "everyone who reaches a port"),
    ],
)
def test_each_problem_has_a_severity_and_words(changes, severity, text):
    report = judged(**changes)
    assert report.severity == severity
    assert len(report.findings) == 1
    assert text in report.findings[0].text
    assert report.findings[0].text.replace("|", "/") in line(report)
    assert PLUGIN_LINE.fullmatch(line(report) + "\n")


def test_limits_move_the_severities():
    assert judged(CheckLimits(storage_percent=(90, 95)), storage=disk(86, 14)).severity == "ok"
    assert judged(CheckLimits(allow_anonymous=True), serves="anonymous").severity == "ok"
    later = CheckLimits(certificate_days=(1, 0))
    assert judged(later, tls_certificate_expires_at=NOW + 2 * DAY).severity == "ok"


def test_the_worst_finding_comes_first_and_counts():
    answers = [
        EndpointAnswer("a", structs.replace(GOOD, state="draining")),
        EndpointAnswer("b", problem="Connection refused"),
        EndpointAnswer("c", problem="a token", is_refused=True),
        EndpointAnswer("d", GOOD),
        EndpointAnswer("e", structs.replace(GOOD, state="draining")),
    ]
    report = judge(answers, CheckLimits(), NOW)
    assert report.severity == "critical"
    assert [each.url for each in report.findings] == ["b", "c", "a", "e"]
    assert report.summary == (
        "1 of 5 TaskManagers ready; b: no status: Connection refused; c: a token; a: it drains; "
        "and 1 more"
    )


@pytest.mark.parametrize(
    ("status", "exit_code"),
    [
        (GOOD, 0),
        (structs.replace(GOOD, state="draining"), 1),
        (structs.replace(GOOD, state="starting"), 2),
    ],
)
def test_the_exit_code_is_that_of_the_severity(status, exit_code):
    with taskmanager_serving(status) as port:
        result = run("check", f"127.0.0.1:{port}")
    assert result.exit_code == exit_code
    assert PLUGIN_LINE.fullmatch(result.stdout), result.stdout
    assert result.stderr == ""


def test_nobody_at_the_port_is_critical():
    result = run("check", NOWHERE, "--json")
    assert result.exit_code == 2
    document = json.loads(result.stdout)
    assert document["schema"] == "sluice.check/1"
    assert document["severity"] == "critical"
    assert document["findings"][0]["url"] == f"http://{NOWHERE}"


def test_another_server_and_a_refused_token_are_unknown():
    with page_serving("hello") as port:
        assert run("check", f"127.0.0.1:{port}").exit_code == 3
    with taskmanager_serving(GOOD, lambda: HttpAccess(ClusterSecrets([SECRET]))) as port:
        result = run("check", f"127.0.0.1:{port}")
    assert result.exit_code == 3
    assert "requires an access token" in result.stdout
    assert PLUGIN_LINE.fullmatch(result.stdout)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--storage", "x"),
        ("--storage", "nan,nan"),
        ("--storage", "85,inf"),
        ("--storage", "95,85"),
        ("--lag", "5,1"),
        ("--certificate", "3,14"),
        ("--no-such",),
        ("--timeout", "0"),
        ("--timeout", "nan"),
        ("--secret-file", "/no/such"),
    ],
)
def test_wrong_usage_is_unknown_and_not_critical(arguments):
    result = run("check", NOWHERE, *arguments)
    assert result.exit_code == 3
    assert result.stdout.startswith("SLUICE UNKNOWN - ")
    assert result.stdout.count("\n") == 1


@pytest.mark.parametrize("body", ["NaN", '{"uptime_seconds": 1e999}', "[" * 100_000])
@pytest.mark.parametrize("command", ["check", "status", "drain"])
def test_what_is_not_json_is_one_line(command, body):
    with page_serving(body) as port:
        result = run(command, f"127.0.0.1:{port}")
    assert result.exit_code == (3 if command == "check" else 1)
    assert result.output.count("\n") == 1
    assert "JSON" in result.output


def test_number_that_is_not_finite_is_unknown():
    document = json.loads(GOOD.encode()) | {"uptime_seconds": float("nan")}
    with page_serving(json.dumps(document)) as port:
        result = run("check", f"127.0.0.1:{port}")
    assert result.exit_code == 3
    assert PLUGIN_LINE.fullmatch(result.stdout)


def test_a_bug_is_unknown(monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("a|b")

    monkeypatch.setattr("sluice.cli.check_command.judge", fail)
    result = run("check", NOWHERE)
    assert result.exit_code == 3
    assert result.stdout == "SLUICE UNKNOWN - ZeroDivisionError: a/b\n"
