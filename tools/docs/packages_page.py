"""Writes the table of packages of ``docs/internals/index.md``: ``make docs``.

The order comes from ``tests/test_layering.py``, and the description from the first line of each
package's docstring.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "internals" / "index.md"
LAYERING: Final = ROOT / "tests" / "test_layering.py"
BEGIN: Final = "<!-- packages -->\n"
END: Final = "<!-- /packages -->\n"


def orders() -> dict[str, tuple[str, ...]]:
    """Return the orders of the layering test, lowest first, by their names."""
    found: dict[str, tuple[str, ...]] = {}
    for node in ast.parse(LAYERING.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in {"LAYERS", "TASK_ORDER", "TASKMANAGER_ORDER"}:
                found[name] = ast.literal_eval(node.value)
    return found


def packages() -> list[str]:
    """Return the folders of all packages; a package imports only earlier ones."""
    order = orders()
    found: list[str] = []
    for layer in order["LAYERS"]:
        found.append(layer)
        if layer == "shuffle":
            found += [f"shuffle/{name}" for name in order["TASK_ORDER"]]
            found.append("shuffle/taskmanager")
            found += [f"shuffle/taskmanager/{name}" for name in order["TASKMANAGER_ORDER"]]
    return found


def description(folder: str) -> str:
    """Return the first line of a package's docstring.

    Raises:
        ValueError: The package has no docstring.
    """
    module = ast.parse((ROOT / folder / "__init__.py").read_text(encoding="utf-8"))
    if not (text := ast.get_docstring(module)):
        raise ValueError(f"{folder}/__init__.py has no docstring")
    return text.partition("\n")[0].removesuffix(".")


def table() -> str:
    """Return a row for each package."""
    rows = [f"| `{each}` | {description(each)} |" for each in packages()]
    return "\n".join(["| package | content |", "|---|---|", *rows]) + "\n"


def page(committed: str) -> str:
    """Return the page with its table updated."""
    head, _, rest = committed.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table()}\n{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
