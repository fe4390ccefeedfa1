"""``make simulate-mutants``: which mistakes does the simulation alone notice?

python -m tests.simulation.mutants --seeds 40
python -m tests.simulation.mutants --area drain --minutes 20

Each seed runs in a process of its own, in which the functions of one module have the code of a
:class:`.Mutation`. Every mutation runs its first seed, then every survivor its second, and so on. A
mutation that survives is equivalent, or shows a gap of the load, the faults or the rules.
"""

from __future__ import annotations

import argparse
import importlib
import os
import select
import sys
import time
from collections import deque
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Final

from tests.simulation.mutations import MUTATIONS, REMOTE, Mutation
from tests.simulation.plan import Plan
from tests.simulation.run import Child, plans_with, prepare

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT: Final = Path(__file__).parents[2]


class DoesNotApply(Exception):
    """The text of a mutation is not in its module once, or is in no function."""


class Mutant:
    """A mutation and its seeds.

    Args:
        mutation: The mutation.
        first: The first seed that it may have.
    """

    def __init__(self, mutation: Mutation, first: int) -> None:
        self.mutation = mutation
        self.plans: Iterator[Plan] = (
            plan
            for plan in plans_with(first, ",".join(mutation.faults) or None)
            if mutation.area != REMOTE or plan.has_bucket
        )
        self.seeds = 0
        self.cpu_seconds = 0.0
        self.killed_by: int | None = None
        self.why = ""

    def start(self) -> Child:
        """Run its next seed."""
        return Child(next(self.plans), stops=True, before=lambda: apply(self.mutation))

    def take(self, child: Child) -> None:
        """Record the result of a seed."""
        outcome = child.outcome()
        self.seeds += 1
        self.cpu_seconds += outcome.cpu_seconds
        if outcome.violations:
            self.killed_by, self.why = outcome.plan.seed, outcome.violations[0].split("\n")[0]

    def __str__(self) -> str:
        fate = f"SURVIVES {self.seeds} seeds"
        if self.killed_by is not None:
            fate = f"killed by seed {self.killed_by}, its number {self.seeds}: {self.why[:140]}"
        elif self.mutation.never:
            fate = f"survives {self.seeds} seeds: {self.mutation.never}"
        return f"{self.mutation.area:10} {self.mutation.what}: {fate}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if a mutation survives that must not."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("--seeds", type=int, default=40, help="maximum seeds for each mutation")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no seed after this time")
    parser.add_argument("--area", help="only mutations of this area")
    parser.add_argument("--only", help="only mutations whose text contains this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="seeds at a time")
    given = parser.parse_args(arguments)
    prepare("tests.simulation.mutants")
    mutants = [
        Mutant(each, given.first)
        for each in MUTATIONS
        if given.area in (None, each.area) and (given.only or "") in each.what
    ]
    for each in mutants:
        changed(each.mutation)  # all apply, before the first one runs
    until = time.monotonic() + given.minutes * 60
    for each in _run(mutants, given.seeds, given.jobs, until):
        _print(str(each))
    for area in dict.fromkeys(each.mutation.area for each in mutants):
        of_it = [each for each in mutants if each.mutation.area == area]
        killed = sum(each.killed_by is not None for each in of_it)
        _print(f"{area}: {killed} of {len(of_it)} killed")
    survivors = [each for each in mutants if each.killed_by is None]
    _print(
        f"{len(mutants) - len(survivors)} of {len(mutants)} mutations killed by "
        f"{sum(each.seeds for each in mutants)} seeds, "
        f"{sum(each.cpu_seconds for each in mutants):.0f} s of CPU"
    )
    return 1 if any(not each.mutation.never for each in survivors) else 0


def _run(mutants: Sequence[Mutant], seeds: int, jobs: int, until: float) -> Iterator[Mutant]:
    """Run mutants; yield each when it is killed, or has survived."""
    waiting = deque(mutants)
    sound: set[int] = set()
    """Seeds that do not fail without a mutation."""
    running: dict[Child, Mutant] = {}
    while waiting or running:
        if waiting and len(running) < jobs:
            mutant = waiting.popleft()
            if time.monotonic() < until:
                running[mutant.start()] = mutant
            else:
                yield mutant
            continue
        for child in select.select(list(running), [], [])[0]:
            mutant = running.pop(child)
            mutant.take(child)
            if mutant.killed_by is not None and mutant.killed_by not in sound:
                _check(mutant.killed_by)
                sound.add(mutant.killed_by)
            if mutant.killed_by is not None or mutant.seeds == seeds:
                yield mutant
            else:
                waiting.append(mutant)


def _check(seed: int) -> None:
    """Run a seed on the product as it is: only then a mutation can be what fails."""
    violations = Child(Plan.of(seed), stops=True).outcome().violations
    if violations:
        msg = f"seed {seed} fails without a mutation, so it tells nothing: {violations[0]}"
        raise SystemExit(msg)


def apply(mutation: Mutation) -> None:
    """Give the functions of a module the code of a mutation, in this process."""
    for function, code in changed(mutation).items():
        function.__code__ = code


def changed(mutation: Mutation) -> dict[FunctionType, CodeType]:
    """Return the functions that a mutation changes, and their new code.

    Raises:
        DoesNotApply: The code has changed: change the mutation, too.
    """
    name = "sluice." + mutation.path.removesuffix(".py").replace("/", ".")
    code = {each.co_qualname: each for each in _functions(compile(mutated(mutation), name, "exec"))}
    before = {each.co_qualname: each for each in _functions(compile(_text(mutation), name, "exec"))}
    found: dict[FunctionType, CodeType] = {}
    module = importlib.import_module(name)
    for function in _defined(module.__dict__, name):
        qualname = function.__qualname__
        if qualname in code and code[qualname] != before.get(qualname):
            found[function] = code[qualname]
    if not found:
        msg = f"{mutation.path}: {mutation.what}: it changes no function"
        raise DoesNotApply(msg)
    return found


def _functions(code: CodeType) -> Iterator[CodeType]:
    """Yield the functions of modules and classes: those inside functions come with these."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if each.co_flags & _OPTIMIZED:
                yield each
            else:  # a class
                yield from _functions(each)


_OPTIMIZED: Final = 1
"""Flag of the code of a function, which has fast local variables."""


def _defined(names: dict[str, object], module: str) -> Iterator[FunctionType]:
    """Yield the functions that a module or one of its classes has."""
    for each in list(names.values()):
        if isinstance(each, type) and each.__module__ == module:
            yield from _defined(dict(vars(each)), module)
            continue
        found = each
        if isinstance(each, property):
            found = each.fget
        elif isinstance(each, (classmethod, staticmethod)):
            found = each.__func__
        if isinstance(found, FunctionType) and found.__module__ == module:
            yield found


def mutated(mutation: Mutation) -> str:
    """Return the text of a module with a mutation.

    Raises:
        DoesNotApply: The code has changed: change the mutation, too.
    """
    text = _text(mutation)
    count = text.count(mutation.old)
    if count != 1:
        msg = f"{mutation.path}: {mutation.what}: its text is there {count} times"
        raise DoesNotApply(msg)
    return text.replace(mutation.old, mutation.new)


def _text(mutation: Mutation) -> str:
    return (ROOT / mutation.path).read_text(encoding="utf-8")


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
