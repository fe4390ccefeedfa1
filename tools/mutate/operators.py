"""The mutations of a module: small changes of its code that a test should notice.

Only code inside functions is changed: constants and defaults of a module are numbers that were
measured, not behaviour. Messages of errors, log lines, annotations and docstrings stay as they are.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OTHER_COMPARISON: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OTHER_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
OTHER_FUNCTION: Final = {"min": "max", "max": "min"}
PLAIN_TESTS: Final = (ast.Name, ast.Attribute, ast.Call, ast.Await, ast.Subscript)
"""Conditions that have no operator of their own to be changed."""
LOGGERS: Final = {"_log", "logging", "warnings"}
FUNCTIONS_FOR_PEOPLE: Final = {"__repr__", "__str__"}
DETAILS_OF_ERRORS: Final = {"value", "limit", "remedy"}
LONGEST_TEXT: Final = 120
NOTHING: Final = "∅"
"""Stands for removed code."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of one module.

    Args:
        module: Path of the module in the repository.
        function: Qualified name of the function.
        original: The code as it is.
        mutated: The code instead.
        number: Tells equal changes of one function apart, from 1.
        line: Its first line.
        last_line: Its last line.
        start: Where the changed bytes of the source begin.
        end: Where they end.
        text: The bytes to put there.
    """

    module: str
    function: str
    original: str
    mutated: str
    number: int
    line: int
    last_line: int
    start: int
    end: int
    text: bytes

    @property
    def key(self) -> str:
        """Name that stays the same when lines move."""
        number = f" ({self.number})" if self.number > 1 else ""
        return f"{self.module} {self.function}: {self.original} → {self.mutated}{number}"

    def apply(self, source: bytes) -> bytes:
        """Return the changed source."""
        return source[: self.start] + self.text + source[self.end :]


Change: TypeAlias = "tuple[ast.expr | ast.stmt, str, str, str]"
"""A node, the code to put in its place, and both as they are shown."""


def mutations_of(root: Path, module: str) -> list[Mutation]:
    """Return the mutations of a module, in the order of its lines."""
    source = (root / module).read_bytes()
    offsets = [0]
    for line in source.split(b"\n"):
        offsets.append(offsets[-1] + len(line) + 1)
    seen: Counter[tuple[str, str, str]] = Counter()
    found = []
    for function, (node, text, original, mutated) in _changes(ast.parse(source)):
        start = offsets[node.lineno - 1] + node.col_offset
        end = offsets[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        name = (function, _short(original), _short(mutated))
        seen[name] += 1
        mutation = Mutation(
            module,
            *name,
            number=seen[name],
            line=node.lineno,
            last_line=node.end_lineno or node.lineno,
            start=start,
            end=end,
            text=text.encode(),
        )
        if _is_code(mutation.apply(source)):
            found.append(mutation)
    return sorted(found, key=lambda each: (each.start, each.end, each.mutated))


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= LONGEST_TEXT else f"{flat[:LONGEST_TEXT]}…"


def _is_code(source: bytes) -> bool:
    try:
        compile(source, "mutated", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def _changes(tree: ast.Module) -> Iterator[tuple[str, Change]]:
    for node in tree.body:
        yield from _outside(node, ())


def _outside(node: ast.stmt, names: tuple[str, ...]) -> Iterator[tuple[str, Change]]:
    """Look for functions in modules and classes."""
    if isinstance(node, ast.ClassDef):
        if not any(ast.unparse(base).startswith("Protocol") for base in node.bases):
            for child in node.body:
                yield from _outside(child, (*names, node.name))
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        if node.name in FUNCTIONS_FOR_PEOPLE:
            return
        name = ".".join((*names, node.name))
        for child in node.body:
            for change in _inside(child):
                yield name, change


def _inside(node: ast.AST) -> Iterator[Change]:
    """Give the changes of a statement or expression, and of all that it is made of."""
    if isinstance(node, ast.Raise):
        yield node, "pass", ast.unparse(node), NOTHING
        return
    if isinstance(node, ast.JoinedStr | ast.arguments | ast.Nonlocal) or _is_for_people(node):
        return
    if isinstance(node, ast.stmt):
        yield from _of_statement(node)
    elif isinstance(node, ast.expr):
        yield from _of_expression(node)
    if isinstance(node, ast.AnnAssign):
        children: list[ast.AST] = [node.target, *([node.value] if node.value else [])]
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        children = list(node.body)
    elif isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
        children = [node.args[0]]
    else:
        children = list(ast.iter_child_nodes(node))
    for child in children:
        yield from _inside(child)


def _is_for_people(node: ast.AST) -> bool:
    """Whether it is a docstring, a line of a log or an error with its details."""
    if isinstance(node, ast.Call):
        return any(keyword.arg in DETAILS_OF_ERRORS for keyword in node.keywords)
    if not isinstance(node, ast.Expr):
        return False
    value = node.value
    if isinstance(value, ast.Constant):
        return True
    return isinstance(value, ast.Call) and ast.unparse(value.func).partition(".")[0] in LOGGERS


def _of_statement(node: ast.stmt) -> Iterator[Change]:
    text = ast.unparse(node)
    is_call = isinstance(node, ast.Expr) and not isinstance(node.value, ast.Yield | ast.YieldFrom)
    if is_call or isinstance(node, ast.Delete):
        yield node, "pass", text, NOTHING
    elif isinstance(node, ast.Assign):
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            yield node, "pass", text, NOTHING
    elif isinstance(node, ast.AugAssign):
        other = OTHER_ARITHMETIC.get(type(node.op))
        if other is not None:
            changed = copy.copy(node)
            changed.op = other()
            yield node, ast.unparse(changed), text, ast.unparse(changed)
    elif isinstance(node, ast.Return):
        value = node.value
        if value is not None and not isinstance(value, ast.Constant | ast.Compare | ast.BoolOp):
            yield node, "return None", text, "return None"
    elif isinstance(node, ast.Break):
        yield node, "continue", text, "continue"
    elif isinstance(node, ast.Continue):
        yield node, "break", text, "break"
    elif isinstance(node, ast.If | ast.While) and isinstance(node.test, PLAIN_TESTS):
        yield _instead(node.test, ast.UnaryOp(ast.Not(), node.test))


def _of_expression(node: ast.expr) -> Iterator[Change]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        changed = copy.copy(node)
        changed.ops = [OTHER_COMPARISON[type(node.ops[0])]()]
        yield _instead(node, changed)
    elif isinstance(node, ast.BoolOp):
        for index in range(len(node.values)):
            left = node.values[:index] + node.values[index + 1 :]
            yield _instead(node, left[0] if len(left) == 1 else ast.BoolOp(node.op, left))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield _instead(node, node.operand)
    elif isinstance(node, ast.IfExp) and isinstance(node.test, PLAIN_TESTS):
        yield _instead(node.test, ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, ast.BinOp):
        other = OTHER_ARITHMETIC.get(type(node.op))
        texts = (ast.JoinedStr,)
        if other is not None and not isinstance(node.left, texts):
            yield _instead(node, ast.BinOp(node.left, other(), node.right))
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield _instead(node, ast.Constant(not node.value))
        elif isinstance(node.value, int):
            yield _instead(node, ast.Constant(node.value + 1))
    elif isinstance(node, ast.Call):
        yield from _of_call(node)


def _of_call(node: ast.Call) -> Iterator[Change]:
    if isinstance(node.func, ast.Name) and node.func.id in OTHER_FUNCTION:
        other = ast.Name(OTHER_FUNCTION[node.func.id])
        yield _instead(node, ast.Call(other, node.args, node.keywords))
    for keyword in node.keywords:
        if keyword.arg is not None:
            left = [each for each in node.keywords if each is not keyword]
            changed = ast.Call(node.func, node.args, left)
            shown = f"{ast.unparse(node.func)}({keyword.arg}={ast.unparse(keyword.value)})"
            yield node, ast.unparse(changed), shown, NOTHING


def _instead(node: ast.expr, changed: ast.expr) -> Change:
    text = ast.unparse(changed)
    return node, f"({text})", ast.unparse(node), text
