"""`make mutate`: its changes of code, its choice of tests, its memory, its survivors."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tools.mutate.__main__ import main, sample, try_all
from tools.mutate.operators import mutations_of
from tools.mutate.recording import Recording
from tools.mutate.results import Results
from tools.mutate.survivors import entry_of, known_survivors, unexplained
from tools.mutate.working_copy import WorkingCopy

ROOT = Path(__file__).parents[2]

MODULE = '''
"""A module, not == anything."""

LIMIT: Final = 3


class Counter(Base):
    """Counts. Is it < 1?"""

    start = 5

    def add(self, number: int | None = 7, *, quick: bool = False) -> int:
        """Add a number, if it is > 0."""
        if number < 1 and not quick:
            raise ValueError(f"{number - 1} is less than {LIMIT + 1}", value=number + 2)
        self.error = Error("Too late", value=number + 3)
        self.total = min(self.total + number, LIMIT)
        _log.info("added %d", number + 1)
        send(self.total, quick=True)
        return self.total

    def __repr__(self) -> str:
        return f"{self.total + 1}"
'''

EXPECTED = {
    "number < 1 and (not quick) → number < 1",
    "number < 1 and (not quick) → not quick",
    "number < 1 → number <= 1",
    "1 → 2",
    "not quick → quick",
    "raise ValueError(f'{number - 1} is less than {LIMIT + 1}', value=number + 2) → ∅",
    "self.total = min(self.total + number, LIMIT) → ∅",
    "min(self.total + number, LIMIT) → max(self.total + number, LIMIT)",
    "self.total + number → self.total - number",
    "self.error = Error('Too late', value=number + 3) → ∅",
    "send(self.total, quick=True) → ∅",
    "send(quick=True) → ∅",
    "True → False",
    "return self.total → return None",
}


@pytest.fixture
def repository(tmp_path) -> Path:
    """Return a small repository with one module and a test of it."""
    root = tmp_path / "repository"
    files = {
        "shuffle/counter.py": MODULE,
        "protocol/errors.py": "",
        "sluice/__init__.py": "",
        "tests/test_counter.py": "",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for layer in ("shuffle", "protocol"):
        (root / "sluice" / layer).symlink_to(f"../{layer}")
    subprocess.run(["git", "init", "-q", str(root)], check=True, timeout=30)
    return root


def test_only_the_code_of_functions_is_changed(repository):
    found = mutations_of(repository, "shuffle/counter.py")
    assert {f"{each.original} → {each.mutated}" for each in found} == EXPECTED
    assert {each.function for each in found} == {"Counter.add"}
    assert len({each.key for each in found}) == len(found)
    source = (repository / "shuffle/counter.py").read_bytes()
    changed = {each.apply(source) for each in found}
    assert len(changed) == len(found)
    assert source not in changed
    for each in found:
        compile(each.apply(source), "mutated", "exec")
        assert each.apply(source).count(b"\n") <= source.count(b"\n"), "no line moves down"


def test_the_same_seed_chooses_the_same_mutations_and_a_higher_limit_more(repository):
    found = mutations_of(repository, "shuffle/counter.py")
    assert sample(found, 4, 1) == sample(found, 6, 1)[:4]
    assert sample(found, 6, 1) != sample(found, 6, 2)
    assert set(sample(found, 0, 1)) == set(found)
    assert sample(found[1:], 0, 1) == [each for each in sample(found, 0, 1) if each != found[0]]


def test_a_copy_is_changed_and_the_checkout_is_not(repository, tmp_path):
    copy = WorkingCopy(repository, tmp_path / "copy")
    module = tmp_path / "copy/sluice/shuffle/counter.py"
    assert module.read_text() == MODULE
    copy.change("shuffle/counter.py", b"changed = 1\n")
    copy.change("shuffle/counter.py", b"changed = 2\n")
    assert module.read_bytes() == b"changed = 2\n"
    assert (repository / "shuffle/counter.py").read_text() == MODULE
    copy.restore()
    copy.restore()
    assert module.read_text() == MODULE


def test_the_tests_of_a_line_are_those_that_run_it_the_modules_own_first():
    part = {
        "seconds": {"tests/test_counter.py::slow": 2.0, "tests/test_counter.py::quick": 0.1}
        | {"tests/test_a.py::other": 0.01, "tests/test_a.py::fails": 0.0},
        "lines": {
            "tests/test_counter.py::slow": {"shuffle/counter.py": [5]},
            "tests/test_counter.py::quick": {"shuffle/counter.py": [4, 5]},
            "tests/test_a.py::other": {"shuffle/counter.py": [6]},
            "tests/test_a.py::fails": {"shuffle/counter.py": [5]},
        },
        "failed": ["tests/test_a.py::fails"],
    }
    recording = Recording.of([part])
    assert recording.left_out == ["tests/test_a.py::fails"]
    assert recording.tests_of("shuffle/counter.py", 5, 6) == [
        "tests/test_counter.py::quick",
        "tests/test_counter.py::slow",
        "tests/test_a.py::other",
    ]
    assert recording.tests_of("shuffle/counter.py", 4, 4) == ["tests/test_counter.py::quick"]
    assert recording.tests_of("shuffle/unknown.py", 4, 4) == []


def test_an_outcome_holds_as_long_as_what_it_depends_on(repository, tmp_path):
    path = tmp_path / "results.jsonl"
    killed, survived, *_ = mutations_of(repository, "shuffle/counter.py")
    results = Results(path, repository, "all code")
    results.add(killed, "killed", "tests/test_counter.py::test_add")
    results.add(survived, "survived", "3 tests")
    again = Results(path, repository, "all code")
    assert [again.of(each) for each in (killed, survived)] == [
        ("killed", "tests/test_counter.py::test_add"),
        ("survived", "3 tests"),
    ]
    assert again.tried == {killed.key, survived.key}
    changed = Results(path, repository, "other code")
    assert changed.tried == again.tried
    assert changed.of(killed)
    assert changed.of(survived) is None
    (repository / "tests/test_counter.py").write_text("# other tests\n")
    assert Results(path, repository, "all code").of(killed) is None


def test_a_survivor_without_a_reason_is_unexplained(repository, tmp_path):
    found = mutations_of(repository, "shuffle/counter.py")
    assert unexplained(found[:2], []) == found[:2]
    path = tmp_path / "survivors.toml"
    path.write_text("\n".join(map(entry_of, found)).replace('reason = ""', 'reason = "Equal."'))
    known = known_survivors(path)
    assert len(known) == len(found)
    assert unexplained(found, known) == []
    assert unexplained(found, known[1:]) == found[:1]


def test_every_known_survivor_is_still_a_mutation_and_has_a_reason():
    known = known_survivors()
    assert known
    possible = {module: mutations_of(ROOT, module) for module in {one.module for one in known}}
    assert not [one for one in known if not any(map(one.is_of, possible[one.module]))]
    assert not [one for one in known if not one.reason.strip()]
    names = [one._replace(reason="") for one in known]
    assert len(set(names)) == len(names)


def test_a_place_without_modules_is_refused():
    with pytest.raises(SystemExit, match="No module at nowhere"):
        main(["nowhere"])


DRIVER = """
import sys
from pathlib import Path
from tools.mutate import processes
from tools.mutate.operators import mutations_of
from tools.mutate.working_copy import WorkingCopy

