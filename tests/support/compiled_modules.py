"""The modules that pyproject.toml names for mypyc."""

from __future__ import annotations

import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def modules_of(entry: str) -> list[Path]:
    path = REPOSITORY / entry
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def compiled_modules() -> set[Path]:
    with (REPOSITORY / "pyproject.toml").open("rb") as file:
        hook = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["mypyc"]
    excluded = set(hook["exclude"])
    return {
        module
        for entry in hook["include"]
        for module in modules_of(entry)
        if module.name not in excluded and str(module.relative_to(REPOSITORY)) not in excluded
    }
