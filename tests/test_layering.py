"""Imports go down only: between the four layers, and between the folders of `shuffle`."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("protocol", "transport", "shuffle", "spark_integration")
CLI = "sluice/cli"
"""The command line, above the layers."""
TASK_ORDER = ("memory", "partition", "gate", "legs", "records", "client", "dataflow")
"""Folders of `shuffle` beside `taskmanager`, lowest first."""
STORE_ORDER = ("files", "objects", "tiers", "health", "remote", "journal")
"""Folders of `shuffle/taskmanager/store`, lowest first; its modules join them together."""
TASKMANAGER_ORDER = (
    "bounds", "config", "tracing", "store", "integrity", "cluster", "serve", "hybrid", "ingest",
    "replicas", "drivers",
    "embedded", "status", "metrics", "http", "process", "processes",
)  # fmt: skip
"""Folders of `shuffle/taskmanager`, lowest first."""
TASKMANAGER_MODULES = {"__init__.py", "taskmanager.py", "wiring.py"}
"""Its modules, which join the folders together."""
CIRCLES = {
    frozenset(f"shuffle.memory.{name}" for name in ("local_buffer_pool", "network_buffer_pool"))
}
"""Modules that import each other: the two pools know each other by nature."""
SANS_IO_BANNED = frozenset(
    {"asyncio", "socket", "ssl", "selectors", "time", "datetime", "random", "secrets", "os",
     "threading", "subprocess", "pathlib", "io"}
)  # fmt: skip
DATA_PLANE_BANNED = frozenset(
    {"prometheus_client", "aiohttp", "click", "rich", "signal", "argparse", "pickle", "marshal"}
)
THIRD_PARTY = {
    "protocol": {"msgpack", "msgspec"},
    "transport": {"uvloop", "pydantic"},
    "shuffle": {"msgspec"},  # the status of the pools
    "shuffle.partition": {"crc32c", "lz4"},  # blocks of stored partitions
    "shuffle.gate": {"crc32c"},  # of pipelined buffers on the peer leg
    "shuffle.records": {"msgpack", "crc32c", "pyarrow"},  # values; pyarrow at its first use
    "shuffle.client": {"pydantic"},
    "shuffle.taskmanager": {"pydantic", "msgspec"},
    "shuffle.taskmanager.bounds": {"pydantic", "msgspec"},
    "shuffle.taskmanager.config": {"pydantic", "pydantic_core"},
    "shuffle.taskmanager.tracing": {"opentelemetry", "msgspec"},  # loaded only with a collector
    "shuffle.taskmanager.process": {"pydantic", "msgspec"},
    "shuffle.taskmanager.store": {"msgpack", "crc32c", "msgspec"},  # the rows of its journal
    "shuffle.taskmanager.serve": {"crc32c", "msgspec"},  # as in the gate
    "shuffle.taskmanager.ingest": {"crc32c", "msgspec"},
    "shuffle.taskmanager.hybrid": {"crc32c"},  # of spilled runs
    "shuffle.taskmanager.metrics": {"prometheus_client", "msgspec"},
    "shuffle.taskmanager.http": {"aiohttp", "msgspec", "prometheus_client"},
    "spark_integration": {"click", "pyspark"},
}
ANYWHERE = frozenset({"mypy_extensions"})
"""Packages that say something to mypyc and do nothing."""


class Import(NamedTuple):
    """One import statement's target, without the package `sluice`, and where it stands."""

    module: str
    place: str

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@functools.cache
def imports_of(path: Path) -> list[Import]:
    """Return every import, also inside functions and under TYPE_CHECKING.

    Imports inside a layer are relative, so that they mean the same in a checkout, where the layers
    lie at the top level, and in the wheel, where they lie in ``sluice/``.
    """
    relative = path.relative_to(ROOT)
    package = relative.parent.parts
    inside = package[:1] and package[0] in LAYERS
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        place = f"{relative.as_posix()}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            below = package[: len(package) + 1 - node.level] if node.level else ()
            base = ".".join((*below, *([node.module] if node.module else [])))
            names = [f"{base}.{name.name}" for name in node.names]
            if node.level:
                found += [Import(name, place) for name in names]
                continue
        else:
            continue
        for name in names:
            top = name.partition(".")[0]
            if top in LAYERS:
                pytest.fail(f"{place}: import {name} as sluice.{name}")
            if top == "sluice" and inside:
                pytest.fail(f"{place}: import {name} relatively, a layer has two places")
            found.append(Import(name.removeprefix("sluice."), place))
    return found


