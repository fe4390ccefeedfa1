"""``make mutate``: changes the code in small ways, and tells which changes no test notices.

Each mutation is tried in a copy of the checkout, with the tests that execute the changed line. The
exit code is 1 if one survives that ``tools/mutate/survivors.toml`` gives no reason for.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from tools.mutate.operators import Mutation, mutations_of
from tools.mutate.processes import ROOT, Run, preload, start_recording, start_tests
from tools.mutate.recording import Recording
from tools.mutate.results import Results, Verdict
from tools.mutate.survivors import entry_of, known_survivors, unexplained
from tools.mutate.working_copy import CODE, DATA_PATH_TESTS, WorkingCopy, digest_of, files_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CENTRAL: Final = (
    "protocol",
    "shuffle/memory",
    "shuffle/partition",
    "shuffle/gate",
    "shuffle/records",
    "shuffle/client",
)
"""Folders that are changed unless others are named."""

DEFAULT_LIMIT: Final = 100
DEFAULT_MINUTES: Final = 25.0
FIRST_TESTS: Final = 30
"""Tests of the first run of a mutation: most are noticed by one of them."""

TEST_SECONDS: Final = 15.0
"""Time that any test may take; one that took long unchanged may take more."""

RUN_SECONDS: Final = 60.0
"""Time that the tests of a mutation may have taken when nothing was changed; more are left out."""

START_SECONDS: Final = 60.0
SLOWER: Final = 4
"""Factor by which a test may take longer than while it was recorded."""

RECORDING_SECONDS: Final = 1200.0
LOOK_AGAIN_SECONDS: Final = 0.01


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = _parser().parse_args(arguments)
    modules = modules_of(options.modules or CENTRAL)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # what runs is ended too
    directory = ROOT / options.directory
    directory.mkdir(parents=True, exist_ok=True)
    lock = (directory / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SystemExit(f"Another run works in {directory}: wait, or name --directory") from None
    with lock:
        return run(options, modules, directory)


def run(options: argparse.Namespace, modules: list[str], directory: Path) -> int:
    """Try the mutations that are asked for; return the exit code."""
    everything = [mutation for module in modules for mutation in mutations_of(ROOT, module)]
    digest = digest_of(ROOT, *CODE, *DATA_PATH_TESTS)
    results = Results(directory / "results.jsonl", ROOT, digest)
    if options.again:
        chosen = [mutation for mutation in everything if mutation.key in results.tried]
    else:
        chosen = sample(everything, options.limit, options.seed)
    print(f"{len(chosen)} of {len(everything)} mutations of {len(modules)} modules")
    preload()
    copies = [WorkingCopy(ROOT, directory / f"copy{number}") for number in range(options.jobs)]
    recording = recorded(directory, copies)
    deadline = time.monotonic() + options.minutes * 60
    trials = [Trial(copy, recording, results) for copy in copies]
    waiting = [mutation for mutation in chosen if results.of(mutation) is None]
    print(f"{len(chosen) - len(waiting)} have a result already", flush=True)
    try_all(trials, waiting, deadline)
    return report(chosen, results)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make mutate", description=__doc__)
    add = parser.add_argument
    add("modules", nargs="*", help=f"modules or folders; by default {' '.join(CENTRAL)}")
    add("--limit", type=int, default=DEFAULT_LIMIT, help="most mutations to try; 0: all")
    add("--seed", type=int, default=0, help="chooses the mutations")
    add("--minutes", type=float, default=DEFAULT_MINUTES, help="begin none after this time")
    add("--jobs", type=int, default=2, help="runs of tests at a time")
    add("--directory", default="build/mutate", help="for copies and results")
    add("--again", action="store_true", help="those that were tried before, instead of a sample")
    return parser


def modules_of(places: Sequence[str]) -> list[str]:
    """Return the modules in some folders, and those that are named.

    Raises:
        SystemExit: A place has no module.
    """
    found: list[str] = []
    for place in places:
        path = place.removeprefix("sluice/").rstrip("/")
        inside = [name for name in files_of(ROOT, path) if name.endswith(".py")]
        if not inside:
            raise SystemExit(f"No module at {place}")
        found += [name for name in inside if name not in found]
    return found


def sample(mutations: list[Mutation], limit: int, seed: int) -> list[Mutation]:
    """Choose mutations; the same seed chooses the same ones, and a higher limit more of them.

    A change of the code leaves the choice among the others as it is.
    """

    def lot(mutation: Mutation) -> bytes:
        return hashlib.sha256(f"{seed} {mutation.key}".encode()).digest()

    drawn = sorted(mutations, key=lot)
    return drawn[:limit] if limit else drawn


def recorded(directory: Path, copies: list[WorkingCopy]) -> Recording:
    """Return the tests of each line.

    A file of tests is recorded again if it has changed, and all of them if the code has.
    """
    path = directory / "recording.json"
    code = digest_of(ROOT, *CODE)
    kept: dict[str, dict[str, Any]] = {}
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        kept = before["files"] if before["code"] == code else {}
    names = files_of(ROOT, "tests/protocol", "tests/shuffle")
    files = {
        name: digest_of(ROOT, name) for name in names if name.rpartition("/")[2].startswith("test_")
    }
    kept = {name: part for name, part in kept.items() if files.get(name) == part["digest"]}
    missing = [name for name in files if name not in kept]
    if missing:
        print(f"Recording the lines that the tests of {len(missing)} files execute", flush=True)
        for name, part in record(missing, copies).items():
            kept[name] = {**part, "digest": files[name]}
        path.write_text(json.dumps({"code": code, "files": kept}), encoding="utf-8")
    recording = Recording.of(list(kept.values()))
    for test in recording.left_out:
        print(f"Left out, for it fails while it is traced: {test}")
    return recording


def record(files: list[str], copies: list[WorkingCopy]) -> dict[str, dict[str, Any]]:
    """Run the tests of some files, and return what each file's tests execute.

    Raises:
        SystemExit: A run ended before its time.
    """
    parts = [files[number :: len(copies)] for number in range(len(copies))]
    runs = [
        (start_recording(copy, part, RECORDING_SECONDS), copy)
        for copy, part in zip(copies, parts, strict=True)
        if part
    ]
    found: dict[str, dict[str, Any]] = {
        name: {"lines": {}, "seconds": {}, "failed": []} for name in files
    }
    for run, copy in runs:
        run.wait()
        outcome = run.outcome()
        if outcome is None:
            raise SystemExit(f"The tests could not be recorded: see {copy.directory}.log")
        for kind in ("lines", "seconds"):
            for test, value in outcome[kind].items():
                found[test.partition("::")[0]][kind][test] = value
        for test in outcome["failed"]:
            found[test.partition("::")[0]]["failed"].append(test)
    return found


class Trial:
    """Tries mutations one after the other in one working copy.

    Args:
        copy: Where to change the code.
        recording: Knows the tests.
        results: Keeps the outcomes.
    """

    def __init__(self, copy: WorkingCopy, recording: Recording, results: Results) -> None:
        self._copy = copy
        self._recording = recording
        self._results = results
        self._mutation: Mutation | None = None
        self._run: Run | None = None
        self._runs: list[list[str]] = []
        self._ran = 0
        self._left_out = 0

    def begin(self, mutation: Mutation) -> None:
        """Change the code and run the first tests."""
        tests = self._recording.tests_of(mutation.module, mutation.line, mutation.last_line)
        kept: list[str] = []
        seconds = 0.0
        for test in tests:
            seconds += self._recording.seconds.get(test, 0.0)
            if seconds > RUN_SECONDS:
                break
            kept.append(test)
        self._mutation, self._ran = mutation, 0
        self._left_out = len(tests) - len(kept)
        self._runs = [part for part in (kept[:FIRST_TESTS], kept[FIRST_TESTS:]) if part]
        self._copy.change(mutation.module, mutation.apply(self._copy.source(mutation.module)))
        self._next()

    def is_idle(self) -> bool:
        """Take note of what has happened; return whether another mutation can begin."""
        if self._run is None:
            return True
        if not self._run.poll():
            return False
        outcome = self._run.outcome()
        if self._run.timed_out:
            self._end("killed", "the time limit")
        elif outcome is None:
            self._end("killed", "a crash")
        elif outcome["code"]:
            self._end("killed", outcome["failed"] or f"exit code {outcome['code']} of pytest")
        else:
            self._ran += outcome["ran"]
            self._next()
        return self._run is None

    def stop(self) -> None:
        """Give the present mutation up."""
        if self._run is not None:
            self._run.kill()
            self._run.wait()
            self._run = None
        self._copy.restore()

    def _next(self) -> None:
        if not self._runs:
            left_out = f", {self._left_out} left out" if self._left_out else ""
            self._end("survived", f"{self._ran} tests{left_out}" if self._ran else "no test")
            return
        tests = self._runs.pop(0)
        each = [SLOWER * self._recording.seconds.get(test, 0.0) for test in tests]
        limit = START_SECONDS + TEST_SECONDS + sum(each)
        self._run = start_tests(self._copy, tests, limit, TEST_SECONDS + max(each))

    def _end(self, verdict: Verdict, by: str) -> None:
        if self._mutation is None:
            return
        self._copy.restore()
        self._results.add(self._mutation, verdict, by)
        print(f"{verdict} by {by}: {self._mutation.key}", flush=True)
        self._run = self._mutation = None


def try_all(trials: list[Trial], waiting: list[Mutation], deadline: float) -> None:
    """Try mutations until all are tried or the time is over; those under way are ended."""
    waiting.reverse()
    try:
        while True:
            idle = [trial for trial in trials if trial.is_idle()]
            over = not waiting or time.monotonic() >= deadline
            if over and len(idle) == len(trials):
                return
            for trial in idle:
                if waiting and not over:
                    trial.begin(waiting.pop())
            time.sleep(LOOK_AGAIN_SECONDS)
    finally:
        for trial in trials:
            trial.stop()


def report(chosen: list[Mutation], results: Results) -> int:
    """Print the table of survivors; return 1 if one of them has no reason."""
    known = known_survivors()
    found = [(mutation, results.of(mutation)) for mutation in chosen]
    tried = [(mutation, result) for mutation, result in found if result is not None]
    survivors = [mutation for mutation, result in tried if result.verdict == "survived"]
    strange = unexplained(survivors, known)
    print()
    for mutation, result in tried:
        if result.verdict == "survived":
            reason = next((each.reason for each in known if each.is_of(mutation)), "NO REASON")
            print(f"{mutation.module}:{mutation.line} {mutation.function}")
            print(f"    {mutation.original} → {mutation.mutated}")
            print(f"    {reason} ({result.by})")
    print(
        f"\n{len(chosen)} mutations: {len(tried) - len(survivors)} killed, {len(survivors)}"
        f" survived ({len(strange)} without a reason), {len(chosen) - len(tried)} not tried"
    )
    if strange:
        print("\nKill these, or give each a reason in tools/mutate/survivors.toml:\n")
        for mutation in strange:
            print(entry_of(mutation))
    return 1 if strange else 0


if __name__ == "__main__":
    sys.exit(main())
