"""Modules that pyproject.toml names for mypyc keep its rules, seen without a C compiler."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tests.support.compiled_modules import REPOSITORY, compiled_modules, modules_of

if TYPE_CHECKING:
    from pathlib import Path

PACKAGES = tuple(
    f"sluice/{layer}" for layer in ("protocol", "transport", "shuffle", "spark_integration")
)


def classes_of(module: Path) -> dict[str, list[str]]:
    """The classes of a module, and the last name of each of their bases."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    return {
        node.name: [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }


def test_every_module_named_for_mypyc_exists() -> None:
    modules = compiled_modules()
    # The status of a TaskManager tells by this module whether its data path is compiled.
    assert REPOSITORY / "sluice/protocol/framing.py" in modules
    assert all(module.is_file() for module in modules)


def test_no_compiled_class_is_abstract_by_its_base() -> None:
    """The subclasses of an ABC would share the cache of isinstance()."""
    found = {
        f"{module.relative_to(REPOSITORY)}: {name}"
        for module in compiled_modules()
        for name, bases in classes_of(module).items()
        if "ABC" in bases
    }
    assert not found


def test_no_interpreted_class_derives_from_a_compiled_one() -> None:
    compiled = compiled_modules()
    # A NamedTuple or a Protocol stays an ordinary class, from which anything may derive.
    native = {
        name
        for module in compiled
        for name, bases in classes_of(module).items()
        if not {"NamedTuple", "Protocol"} & set(bases)
    }
    interpreted = {module for package in PACKAGES for module in modules_of(package)} - compiled
    found = {
        f"{module.relative_to(REPOSITORY)}: {name} of {base}"
        for module in interpreted
        for name, bases in classes_of(module).items()
        for base in bases
        if base in native
    }
    assert not found
