"""Imports go down only: protocol <- transport <- shuffle <- spark_integration."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("protocol", "transport", "shuffle", "spark_integration")
SANS_IO_BANNED = frozenset(
    {"asyncio", "socket", "ssl", "selectors", "time", "datetime", "random", "secrets", "os",
     "threading", "subprocess", "pathlib", "io"}
)  # fmt: skip
DATA_PLANE_BANNED = frozenset(
    {"prometheus_client", "aiohttp", "click", "rich", "signal", "argparse", "pickle", "marshal"}
)
THIRD_PARTY = {
    "protocol": {"msgpack"},
    "transport": {"uvloop", "pydantic"},
    "shuffle": {"pydantic", "crc32c"},
    "shuffle.storage": {"msgpack", "crc32c"},  # the rows of its journal
    "shuffle.partition": {"crc32c", "lz4"},  # blocks of blocking partitions
    "shuffle.records": {"msgpack", "crc32c", "pyarrow"},  # values; pyarrow at its first use
    "shuffle.daemon": {
        "aiohttp", "click", "prometheus_client", "pydantic", "pydantic_core", "rich",
    },
    "spark_integration": {"click", "pyspark"},
}  # fmt: skip
ANYWHERE = frozenset({"mypy_extensions"})
"""What says something to mypyc and does nothing."""


class Import(NamedTuple):
    """One import statement's target and where it stands."""

    module: str
    place: str

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports_of(path: Path) -> list[Import]:
    """Return every import, also inside functions and under TYPE_CHECKING."""
    place = path.relative_to(ROOT).as_posix()
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            found += [Import(name.name, f"{place}:{node.lineno}") for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                pytest.fail(f"{place}:{node.lineno}: relative import; write the whole name")
            module = node.module or ""
            found += [Import(f"{module}.{name.name}", f"{place}:{node.lineno}")
                      for name in node.names]  # fmt: skip
    return found


def part_of(path: Path) -> str:
    """Return the key of THIRD_PARTY that a file falls under."""
    parts = path.relative_to(ROOT).parts
    nested = ".".join(parts[:2])
    return nested if nested in THIRD_PARTY else parts[0]


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_itself_and_those_below(layer):
    above = (*LAYERS[LAYERS.index(layer) + 1 :], "tests", "benchmarks")
    assert sources(layer)
    wrong = [
        f"{found.place} imports {found.module}"
        for path in sources(layer)
        for found in imports_of(path)
        if found.top in above
    ]
    assert not wrong


def test_the_core_has_no_io_no_clock_and_no_chance():
    wrong = [
        f"{found.place} imports {found.module}"
        for path in sources("protocol")
        for found in imports_of(path)
        if found.top in SANS_IO_BANNED
    ]
    assert not wrong


def test_below_the_daemon_there_is_no_exposition_and_no_command_line():
    wrong = [
        f"{found.place} imports {found.module}"
        for package in ("protocol", "transport", "shuffle")
        for path in sources(package)
        if part_of(path) != "shuffle.daemon"
        for found in imports_of(path)
        if found.top in DATA_PLANE_BANNED or found.module.startswith("shuffle.daemon")
    ]
    assert not wrong


@pytest.mark.parametrize("layer", LAYERS)
def test_third_party_packages_stay_where_they_belong(layer):
    wrong = [
        f"{found.place} imports {found.module}"
        for path in sources(layer)
        for found in imports_of(path)
        if found.top not in sys.stdlib_module_names
        and found.top not in LAYERS
        and found.top not in THIRD_PARTY[part_of(path)] | ANYWHERE
    ]
    assert not wrong


def test_nothing_unpickles():
    wrong = [
        f"{found.place} imports {found.module}"
        for layer in LAYERS
        for path in sources(layer)
        for found in imports_of(path)
        if found.top in {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    ]
    assert not wrong


def test_runtime_rules_are_not_asserted():
    """Python -O drops assertions, and with them whatever they check."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for layer in LAYERS
        for path in sources(layer)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assert)
    ]
    assert not wrong
