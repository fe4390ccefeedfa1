"""Shows which tests notice which small changes of the code: `make mutate`.

The tests are collected once. For each mutation a fork runs those of the module with the changed
code of one function, and reports the ones that fail. A mutation that survives lacks a test, or it
changes nothing. The report ends with tests that could all go without losing a kill: delete those
that tell no scenario worth reading.

The tests of ``shuffle/memory/buffer.py`` are ``test_buffer.py`` and ``test_buffer_*.py`` in
``tests/shuffle/memory``, or those that ``--tests`` names.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import json
import os
import random
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parents[1]
RESULT: Final = ROOT / "build" / "kill_matrix.json"
MIN_LIMIT_SECONDS: Final = 20
LIMIT_FACTOR: Final = 5
"""A mutation may take so many times as long as the code as it is; then it is killed by the time."""
BEGUN, FAILED, ENDED, UNCHANGED = "begun", "failed", "ended", "unchanged"
"""Words of a child to its parent, the first two with the name of a test."""

MAX_SHOWN: Final = 70

OTHER: Final[dict[type[ast.AST], type[Any]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.And: ast.Or, ast.Or: ast.And,
    ast.Break: ast.Continue, ast.Continue: ast.Break,
}  # fmt: skip
FOR_PEOPLE: Final = {"__repr__", "__str__"}
LOGGERS: Final = {"logger", "logging", "warnings"}


class Mutation(NamedTuple):
    """One change of one function.

    Attributes:
        module: Path of the module in the repository.
        function: Qualified name of the outermost function.
        place: Line and column in the module.
        change: What was changed, and into what.
        tree: The changed module.
    """

    module: str
    function: str
    place: str
    change: str
    tree: ast.Module

    @property
    def key(self) -> str:
        """Its name in the report."""
        return f"{self.module}:{self.place} {self.change}"


def mutations_of(module: str) -> Iterator[Mutation]:
    """Yield the mutations of a module, in the order of its functions."""
    source = (ROOT / module).read_text(encoding="utf-8")
    for name, path in _functions(ast.parse(source), (), ()):
        count = sum(1 for _ in _changes(_at(ast.parse(source), path)))
        for number in range(count):
            tree = ast.parse(source)
            for index, (place, change, apply) in enumerate(_changes(_at(tree, path))):
                if index == number:
                    apply()
                    ast.fix_missing_locations(tree)
                    yield Mutation(module, name, place, change, tree)
                    break


def _functions(
    node: ast.AST, names: tuple[str, ...], path: tuple[int, ...]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    for index, child in enumerate(getattr(node, "body", ())):
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, (*names, child.name), (*path, index))
        elif (
            isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            and child.name not in FOR_PEOPLE
        ):
            yield ".".join((*names, child.name)), (*path, index)


def _at(tree: Any, path: tuple[int, ...]) -> ast.AST:
    for index in path:
        tree = tree.body[index]
    return tree  # type: ignore[no-any-return]


Change = tuple[str, str, Callable[[], None]]


def _changes(function: ast.AST) -> Iterator[Change]:
    """Yield place, description and the function that makes the change, for each in a function."""
    for parent in ast.walk(function):
        for field, value in ast.iter_fields(parent):
            if field in {"annotation", "returns", "decorator_list", "args"} and not isinstance(
                parent, ast.Call
            ):
                continue
            nodes = value if isinstance(value, list) else [value]
            for index, node in enumerate(nodes):
                if isinstance(node, ast.AST):
                    for new in _instead(node):
                        yield _change(parent, field, index if value is nodes else None, node, new)


def _change(parent: ast.AST, field: str, index: int | None, node: Any, new: Any) -> Change:
    def apply() -> None:
        ast.copy_location(new, node)
        if index is None:
            setattr(parent, field, new)
        else:
            getattr(parent, field)[index] = new

    old, changed = (" ".join(ast.unparse(each).split())[:MAX_SHOWN] for each in (node, new))
    return f"{node.lineno}:{node.col_offset}", f"{old} → {changed}", apply


def _instead(node: Any) -> Iterator[ast.AST]:
    """Yield what may stand in place of a statement or an expression."""
    match node:
        case ast.Expr(value=ast.Constant()):
            return
        case ast.Expr(value=ast.Call(func=called)) if ast.unparse(called).split(".")[0] in LOGGERS:
            return
        case ast.Expr() | ast.Delete() | ast.Raise():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case ast.AugAssign(op=op) | ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in OTHER:
            changed: Any = copy.copy(node)
            changed.op = OTHER[type(op)]()
            yield changed
        case ast.Compare(ops=[op]):
            changed = copy.copy(node)
            changed.ops = [OTHER[type(op)]()]
            yield changed
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.Break() | ast.Continue():
            yield OTHER[type(node)]()
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.If(test=test) | ast.While(test=test) if isinstance(
            test, ast.Name | ast.Attribute | ast.Call
        ):
            changed = copy.copy(node)
            changed.test = ast.UnaryOp(ast.Not(), test)
            yield changed
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)


def code_of(holder: Any, qualified_name: str) -> Any:
    """Return the function of that name in a module or namespace; None if it cannot be changed."""
    for part in qualified_name.split("."):
        holder = vars(holder).get(part) if not isinstance(holder, dict) else holder.get(part)
        holder = getattr(holder, "fget", None) or getattr(holder, "__func__", holder)
        holder = getattr(holder, "func", holder) if hasattr(holder, "attrname") else holder
        while hasattr(holder, "__wrapped__"):
            holder = holder.__wrapped__
        if holder is None:
            return None
    return holder if hasattr(holder, "__code__") else None


def mutate(mutation: Mutation) -> bool:
    """Change the function in this process, in place; return whether it could be."""
    name = "sluice." + mutation.module.removesuffix(".py").replace("/", ".")
    module = import_module(name)
    changed = dict(vars(module))
    exec(compile(mutation.tree, mutation.module, "exec", dont_inherit=True), changed)  # noqa: S102
    old, new = code_of(module, mutation.function), code_of(changed, mutation.function)
    if old is None or new is None or old.__code__.co_freevars != new.__code__.co_freevars:
        return False
    old.__code__ = new.__code__
    return True


class Matrix:
    """The pytest plugin that runs the forks when the tests are collected."""

    def __init__(self, modules: list[str], options: argparse.Namespace) -> None:
        self._modules = modules
        self._options = options
        self._to_parent = -1
        self.killers: dict[str, list[str]] = {}
        self.tests: set[str] = set()
        self.left = 0
        """Mutations for which there was no time."""

    def _tell(self, *words: str) -> None:
        os.write(self._to_parent, (" ".join(words) + "\n").encode())

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Tell the parent of a test that failed."""
        if report.failed:
            self._tell(FAILED, report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run every mutation instead of the tests."""
        from hypothesis import Phase, settings  # here, because pytest rewrites its assertions

        # Without shrinking: it is enough to know that an example fails.
        settings.register_profile("kill matrix", phases=[Phase.explicit, Phase.generate])
        settings.load_profile("kill matrix")
        end = time.monotonic() + 60 * self._options.minutes
        chance = random.Random(self._options.seed)  # noqa: S311
        for module in self._modules:
            items = [each for each in session.items if self._options.tests or _is_of(each, module)]
            self.tests |= {each.nodeid for each in items}
            begun = time.monotonic()
            if not items or (broken := self._fork(items, None, 10 * MIN_LIMIT_SECONDS)):
                print(
                    f"{module}: not tried, {f'fails as it is: {broken}' if items else 'no tests'}"
                )
                continue
            limit = max(MIN_LIMIT_SECONDS, int(LIMIT_FACTOR * (time.monotonic() - begun)))
            mutations = list(mutations_of(module))
            if self._options.limit and len(mutations) > self._options.limit:
                mutations = chance.sample(mutations, self._options.limit)
            for mutation in mutations:
                if time.monotonic() > end:
                    self.left += 1
                    continue
                killers = self._fork(items, mutation, limit)
                if killers is not None:
                    self.killers[mutation.key] = killers
        return True

    def _fork(
        self, items: list[pytest.Item], mutation: Mutation | None, limit_seconds: int
    ) -> list[str] | None:
        """Run tests in a child; return the ones that failed, None if nothing could be changed."""
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            self._to_parent = writing
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 1)
            os.dup2(null, 2)
            items[0].config.pluginmanager.unregister(name="terminalreporter")
            with contextlib.suppress(BaseException):
                if mutation is not None and not mutate(mutation):
                    self._tell(UNCHANGED)
                else:
                    for item, following in zip(items, [*items[1:], None], strict=True):
                        self._tell(BEGUN, item.nodeid)
                        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                    self._tell(ENDED)
            os._exit(0)
        os.close(writing)
        told = _read_until_end(reading, time.monotonic() + limit_seconds)
        os.kill(child, signal.SIGKILL)  # it may hang
        os.waitpid(child, 0)
        if told[-1:] == [(UNCHANGED, "")]:
            return None
        failed = [nodeid for word, nodeid in told if word == FAILED]
        if told[-1:] != [(ENDED, "")]:  # the last test hangs, or ended the process
            failed += [nodeid for word, nodeid in told if word == BEGUN][-1:]
        return list(dict.fromkeys(failed))


def _read_until_end(reading: int, deadline: float) -> list[tuple[str, str]]:
    """Return the words of a child up to its end or a deadline."""
    written = b""
    readable = select.poll()  # not select(), which takes no descriptor above 1023
    readable.register(reading, select.POLLIN | select.POLLHUP)
    with open(reading, "rb", buffering=0) as pipe:
        while readable.poll(max(0, 1000 * (deadline - time.monotonic()))):
            if not (more := pipe.read(65536)):
                break
            written += more
    lines = written.decode().splitlines()
    return [(word, nodeid) for word, _, nodeid in (line.partition(" ") for line in lines)]


def _is_of(item: pytest.Item, module: str) -> bool:
    return item.path in _tests_of(module)


def _tests_of(module: str) -> list[Path]:
    """Return the test files of a module: the tests have the same tree as the code."""
    folder, stem = ROOT / "tests" / Path(module).parent, Path(module).stem
    return [*folder.glob(f"test_{stem}.py"), *folder.glob(f"test_{stem}_*.py")]


def needed(killers: dict[str, list[str]]) -> set[str]:
    """Return a small set of tests that kill all that is killed, largest first."""
    chosen: set[str] = set()
    left = {key: set(found) for key, found in killers.items() if found}
    while left:
        counts = Counter(test for found in left.values() for test in sorted(found))
        best = min(counts, key=lambda test: (-counts[test], test))
        chosen.add(best)
        left = {key: found for key, found in left.items() if best not in found}
    return chosen


def report(matrix: Matrix) -> None:
    """Print survivors and redundant tests, and write the matrix."""
    killers = matrix.killers
    survivors = [key for key, found in killers.items() if not found]
    print(f"{len(killers)} mutations, {len(survivors)} survived, {matrix.left} not tried")
    for key in survivors:
        print(f"  survived: {key}")
    redundant = sorted(matrix.tests - needed(killers))
    print(f"{len(redundant)} of {len(matrix.tests)} tests could go without losing a kill:")
    for test in redundant:
        print(f"  {test}")
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(killers, indent=1), encoding="utf-8")
    print(f"written: {RESULT.relative_to(ROOT)}")


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="+", help="modules or folders, such as shuffle/memory")
    parser.add_argument("--tests", nargs="*", default=[], help="instead of the files of their name")
    parser.add_argument("--limit", type=int, default=0, help="mutations a module; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=25)
    options = parser.parse_args()
    modules = []
    for name in options.modules:
        found = sorted((ROOT / name).rglob("*.py")) if (ROOT / name).is_dir() else [ROOT / name]
        modules += [path.relative_to(ROOT).as_posix() for path in found if path.stem[0] != "_"]
    tests = options.tests or [str(path) for module in modules for path in _tests_of(module)]
    matrix = Matrix(modules, options)
    arguments = [
        "-q",
        "-n",
        "0",
        "--one-loop",
        "-o",
        "faulthandler_timeout=0",  # a mutation that spins ends at its own limit
        *sorted(set(tests)),
    ]
    code = pytest.main(arguments, plugins=[matrix])
    report(matrix)
    # No test ran in this process.
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else int(code)


if __name__ == "__main__":
    sys.exit(main())