root, directory = map(Path, sys.argv[1:])
processes.ROOT = root
copy = WorkingCopy(root, directory)
run = processes.start_recording(copy, ["tests/test_counter.py"], 60)
run.wait()
recorded = run.outcome()
assert not recorded["failed"], recorded
assert recorded["lines"]["tests/test_counter.py::test_adds"]["shuffle/counter.py"]
tests = list(recorded["seconds"])
source = (root / "shuffle/counter.py").read_bytes()
for mutation in mutations_of(root, "shuffle/counter.py"):
    copy.change("shuffle/counter.py", mutation.apply(source))
    run = processes.start_tests(copy, tests, 20, 5)
    run.wait()
    outcome = run.outcome()
    by = "time" if run.timed_out else outcome["failed"] if outcome["code"] else None
    print(mutation.original, "->", mutation.mutated, "|", by)
    copy.restore()
"""


def test_a_mutation_is_killed_by_the_test_that_notices_it(repository, tmp_path):
    """From the recording of lines to the outcome, in processes of their own."""
    (repository / "shuffle/counter.py").write_text(
        "def add(one, other):\n    unseen = 1\n    return one + other\n"
    )
    (repository / "tests/test_counter.py").write_text(
        textwrap.dedent("""
            from sluice.shuffle.counter import add

            def test_zero():
                assert add(0, 0) == 0

            def test_adds():
                assert add(1, 2) == 3
            """)
    )
    (repository / "tests/conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--one-loop', action='store_true')\n"
    )
    (repository / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\nmarkers = ['spark: x', 'slow: x']\n"
        "addopts = ['--import-mode=importlib']\npythonpath = ['.']\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(repository), str(tmp_path / "copy")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "1 -> 2 | None",
        "return one + other -> return None | tests/test_counter.py::test_zero",
        "one + other -> one - other | tests/test_counter.py::test_adds",
    ]


class Trying:
    """Stands in for a trial: each mutation takes two looks."""

    def __init__(self) -> None:
        self.tried: list[str] = []
        self._looks = 0
        self._now: str | None = None

    def begin(self, mutation: str) -> None:
        self._now, self._looks = mutation, 2

    def is_idle(self) -> bool:
        if self._now is not None:
            self._looks -= 1
            if self._looks == 0:
                self.tried.append(self._now)
                self._now = None
        return self._now is None

    def stop(self) -> None:
        self._now = None


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_the_last_mutation_is_tried_to_its_end(jobs):
    trials: list[Any] = [Trying() for _ in range(jobs)]
    waiting: list[Any] = ["a", "b", "c"]
    try_all(trials, waiting, deadline=float("inf"))
    assert sorted(name for trial in trials for name in trial.tried) == ["a", "b", "c"]


def test_none_is_begun_after_the_deadline():
    trial: Any = Trying()
    waiting: list[Any] = ["a"]
    try_all([trial], waiting, deadline=float("-inf"))
    assert trial.tried == []
