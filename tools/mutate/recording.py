"""The lines that each test executes, found by running the tests once.

A mutation concerns the tests that execute its lines. Lines that run while a module is imported
belong to no test.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType


class LineRecorder:
    """A plugin of pytest that records lines, outcomes and durations.

    Args:
        prefix: Of the files that count; the rest of their names is their module.
    """

    def __init__(self, prefix: str) -> None:
        self.lines: dict[str, dict[str, list[int]]] = {}
        """By test, then module."""
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []
        self._prefix = prefix
        self._seen: dict[CodeType, set[int]] = {}
        self._complete: set[CodeType] = set()
        self._wanted: dict[CodeType, frozenset[int] | None] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Trace a test with its fixtures."""
        self._seen, self._complete = {}, set()
        threading.settrace(self._call)
        sys.settrace(self._call)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            lines: dict[str, list[int]] = defaultdict(list)
            for code, numbers in self._seen.items():
                lines[code.co_filename.removeprefix(self._prefix)] += sorted(numbers)
            self.lines[item.nodeid] = dict(lines)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a test ended, and how long it took."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)

    def _call(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        code = frame.f_code
        wanted = self._wanted.get(code, ())
        if wanted == ():
            is_ours = code.co_filename.startswith(self._prefix)
            wanted = frozenset(line for *_, line in code.co_lines() if line) if is_ours else None
            self._wanted[code] = wanted
        if wanted is None or code in self._complete:
            return None
        seen = self._seen.setdefault(code, set())
        if len(seen) >= len(wanted):
            self._complete.add(code)
            return None
        seen.add(frame.f_lineno)

        def line(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
            seen.add(frame.f_lineno)
            return line

        return line


@dataclass
class Recording:
    """The tests of each line, and how long each takes.

    Args:
        seconds: By test.
        lines: By module and line, the tests.
        left_out: Tests that failed though nothing was changed.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, found: list[dict[str, Any]]) -> Recording:
        """Join what several runs have recorded."""
        recording = cls()
        for part in found:
            recording.seconds.update(part["seconds"])
            recording.left_out += part["failed"]
        for part in found:
            for test, modules in part["lines"].items():
                if test in recording.left_out:
                    continue
                for module, numbers in modules.items():
                    tests = recording.lines.setdefault(module, {})
                    for number in numbers:
                        tests.setdefault(int(number), []).append(test)
        return recording

    def tests_of(self, module: str, first_line: int, last_line: int) -> list[str]:
        """Return the tests that execute a line: those of the module's own file, then the fastest.

        Args:
            module: Path of the module.
            first_line: First line of the code in question.
            last_line: Its last line.
        """
        lines = self.lines.get(module, {})
        found = {test for line in range(first_line, last_line + 1) for test in lines.get(line, [])}
        stem = module.rpartition("/")[2].removesuffix(".py")
        own = f"test_{stem}"

        def rank(test: str) -> tuple[bool, float, str]:
            return (own not in test.partition("::")[0], self.seconds.get(test, 0.0), test)

        return sorted(found, key=rank)
