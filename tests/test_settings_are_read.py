"""Every key of a configuration is read by the code that it configures, not only by a validator."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from sluice.shuffle.client.config import ClientConfig
from sluice.shuffle.taskmanager.config.taskmanager_config import keys, sections

REPOSITORY = Path(__file__).parents[1]
LAYERS = ("protocol", "transport", "shuffle", "sluice/cli")

HOLDER = re.compile(
    r"config|settings|services|memory|transport|auth|http|storage|applications|cluster"
)
"""In names of variables that hold a configuration, or a table of one."""


def sources(without: str) -> list[ast.Module]:
    """Parse the layers, but for one folder, which has a configuration of its own."""
    paths = (path for layer in LAYERS for path in (REPOSITORY / layer).rglob("*.py"))
    left_out = REPOSITORY / without
    return [ast.parse(path.read_text("utf-8")) for path in paths if left_out not in path.parents]


def is_model(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef) and any(
        isinstance(base, ast.Name) and base.id == "Settings" for base in node.bases
    )


def is_validator(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and any(
        "validator" in ast.unparse(decorator) for decorator in node.decorator_list
    )


def last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def read_names(modules: list[ast.Module]) -> set[str]:
    """Return the attributes read of configurations, also by way of a method of their class."""
    read: set[str] = set()
    of_methods: dict[str, set[str]] = {}

    def visit(node: ast.AST, of_self: set[str] | None) -> None:
        if is_validator(node):
            return  # it looks at a value, and does nothing with it
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            if HOLDER.search(last_name(node.value)):
                read.add(node.attr)
            elif of_self is not None and last_name(node.value) == "self":
                of_self.add(node.attr)
        for child in ast.iter_child_nodes(node):
            inner = of_self
            if is_model(node) and isinstance(child, ast.FunctionDef):
                inner = of_methods.setdefault(child.name, set())
            visit(child, inner)

    for module in modules:
        visit(module, None)
    while True:
        found = set().union(*(names for method, names in of_methods.items() if method in read))
        if found <= read:
            return read
        read |= found


@pytest.fixture(scope="module")
def read_by_taskmanagers() -> set[str]:
    return read_names(sources(without="shuffle/client"))


def test_every_key_of_a_taskmanager_is_read(read_by_taskmanagers):
    assert sorted(set(keys()) - read_by_taskmanagers) == []
    assert {name for name, _ in sections() if name} <= read_by_taskmanagers


def test_every_setting_of_a_client_is_read():
    read = read_names(sources(without="shuffle/taskmanager"))
    assert sorted(set(ClientConfig.model_fields) - read) == []


def test_a_key_that_only_its_own_class_mentions_is_found():
    module = ast.parse(
        """
class Table(Settings):
    used: int = 1
    by_property: int = 1
    checked: int = 1
    by_unused_method: int = 1
    never: int = 1

    @model_validator(mode="after")
    def _check(self):
        assert self.checked and self.config.checked

    @property
    def worked_out(self):
        return self.by_property

    def unused(self):
        return self.by_unused_method

def work(config, bounds):
    return config.used, config.worked_out, bounds.never
"""
    )
    assert read_names([module]) == {"used", "worked_out", "by_property"}