def part_of(path: Path) -> str:
    """Return the key of THIRD_PARTY that a file falls under: its nearest folder's."""
    parts = path.relative_to(ROOT).parent.parts
    names = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next(name for name in names if name in THIRD_PARTY)


def wrong_imports(package: str, banned: tuple[str, ...]) -> list[str]:
    """Return the imports of a package that name a banned package or one inside it."""
    assert sources(package), package
    return [
        f"{found.place} imports {found.module}"
        for path in sources(package)
        for found in imports_of(path)
        if any(found.module == name or found.module.startswith(f"{name}.") for name in banned)
    ]


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_itself_and_those_below(layer):
    above = LAYERS[LAYERS.index(layer) + 1 :]
    assert not wrong_imports(layer, (*above, "tests", "benchmarks", "examples", "tools"))


def test_programs_beside_the_layers_import_of_the_tests_only_what_they_share():
    """The harness is in `tests/support`; benchmarks measure with it."""
    assert not wrong_imports("examples", ("tests", "benchmarks"))
    assert not [
        f"{found.place} imports {found.module}"
        for folder in ("benchmarks", "tools")
        for path in sources(folder)
        for found in imports_of(path)
        if found.top == "tests" and not found.module.startswith("tests.support")
    ]


def test_only_tests_of_benchmarks_import_benchmarks():
    assert not [
        f"{found.place} imports {found.module}"
        for path in sources("tests")
        for found in imports_of(path)
        if found.top == "benchmarks" and path.parent != ROOT / "tests/benchmarks"
    ]


def test_test_modules_do_not_import_each_other():
    """Whatever tests share is in `tests/support`, or in the `rig.py` of their folder."""
    assert not [
        f"{found.place} imports {found.module}"
        for path in sources("tests")
        for found in imports_of(path)
        if found.top == "tests" and any(p.startswith("test_") for p in found.module.split(".")[:-1])
    ]


def test_a_rig_beside_tests_is_used_by_its_folder_only():
    assert not [
        f"{found.place} imports {found.module}"
        for path in sources("tests")
        for found in imports_of(path)
        if ".rig." in f"{found.module}."
        and found.module.partition(".rig")[0] != ".".join(path.parent.relative_to(ROOT).parts)
    ]


@pytest.mark.parametrize("folder", TASK_ORDER)
def test_a_folder_of_shuffle_imports_only_itself_and_those_below(folder):
    above = (*TASK_ORDER[TASK_ORDER.index(folder) + 1 :], "taskmanager")
    assert not wrong_imports(f"shuffle/{folder}", tuple(f"shuffle.{name}" for name in above))


@pytest.mark.parametrize("module", [path.name for path in sorted((ROOT / "shuffle").glob("*.py"))])
def test_a_module_beside_the_folders_imports_none_of_them(module):
    folders = tuple(f"shuffle.{name}" for name in (*TASK_ORDER, "taskmanager"))
    found = imports_of(ROOT / "shuffle" / module)
    assert not [
        f"{one.place} imports {one.module}" for one in found if one.module.startswith(folders)
    ]


@pytest.mark.parametrize("folder", TASKMANAGER_ORDER)
def test_a_folder_of_the_taskmanager_imports_only_itself_and_those_below(folder):
    above = TASKMANAGER_ORDER[TASKMANAGER_ORDER.index(folder) + 1 :]
    banned = tuple(f"shuffle.taskmanager.{name}" for name in above)
    assert not wrong_imports(f"shuffle/taskmanager/{folder}", banned)


@pytest.mark.parametrize("folder", STORE_ORDER)
def test_a_folder_of_the_store_imports_only_itself_and_those_below(folder):
    above = STORE_ORDER[STORE_ORDER.index(folder) + 1 :]
    banned = tuple(f"shuffle.taskmanager.store.{name}" for name in above)
    assert not wrong_imports(f"shuffle/taskmanager/store/{folder}", banned)


@pytest.mark.parametrize(
    ("package", "folders"),
    [
        ("shuffle", {*TASK_ORDER, "taskmanager"}),
        ("shuffle/taskmanager", set(TASKMANAGER_ORDER)),
        ("shuffle/taskmanager/store", set(STORE_ORDER)),
    ],
)
def test_every_folder_has_its_place_in_the_order(package, folders):
    assert {path.parent.name for path in (ROOT / package).glob("*/__init__.py")} == folders


