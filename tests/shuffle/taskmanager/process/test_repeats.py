"""Repeated log records are counted instead of written."""

from __future__ import annotations

import logging

import pytest

from sluice.shuffle.taskmanager.process.log_queue import LogQueue
from sluice.shuffle.taskmanager.process.output import LogHandler
from sluice.shuffle.taskmanager.process.repeats import (
    KIND_BYTES,
    MAX_KINDS,
    MAX_SOURCES,
    PERIOD_SECONDS,
    Repeats,
)
from sluice.transport.errors import counted


class Queue(LogQueue):
    """Keeps lines without their time."""

    def __init__(self) -> None:
        super().__init__(-1, str)
        self.lines: list[str] = []
        self.woken = 0

    def put(self, text: str) -> None:
        self.lines.append(text.split(" ", 2)[2].removesuffix("\n"))

    def wake(self) -> None:
        self.woken += 1

    def take(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines


class Log:
    """A log with a clock of its own."""

    def __init__(self, name: str = "sluice.test") -> None:
        self.now = 0.0
        self.queue = Queue()
        self.handler = LogHandler(self.queue, Repeats(lambda: self.now))
        self.logger = logging.Logger(name, logging.DEBUG)
        self.logger.addHandler(self.handler)

    def closed(self, remote: str, kind: str = "closing") -> None:
        self.logger.warning("closing %s", remote, extra=counted(kind, remote))


@pytest.fixture
def log():
    return Log()


def test_the_first_of_each_source_is_written_and_the_others_are_counted(log):
    for port in range(400):
        log.closed(f"10.0.0.1:{port}")
    for port in range(44):
        log.closed(f"::1:{port}")
    log.closed("10.0.0.3:1")
    assert log.queue.take() == [
        "WARNING sluice.test: closing 10.0.0.1:0",
        "WARNING sluice.test: closing ::1:0",
        "WARNING sluice.test: closing 10.0.0.3:1",
    ]
    log.now = PERIOD_SECONDS
    assert log.queue.due() is None
    assert log.queue.take() == [
        "WARNING sluice.test: 442 more in 60 s: closing: 399 from 10.0.0.1, 43 from ::1"
    ]


def test_each_kind_has_a_line_of_its_own(log):
    for kind in ("late", "wrong"):
        for port in range(3):
            log.closed(f"10.0.0.1:{port}", kind)
    log.queue.take()
    log.handler.flush()
    assert [line.partition("s: ")[2] for line in log.queue.take()] == [
        "late: 2 from 10.0.0.1",
        "wrong: 2 from 10.0.0.1",
    ]


def test_the_first_of_the_next_period_is_written_again(log):
    log.closed("10.0.0.1:1")
    log.closed("10.0.0.1:2")
    log.now = PERIOD_SECONDS + 1
    log.closed("10.0.0.1:3")
    assert [line.partition(": ")[2] for line in log.queue.take()] == [
        "closing 10.0.0.1:1",
        "1 more in 61 s: closing: 1 from 10.0.0.1",
        "closing 10.0.0.1:3",
    ]


def test_many_sources_cost_a_bounded_number_of_lines(log):
    for number in range(20_000):
        log.closed(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:1")
    assert len(log.queue.take()) == MAX_SOURCES
    log.handler.flush()
    (line,) = log.queue.take()
    assert line.endswith(f": closing: {20_000 - MAX_SOURCES} from other addresses")


def test_the_thread_is_woken_once_until_the_period_ends(log):
    assert log.queue.due() is None
    for port in range(9):
        log.closed(f"10.0.0.1:{port}")
    assert log.queue.woken == 1
    log.now = 10
    assert log.queue.due() == PERIOD_SECONDS - 10


def test_other_lines_of_a_kind_are_written_up_to_a_number_of_bytes(log):
    for number in range(10_000):
        log.logger.error("output %d is damaged", number)
    log.logger.error("another kind")
    *lines, last = log.queue.take()
    assert KIND_BYTES // 100 < len(lines) < KIND_BYTES // 40
    assert last.endswith("another kind")
    log.handler.flush()
    text = f"{10_000 - len(lines)} more in 0 s of this kind: output {len(lines)} is damaged"
    assert log.queue.take() == [f"ERROR sluice.test: {text}"]


def test_tracebacks_are_bounded_as_well(log):
    try:
        raise ValueError("x" * 5000)
    except ValueError:
        for _ in range(100):
            log.logger.exception("internal error")
    assert sum("Traceback" in line for line in log.queue.take()) == KIND_BYTES // 5000 + 1


def test_texts_of_other_libraries_count_by_their_logger():
    log = Log("asyncio")
    for number in range(10_000):
        log.logger.error(f"Task {number} was destroyed " + "x" * 1000)
    assert len(log.queue.take()) == KIND_BYTES // 1000


def test_many_kinds_count_by_their_logger(log):
    for number in range(10_000):
        log.logger.error(f"text number {number}")
    assert len(log.queue.take()) < MAX_KINDS + KIND_BYTES // 40


def test_records_below_info_are_all_written(log):
    for _ in range(2000):
        log.logger.debug("x" * 100)
    assert len(log.queue.take()) == 2000


def test_every_record_is_written_at_level_debug(log):
    before = logging.root.level
    logging.root.setLevel(logging.DEBUG)
    try:
        for port in range(2000):
            log.closed(f"10.0.0.1:{port}")
    finally:
        logging.root.setLevel(before)
    assert len(log.queue.take()) == 2000


def test_bytes_of_the_other_side_cannot_forge_a_line(log):
    for _ in range(10_000):
        log.logger.error("it says %s", "a\n2026-11-25 INFO forged")
    log.queue.take()
    log.handler.flush()
    (line,) = log.queue.take()
    assert line.endswith("it says a\\n2026-11-25 INFO forged")


def test_a_record_that_cannot_be_formatted_is_skipped(log, capsys):
    log.logger.error("%d", "no number")
    assert "no number" in capsys.readouterr().err
