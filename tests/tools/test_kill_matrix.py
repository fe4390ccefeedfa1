"""The kill matrix of small modules and their tests."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from tools import kill_matrix

ROOT = Path(__file__).parents[2]

MODULE = '''
class Counter:
    """Counts up to a limit."""

    def __init__(self, limit):
        self.limit = limit
        self.count = 0

    @property
    def is_full(self):
        return self.count >= self.limit

    def add(self):
        if self.is_full:
            raise ValueError("full")
        self.count += 1
'''


@pytest.fixture
def changes(monkeypatch, tmp_path):
    (tmp_path / "counter.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.setattr(kill_matrix, "ROOT", tmp_path)
    return list(kill_matrix.mutations_of("counter.py"))


def test_each_change_is_one_valid_program(changes):
    found = {each.change for each in changes}
    assert {
        "self.count >= self.limit → self.count > self.limit",
        "raise ValueError('full') → pass",
        "self.count += 1 → self.count -= 1",
        "self.limit = limit → pass",
    } <= found
    programs = [ast.unparse(each.tree) for each in changes]
    assert len(set(programs)) == len(programs)
    for program in programs:
        compile(program, "counter.py", "exec")


def test_functions_of_properties_are_found_and_changed_in_place(changes):
    module = types.ModuleType("counter")
    exec(MODULE, vars(module))
    counter = module.Counter(1)
    changed = next(each for each in changes if each.function == "Counter.is_full")
    namespace: dict[str, object] = {}
    exec(compile(changed.tree, "counter.py", "exec"), namespace)
    old = kill_matrix.code_of(module, changed.function)
    before = counter.is_full
    old.__code__ = kill_matrix.code_of(namespace, changed.function).__code__
    assert counter.is_full is not before
    assert kill_matrix.code_of(module, "Counter.nothing_such") is None


def test_the_needed_tests_kill_all_that_is_killed():
    killers = {"a": ["one", "two"], "b": ["two"], "c": ["one", "three"], "d": []}
    assert kill_matrix.needed(killers) == {"two", "one"}
    assert kill_matrix.needed({"d": []}) == set()


def test_a_child_that_hangs_is_read_until_the_deadline():
    reading, writing = os.pipe()
    try:
        os.write(writing, b"begun a test\n")
        found = kill_matrix._read_until_end(reading, time.monotonic() + 0.01)
    finally:
        os.close(writing)
    assert found == [("begun", "a test")]


@pytest.mark.slow
def test_the_command_prints_the_matrix_of_a_module():
    module = "shuffle/taskmanager/bounds/progress.py"
    done = subprocess.run(
        [sys.executable, "-m", "tools.kill_matrix", module, "--limit", "3", "--seed", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert "3 mutations, " in done.stdout, done.stdout + done.stderr
    assert "tests could go without losing a kill" in done.stdout
    assert done.returncode == 0