def test_no_module_lies_loose_beside_the_folders_of_the_taskmanager():
    found = {path.name for path in (ROOT / "shuffle/taskmanager").glob("*.py")}
    assert found == TASKMANAGER_MODULES


def test_no_layer_imports_the_command_line():
    for layer in LAYERS:
        assert not wrong_imports(layer, ("cli",))


def test_neither_a_daemon_nor_a_spark_client_imports_the_dataflow_model():
    for package in ("shuffle/taskmanager", "spark_integration"):
        assert not wrong_imports(package, ("shuffle.dataflow",))


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_modules_do_not_import_each_other_in_circles():
    """Imports for types only count as well: they tell how ideas hang together."""
    paths = {module_of(path): path for layer in LAYERS for path in sources(layer)}
    arrows: dict[str, set[str]] = {}
    for module, path in paths.items():
        arrows[module] = set()
        for found in imports_of(path):
            name = found.module if found.module in paths else found.module.rpartition(".")[0]
            # A package's own modules are what it gathers, and they do not import it.
            if name in paths and name != module and not module.startswith(f"{name}."):
                arrows[module].add(name)
    reachable = {module: reached_from(module, arrows) for module in arrows}
    circles = {
        frozenset(other for other in reachable[module] if module in reachable[other])
        for module in arrows
        if module in reachable[module]
    }
    assert circles == CIRCLES


def reached_from(module: str, arrows: dict[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    ahead = list(arrows[module])
    while ahead:
        if (name := ahead.pop()) not in reached:
            reached.add(name)
            ahead += arrows[name]
    return reached


LOADED = """
import sys
{statement}
print(*(name for name in sys.modules if name.split(".")[0] in {{"sluice", "pyspark", "aiohttp"}}))
"""


def loaded_by(statement: str) -> set[str]:
    """Return what a new interpreter has loaded after a statement."""
    script = LOADED.format(statement=statement)
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=60)
    return set(done.stdout.split())


def test_a_client_loads_nothing_that_only_a_taskmanager_runs():
    loaded = loaded_by(
        "from sluice import HashSelector, ResultPartitionType, ShuffleClient, StringSerializer"
    )
    assert "sluice.shuffle.client.client" in loaded
    assert not {
        name
        for name in loaded
        if name.startswith(("sluice.shuffle.taskmanager", "sluice.spark_integration"))
        or not name.startswith("sluice")
    }


def test_a_daemon_loads_nothing_that_only_tasks_run():
    loaded = loaded_by("import sluice.shuffle.taskmanager.process.service")
    folders = ("records", "client", "dataflow", "taskmanager.embedded")
    tasks = tuple(f"sluice.shuffle.{folder}" for folder in folders)
    assert "sluice.shuffle.taskmanager.wiring" in loaded
    assert not {
        name
        for name in loaded
        if name.startswith(tuple(f"sluice.shuffle.{each}" for each in tasks))
    }


def test_settings_of_spark_load_neither_spark_nor_a_taskmanager():
    loaded = loaded_by("from sluice import configure, spark_conf")
    assert "sluice.spark_integration.conf" in loaded
    assert not {
        name for name in loaded if name.startswith(("sluice.shuffle.taskmanager", "pyspark"))
    }


def test_every_public_name_is_there():
    import sluice

    for name in sluice.__all__:
        assert getattr(sluice, name) is not None
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = sluice.nothing_such


def test_the_core_has_no_io_no_clock_and_no_chance():
    assert not wrong_imports("protocol", tuple(SANS_IO_BANNED))


def test_below_the_taskmanager_there_is_no_exposition_and_no_command_line():
    wrong = [
        f"{found.place} imports {found.module}"
        for package in ("protocol", "transport", "shuffle")
        for path in sources(package)
        if path.parent.name not in {"metrics", "http", "process", "processes"}
        for found in imports_of(path)
        if found.top in DATA_PLANE_BANNED
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


def test_tasks_begin_after_the_step_that_starts_them():
    """An eager task factory runs a task's first step inside ``create_task``.

    ``start_task`` and ``run_together`` of ``transport/loop.py`` do not.
    """
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}"
        for layer in LAYERS[:-1]
        for path in sources(layer)
        if path != ROOT / "transport/loop.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr in {"create_task", "ensure_future", "TaskGroup"}
    ]
    assert not wrong
