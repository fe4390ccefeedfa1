"""For which Pythons a release compiles a wheel."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from tools.release import wheels
from tools.release.wheels import Interpreter, find_interpreter

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        shutil, "which", lambda command: None if command == "python3.99" else command
    )


@pytest.fixture
def includes(tmp_path: Path) -> Path:
    (tmp_path / "Python.h").touch()
    return tmp_path


def say(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr(wheels, "run", lambda command, deadline_seconds: answer)


@pytest.mark.usefixtures("compiler")
def test_a_python_with_headers_is_found(monkeypatch: pytest.MonkeyPatch, includes: Path):
    say(monkeypatch, f'["CPython", "3.12.1", "{includes}", "cpython-312-x86_64-linux-gnu"]')
    assert find_interpreter("python3.12") == Interpreter(
        "python3.12", "3.12.1", "cpython-312-x86_64-linux-gnu"
    )


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("implementation", "headers", "reason"),
    [
        ("PyPy", True, "pypy3 is PyPy, and mypyc compiles for CPython"),
        ("CPython", False, "pypy3 has no headers in"),
    ],
)
def test_a_python_that_cannot_compile_has_a_reason(
    monkeypatch: pytest.MonkeyPatch, includes: Path, implementation, headers, reason
):
    where = includes if headers else includes / "nowhere"
    say(monkeypatch, f'["{implementation}", "3.12.1", "{where}", "abi"]')
    found = find_interpreter("pypy3")
    assert isinstance(found, str)
    assert found.startswith(reason)


@pytest.mark.usefixtures("compiler")
def test_a_missing_python_has_a_reason():
    assert find_interpreter("python3.99") == "there is no python3.99 here"


@pytest.mark.usefixtures("compiler")
def test_a_python_that_does_not_run_has_a_reason(tmp_path: Path):
    shim = tmp_path / "python3.13"
    shim.write_text("#!/bin/sh\necho 'python3.13: not installed' >&2\nexit 127\n")
    shim.chmod(0o755)
    assert find_interpreter(str(shim)) == f"{shim} does not run: python3.13: not installed"


def test_without_a_compiler_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "which", lambda command: None if command == "cc" else command)
    found = find_interpreter(sys.executable)
    assert isinstance(found, str)
    assert "apt-get install gcc" in found
