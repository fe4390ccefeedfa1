"""Log lines as JSON: fixed fields, one object a line, whatever a record contains."""

from __future__ import annotations

import json
import logging
import signal
import sys

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.shuffle.names import MapAttemptKey, ShuffleKey
from sluice.shuffle.taskmanager.process.json_log import JsonFormatter
from sluice.transport.errors import ConnectionLost, code_field, counted, log_end
from tests.support.daemon import Daemon

ATTEMPT = MapAttemptKey(ShuffleKey("app", 3), 17)


def formatted(formatter=None, **given):
    record = logging.makeLogRecord(
        {"name": "sluice.test", "levelname": "INFO", "msg": "text", "created": 0.5, "msecs": 500.0}
        | given
    )
    line = (formatter or JsonFormatter()).format(record)
    assert "\n" not in line
    return json.loads(line)


def test_fields_without_a_value_are_left_out():
    assert formatted(msg="%d of %s", args=(1, "two")) == {
        "time": "1970-01-01T00:00:00.500Z",
        "level": "INFO",
        "logger": "sluice.test",
        "message": "1 of two",
    }


def test_an_empty_application_is_left_out():
    assert "application" not in formatted(application="", peer="10.0.0.7:4711")


def test_a_line_about_a_map_attempt_names_it():
    found = formatted(**ATTEMPT.log_fields, code="STORAGE_FULL", peer="tm-1 host:7337")
    assert {name: found[name] for name in list(found)[4:]} == {
        "application": "app",
        "shuffle": 3,
        "map_attempt": 17,
        "peer": "tm-1 host:7337",
        "code": "STORAGE_FULL",
    }


def test_a_counted_record_has_its_source_as_peer():
    assert formatted(**counted("kind", "10.0.0.7:4711"))["peer"] == "10.0.0.7"


def test_the_end_of_a_connection_has_application_peer_and_code(caplog):
    logger, error = logging.getLogger("sluice.test"), ConnectionLost("x")
    log_end(logger, "closing", "10.0.0.7:1", "LOST", error, "app")
    found = json.loads(JsonFormatter().format(caplog.records[0]))
    assert (found["application"], found["peer"]) == ("app", "10.0.0.7:1")
    assert found["code"] == ErrorCode.CONNECTION_LOST.name


def test_an_error_without_a_code_gives_no_field():
    assert code_field(ConnectionLost("x")) == {"code": "CONNECTION_LOST"}
    assert code_field(OSError("x")) == {}


def test_a_data_process_is_named_by_its_index():
    assert formatted(JsonFormatter(2))["process"] == 2


def test_a_traceback_is_a_field():
    try:
        raise ValueError("of the test")
    except ValueError:
        found = formatted(exc_info=sys.exc_info())
    assert str(found["traceback"]).endswith("ValueError: of the test")


@pytest.mark.parametrize("text", ["a\nb\x1b[0m", "\udcff", 'quote " and \\'])
def test_any_text_is_one_line_of_json(text):
    found = formatted(msg="%s", args=(text,), application=text)
    assert found["message"] == text.encode(errors="backslashreplace").decode()


def test_a_value_of_another_library_becomes_text():
    assert formatted(code=ErrorCode.INTERNAL, peer=["a"])["peer"] == "['a']"


@pytest.mark.slow
def test_every_line_of_a_daemon_is_json_and_sighup_changes_the_format(tmp_path):
    path = tmp_path / "sluice.toml"
    path.write_text('log_format = "json"\n')
    with Daemon(tmp_path, config=path) as daemon:
        assert all("message" in json.loads(line) for line in daemon.log.splitlines())
        path.write_text('log_format = "text"\n')
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for_log("quotas are those of the configuration now")
        assert daemon.end() == 0
    assert not daemon.log.splitlines()[-1].startswith("{")
