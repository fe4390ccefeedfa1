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


def test_no_compiled_module_has_an_error_class() -> None:
    """A compiled subclass of an interpreted error loses its code and has that of its base."""
    interpreted = {module for package in PACKAGES for module in modules_of(package)}
    errors = {"SluiceError"}
    for _ in range(4):  # the errors of a file may come before those of its bases
        errors |= {
            name
            for module in interpreted
            for name, bases in classes_of(module).items()
            if errors & set(bases)
        }
    found = {
        f"{module.relative_to(REPOSITORY)}: {name}"
        for module in compiled_modules()
        for name in classes_of(module)
        if name in errors
    }
    assert len(errors) > 30
    assert not found


def test_no_field_of_a_compiled_dataclass_is_final() -> None:
    """Its own constructor could not set it."""
    found = {
        f"{module.relative_to(REPOSITORY)}, line {field.lineno}: {node.name}"
        for module in compiled_modules()
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        and any("dataclass" in ast.unparse(each) for each in node.decorator_list)
        for field in node.body
        if isinstance(field, ast.AnnAssign) and "Final[" in ast.unparse(field.annotation)
    }
    assert not found


def test_no_attribute_of_a_compiled_class_becomes_a_keyword_of_c() -> None:
    """In C its name has an underscore more: ``_thread`` becomes ``__thread``."""
    keywords = {
        "_thread",
        "_asm",
        "_typeof",
        "_inline",
        "_const",
        "_volatile",
        "_signed",
        "_int128",
    }
    found = {
        f"{module.relative_to(REPOSITORY)}, line {node.lineno}: {node.attr}"
        for module in compiled_modules()
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in keywords
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


def waits_of(body: list[ast.stmt]) -> list[int]:
    """Return the lines that wait in a body, without those of functions in it."""
    found: list[int] = []
    nodes: list[ast.AST] = list(body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith | ast.Yield | ast.YieldFrom):
            found.append(node.lineno)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            nodes += ast.iter_child_nodes(node)
    return found


def test_no_compiled_coroutine_waits_in_an_exception_handler() -> None:
    """Meanwhile, and after a cancellation for ever, its error is the context of all others."""
    wrong = [
        f"{module.relative_to(REPOSITORY)}:{line}"
        for module in compiled_modules()
        for handler in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(handler, ast.ExceptHandler | ast.Try)
        for line in waits_of(
            handler.body if isinstance(handler, ast.ExceptHandler) else handler.finalbody
        )
    ]
    assert not wrong


def read_after_none(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Return attributes of ``self`` that are read again where mypy takes them for None."""
    none: set[str] = set()
    found: list[str] = []
    for statement in function.body:
        attributes = [
            node
            for node in ast.walk(statement)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"
        ]
        none -= {each.attr for each in attributes if isinstance(each.ctx, ast.Store)}
        found += [each.attr for each in attributes if each.attr in none]
        match statement:
            case ast.If(
                test=ast.Compare(
                    left=ast.Attribute(value=ast.Name(id="self"), attr=name),
                    ops=[ast.IsNot()],
                    comparators=[ast.Constant(value=None)],
                ),
                body=[*_, ast.Raise() | ast.Return()],
                orelse=[],
            ):
                none.add(name)
    return found


def test_no_attribute_is_read_again_after_it_was_none() -> None:
    """A call in between may set it, and compiled code then raises TypeError: it expects None."""
    wrong = [
        f"{module.relative_to(REPOSITORY)} {function.name}: {name}"
        for module in compiled_modules()
        for function in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for name in read_after_none(function)
    ]
    assert not wrong
