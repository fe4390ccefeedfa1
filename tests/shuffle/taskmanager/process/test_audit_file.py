"""The file of the audit log: opened safely, written by a thread."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.shuffle.taskmanager.http.audit_entry import AUDIT
from sluice.shuffle.taskmanager.process.audit_file import AuditFile
from sluice.transport.errors import counted
from tests.support.daemon import Daemon, arguments, run
from tests.support.raises_code import raises_code

logger = logging.getLogger(AUDIT)


def link(path):
    path.symlink_to(path.with_name("other"))


def shared(path):
    path.parent.chmod(0o777)


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (os.mkfifo, "No such device or address"),
        (lambda path: path.mkdir(), "Is a directory"),
        (link, "symbolic links"),
        (shared, "other users can write to"),
    ],
    ids=["pipe", "directory", "link", "shared directory"],
)
def test_a_file_that_others_may_place_is_refused(tmp_path, prepare, reason):
    path = tmp_path / "d" / "audit.log"
    path.parent.mkdir()
    prepare(path)
    with raises_code(ErrorCode.CONFIGURATION, reason):
        AuditFile.open(path)
    assert logger.handlers == []


def test_lines_are_in_the_file_alone_until_it_is_closed(tmp_path, caplog):
    path = tmp_path / "audit.log"
    file = AuditFile.open(path)
    logger.warning("first")
    file.close()
    logger.warning("second")
    assert path.read_text().endswith(f"WARNING {AUDIT}: first\n")
    assert [each.message for each in caplog.records] == ["second"]


def test_lines_that_cannot_be_written_are_counted_and_told_once(caplog):
    path = Path("/audit.log")
    file = AuditFile(path, os.open("/dev/full", os.O_WRONLY))
    for number in range(3):
        logger.info("line %d", number)
        assert file._queue.drain(30)
    assert file.dropped_lines == 3
    file.close()
    (told,) = caplog.messages
    assert told.startswith(f"lines of the audit log are lost: {path} cannot be written: No space")


def test_refused_requests_are_counted_and_others_are_not(tmp_path):
    path = tmp_path / "audit.log"
    file = AuditFile.open(path)
    for _ in range(1000):
        logger.warning("accepted " + "x" * 100)
        logger.warning("refused", extra=counted("refused", "10.0.0.7:1"))
    file.close()
    text = path.read_text()
    assert (text.count("accepted"), text.count(": refused\n")) == (1000, 1)
    assert "999 from 10.0.0.7" in text


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_drain_is_in_the_file_of_a_daemon(tmp_path, processes):
    path = tmp_path / "audit.log"
    with Daemon(tmp_path, processes=processes, audit_log_path=path) as daemon:
        daemon.drain()
        assert daemon.end() == 0
    (line,) = path.read_text().splitlines()
    assert f"INFO {AUDIT}: POST /api/v1/drain?wait_seconds=60 by user {os.getuid()}, " in line
    assert line.endswith(" from the Unix socket: 200")
    assert AUDIT not in daemon.log


@pytest.mark.slow
def test_a_file_that_cannot_be_opened_ends_the_start(tmp_path):
    path = tmp_path / "none" / "audit.log"
    done = run(arguments(tmp_path, audit_log_path=path))
    assert done.returncode == 1
    assert f"The audit log {path} cannot be opened: No such file" in done.stderr
