"""Log calls give the application, shuffle, map attempt, peer and error they name as fields."""

from __future__ import annotations

import ast
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
FIELDS = {
    "application": ({"application_id", "key", "attempt"}, "log_fields"),
    "shuffle": ({"shuffle_id", "key", "attempt"}, "log_fields"),
    "map_attempt": ({"map_attempt_id", "attempt"}, "log_fields"),
    "peer": ({"remote", "address", "origin", "taskmanager_id"}, "counted("),
}
"""For each field: the variables and attributes that require it, and another way to give it."""
OWN = {"taskmanager.py", "supervisor.py"}
"""Files that log the address and the id of this TaskManager, which is not a peer."""


def names(node: ast.AST | None) -> set[str]:
    """Return the names of variables and attributes in an expression."""
    nodes = [] if node is None else ast.walk(node)
    return {getattr(each, "attr", getattr(each, "id", "")) for each in nodes}


def lacking(function: ast.AST, with_code: set[str]) -> list[tuple[int, str]]:
    """Return the fields that log calls of a function lack, with the lines of the calls."""
    nodes, found = [*ast.walk(function)], []
    calls = [each for each in nodes if isinstance(each, ast.Call) and names(each.func) & LEVELS]
    calls = [each for each in calls if "logger" in names(each.func)]
    source = ast.unparse(function) if calls else ""  # the fields may be made before the call
    coded: set[tuple[str | None, ast.AST]] = set()
    for each in nodes:
        if isinstance(each, ast.arg) and with_code & names(each.annotation):
            coded.add((each.arg, function))
        elif isinstance(each, ast.ExceptHandler) and with_code & names(each.type):
            coded.add((each.name, each))
    for call in calls:
        said = set().union(*map(names, call.args))
        errors = {name or "" for name, scope in coded if call in ast.walk(scope)}
        has_extra = any(each.arg == "extra" for each in call.keywords)
        for field, (of, maker) in (FIELDS | {"code": (errors, "code_field(")}).items():
            if said & of and not (has_extra and (f"'{field}'" in source or maker in source)):
                found.append((call.lineno, field))
    return found


def test_log_calls_give_what_they_name_as_fields():
    layers = [*(REPOSITORY / each for each in ("protocol", "transport", "shuffle"))]
    paths = [path for layer in layers for path in layer.rglob("*.py")]
    trees = {path: [*ast.walk(ast.parse(path.read_text("utf-8")))] for path in paths}
    classes = [each for tree in trees.values() for each in tree if isinstance(each, ast.ClassDef)]
    with_code = {"SluiceError"}
    for _ in range(5):  # an error derives from another error; the tree is not deeper
        with_code |= {each.name for each in classes if with_code & {*map(ast.unparse, each.bases)}}
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions = [(path, each) for path in paths for each in trees[path] if isinstance(each, kinds)]
    found = [(path, *each) for path, node in functions for each in lacking(node, with_code)]
    assert [each for each in found if each[2] != "peer" or each[0].name not in OWN] == []
