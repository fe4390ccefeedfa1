"""If standard error is not read, lines are dropped and no caller waits."""

from __future__ import annotations

import fcntl
import os
import threading

import pytest

from sluice.shuffle.taskmanager.process.log_queue import MAX_WRITE_BYTES, LogQueue, QueuedStream

LINE = "x" * 99 + "\n"
TIMEOUT_SECONDS = 30


def describe(lines: int) -> str:
    return f"{lines} missing\n"


class Pipe:
    """A small pipe, and a queue that writes to it."""

    def __init__(self, max_bytes: int = 1000) -> None:
        self.reader, self.writer = os.pipe()
        fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, MAX_WRITE_BYTES)
        self.queue = LogQueue(self.writer, describe, max_bytes)

    def stick(self) -> None:
        """Fill it, so that the queue's thread waits."""
        os.set_blocking(self.writer, False)
        try:
            while True:
                os.write(self.writer, b"\n")
        except BlockingIOError:
            os.set_blocking(self.writer, True)

    def read_until(self, text: str) -> str:
        """Read up to a text; the test's timeout bounds it."""
        found = ""
        while text not in found:
            found += os.read(self.reader, 65536).decode()
        return found.lstrip("\n")

    def close_reader(self) -> None:
        os.close(self.reader)
        self.reader = -1


@pytest.fixture
def pipe():
    made = Pipe()
    yield made
    if made.reader >= 0:
        made.close_reader()  # a write that is stuck fails now
    made.queue.close(TIMEOUT_SECONDS)
    os.close(made.writer)


def test_lines_are_written_in_their_order(pipe):
    for number in range(9):
        pipe.queue.put(f"{number}\n")
    assert pipe.queue.drain(TIMEOUT_SECONDS)
    assert pipe.read_until("8\n") == "".join(f"{number}\n" for number in range(9))
    assert pipe.queue.dropped_lines == 0


def test_a_stuck_reader_costs_lines_that_are_counted(pipe):
    pipe.stick()
    for _ in range(1000):
        pipe.queue.put(LINE)  # would never return
    assert not pipe.queue.drain(0)
    dropped = pipe.queue.dropped_lines
    assert 1000 - 11 - MAX_WRITE_BYTES // 100 <= dropped <= 990
    found = pipe.read_until(describe(dropped))
    assert found == LINE * (1000 - dropped) + describe(dropped)
    pipe.queue.put("again\n")
    assert pipe.read_until("again\n") == "again\n"
    assert pipe.queue.dropped_lines == dropped


def test_dropped_lines_leave_one_gap(pipe):
    """Lines that fit again before the reader has taken half of the others are dropped, too."""
    pipe.stick()
    while not pipe.queue.dropped_lines:
        pipe.queue.put(LINE)
    pipe.queue.put("short\n")
    assert pipe.queue.dropped_lines == 2


def test_a_line_above_the_bound_is_dropped_alone(pipe):
    pipe.queue.put("x" * 1000 + "\n")
    assert pipe.read_until("missing") == describe(1)
    pipe.queue.put("next\n")
    assert pipe.read_until("next\n") == "next\n"


def test_a_reader_that_is_gone_costs_lines_and_no_error(pipe):
    pipe.close_reader()
    pipe.queue.put(LINE)
    assert pipe.queue.drain(TIMEOUT_SECONDS)
    assert pipe.queue.dropped_lines == 1


def test_a_non_blocking_file_is_waited_for(pipe):
    pipe.stick()
    os.set_blocking(pipe.writer, False)
    pipe.queue.put("waits\n")
    assert pipe.read_until("waits\n") == "waits\n"
    assert pipe.queue.dropped_lines == 0


def test_closing_does_not_wait_for_a_stuck_reader(pipe):
    pipe.stick()
    pipe.queue.put(LINE)
    pipe.queue.close(0.01)
    assert any(thread.name == "sluice-log" for thread in threading.enumerate())


def test_no_half_line_is_left_when_the_process_ends(pipe):
    """The thread writes whole lines that fit in a pipe at once."""
    pipe.stick()
    for _ in range(5):
        pipe.queue.put(LINE)
    os.read(pipe.reader, 150)
    assert not pipe.queue.drain(0)
    found = os.read(pipe.reader, 65536).decode().lstrip("\n")
    assert len(found) % len(LINE) == 0


def test_due_is_called_in_the_thread(pipe):
    asked = threading.Event()
    pipe.queue.due = asked.set
    pipe.queue.wake()
    assert asked.wait(TIMEOUT_SECONDS)


def test_a_stream_passes_on_whole_lines_only(pipe):
    stream = QueuedStream(pipe.queue)
    print("one", "two", file=stream, flush=True)
    stream.write("half")
    assert pipe.read_until("\n") == "one two\n"
    stream.write(" and half \udcff é\n")
    assert pipe.read_until("\n") == "half and half \\udcff é\n"
    stream.write("y" * 5000)
    assert pipe.queue.dropped_lines == 1


def test_lines_after_close_are_dropped(pipe):
    pipe.queue.put("last\n")
    pipe.queue.close(TIMEOUT_SECONDS)
    pipe.queue.put("too late\n")
    assert pipe.queue.dropped_lines == 1
    assert pipe.read_until("\n") == "last\n"
