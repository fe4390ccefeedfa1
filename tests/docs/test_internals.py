"""The internals pages name packages, classes and test rigs that exist."""

from __future__ import annotations

import ast
import functools
import re
from typing import TYPE_CHECKING

import pytest

from tests.docs.examples import ROOT
from tools.docs import packages_page

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = ROOT / "docs" / "internals"
PAGES = sorted(path.name for path in FOLDER.glob("*.md") if path.name != "spark-suites.md")
CODE = re.compile(r"`([^`\n]+)`")
CLASS = re.compile(r"(?P<name>[A-Z][a-z]\w*[A-Z]\w*)(?:\.\w+)?")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
OF_SPARK = {
    "AppHistoryServerPlugin",
    "ExecutorMonitor",
    "ExternalSorter",
    "MapOutputTracker",
    "MapStatus",
    "MemoryConsumer",
    "PipelinedShuffleDependency",
    "ShuffleDependency",
    "ShuffleManager",
    "ShuffleWriteProcessor",
    "SortShuffleManager",
    "StreamingShuffleManager",
}


def classes_in(path: Path) -> set[str]:
    """Return the classes and type aliases of a Python file, and the class of a Java file."""
    if path.suffix == ".java":
        return {path.stem}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    aliases = (node.target for node in tree.body if isinstance(node, ast.AnnAssign))
    return names | {target.id for target in aliases if isinstance(target, ast.Name)}


@functools.cache
def classes() -> frozenset[str]:
    """Return the names of the classes of the layers, the benchmarks and the tests."""
    found = set(OF_SPARK)
    for folder in ("protocol", "transport", "shuffle", "spark_integration", "benchmarks", "tests"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".java"}:
                found |= classes_in(path)
    return frozenset(found)


def test_the_packages_are_those_of_the_layering_test():
    committed = packages_page.PAGE.read_text(encoding="utf-8")
    assert packages_page.page(committed) == committed, "run: make docs"


@pytest.mark.parametrize("name", PAGES)
def test_every_class_that_a_page_names_exists(name):
    text = FENCE.sub("", (FOLDER / name).read_text(encoding="utf-8"))
    named = {match["name"] for each in CODE.findall(text) if (match := CLASS.fullmatch(each))}
    assert not named - classes()


def test_the_glossary_names_classes():
    text = (FOLDER / "glossary.md").read_text(encoding="utf-8")
    assert len({each for each in CODE.findall(text) if each in classes()}) > 15


def test_every_module_of_the_support_folder_is_a_rig_of_the_page():
    text = (FOLDER / "testing.md").read_text(encoding="utf-8")
    modules = {path.name for path in (ROOT / "tests" / "support").glob("[a-z]*.py")}
    assert modules <= set(CODE.findall(text))
