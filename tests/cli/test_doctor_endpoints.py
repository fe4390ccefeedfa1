"""The checks of TaskManagers: reachability, readiness, credentials and clocks."""

from __future__ import annotations

import email.utils
import time

import pytest
from msgspec import structs

from sluice.cli import doctor_endpoints
from sluice.cli.doctor_endpoints import data_ports, http_ports
from sluice.cli.http_client import HttpAnswer
from sluice.spark_integration.endpoint_check import Failure
from tests.cli.rig import NOWHERE, taskmanager_serving
from tools.docs.sample_status import STATUS

NOW = 1_800_000_000.0
READY = structs.replace(STATUS, tls_certificate_expires_at=NOW + 365 * 86400)


def test_a_ready_taskmanager_is_ok_and_so_is_its_clock():
    with taskmanager_serving(READY) as port:
        lines = list(http_ports([f"http://127.0.0.1:{port}"], "", NOW))
    assert [(each.name.split()[0], each.result) for each in lines] == [
        ("HTTP", "ok"),
        ("certificate", "ok"),
        ("clock", "ok"),
    ]


def test_an_unreachable_one_is_a_problem_with_its_remedy():
    (line,) = http_ports([f"http://{NOWHERE}"], "", NOW)
    assert (line.name, line.result) == (f"HTTP http://{NOWHERE}", "problem")
    assert "Connection refused" in line.text
    assert "sluice taskmanager" in line.remedy


def test_a_certificate_about_to_expire_and_a_drain_are_problems():
    status = structs.replace(READY, state="draining", tls_certificate_expires_at=NOW + 86400)
    with taskmanager_serving(status) as port:
        lines = list(http_ports([f"http://127.0.0.1:{port}"], "", NOW))
    assert [each.result for each in lines] == ["problem", "problem", "ok"]


@pytest.mark.parametrize(("ahead", "side"), [(600, "ahead of"), (-600, "behind")])
def test_a_wrong_clock_is_a_problem(monkeypatch, ahead, side):
    def fetch(url, path):
        return HttpAnswer(b"", email.utils.formatdate(time.time() + ahead, usegmt=True))

    monkeypatch.setattr(doctor_endpoints, "fetch", fetch)
    with taskmanager_serving(READY) as port:
        line = list(http_ports([f"http://127.0.0.1:{port}"], "", NOW))[-1]
    assert line.result == "problem"
    assert side in line.text
    assert "NTP" in line.remedy


@pytest.mark.parametrize("date", ["", "yesterday"])
def test_a_server_without_a_clock_has_no_line(monkeypatch, date):
    monkeypatch.setattr(doctor_endpoints, "fetch", lambda url, path: HttpAnswer(b"", date))
    with taskmanager_serving(READY) as port:
        lines = list(http_ports([f"http://127.0.0.1:{port}"], "", NOW))
    assert not any(each.name.startswith("clock") for each in lines)


def test_a_data_port_where_nobody_listens_is_a_problem():
    (line,) = data_ports([NOWHERE], {}, tls=False)
    assert (line.name, line.result, line.text) == (
        f"data {NOWHERE}",
        "problem",
        "Connection refused",
    )


def test_a_refusal_is_a_problem_only_with_a_credential(monkeypatch, tmp_path):
    failure = [Failure("tm:7337", "The token is expired", refused=True)]
    monkeypatch.setattr(doctor_endpoints, "failure_of_each", lambda *given, **more: failure)
    (without,) = data_ports(["tm:7337"], {}, tls=False)
    assert without.result == "ok"
    monkeypatch.setattr(doctor_endpoints, "client_credential", lambda *given: object())
    (given,) = data_ports(["tm:7337"], {}, tls=False)
    assert (given.result, given.text) == ("problem", "The token is expired")
    assert "sluice token create" in given.remedy


def test_an_unreadable_credential_is_a_problem():
    (line,) = data_ports(["tm:7337"], {"SLUICE_CREDENTIAL_FILE": "/no/such"}, tls=False)
    assert (line.name, line.result) == ("credential", "problem")


def test_without_addresses_the_checks_are_skipped():
    assert [each.result for each in http_ports([], "", NOW)] == ["skipped"]
    assert [each.result for each in data_ports([], {}, tls=False)] == ["skipped"]
