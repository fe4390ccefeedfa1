"""Many HTTP ports at once: each answers or is named, and none holds the others up."""

from __future__ import annotations

import socket
import threading

import pytest

from sluice.cli import endpoints
from sluice.cli.endpoints import fetch_statuses
from tests.cli.rig import NOWHERE, taskmanager_serving
from tests.support.http_servers import page_serving
from tools.docs.sample_status import STATUS

URL = "http://127.0.0.1:{}"


@pytest.fixture
def tarpit():
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield URL.format(listener.getsockname()[1])


def test_answers_come_in_the_order_of_the_urls(tarpit):
    with taskmanager_serving(STATUS) as port, page_serving("hello") as other:
        urls = [tarpit, URL.format(port), f"http://{NOWHERE}", URL.format(other)]
        answers = fetch_statuses(urls, "", 3.0)
    assert [each.url for each in answers] == urls
    found = [each.status for each in answers]
    assert [each and each.taskmanager_id for each in found] == [
        None,
        STATUS.taskmanager_id,
        None,
        None,
    ]
    assert "timed out" in answers[0].problem
    assert "Connection refused" in answers[2].problem
    assert answers[3].problem == "it did not answer JSON"
    assert [each.is_foreign for each in answers] == [False, False, False, True]


def test_a_repeated_url_is_asked_once():
    with taskmanager_serving(STATUS) as port:
        assert len(fetch_statuses([URL.format(port)] * 3, "")) == 1


def test_an_endpoint_that_hangs_beyond_its_timeout_is_named(monkeypatch):
    released = threading.Event()

    def hang(url, token, timeout_seconds):
        if url == "a":
            released.wait(60)
        return {}, STATUS

    monkeypatch.setattr(endpoints, "fetch_status", hang)
    monkeypatch.setattr(endpoints, "LATE_SECONDS", 0.0)
    answers = fetch_statuses(["a", "b"], "", 0.01)
    released.set()
    assert answers[0].problem == "no answer within 0.01 s"
    assert answers[1].status == STATUS
