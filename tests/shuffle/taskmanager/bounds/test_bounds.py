"""The table of bounds names files that exist, every module of its package and every quota."""

from __future__ import annotations

import re
from pathlib import Path

from sluice.shuffle.taskmanager import bounds
from sluice.shuffle.taskmanager.bounds.accounts import Resource

PACKAGE = Path(bounds.__file__).parent
TABLE = bounds.__doc__ or ""
NAMED = set(re.findall(r"[\w/]+\.py", TABLE))


def test_every_file_exists():
    roots = PACKAGE.parent, PACKAGE.parents[2]
    assert not [name for name in NAMED if not any((root / name).is_file() for root in roots)]


def test_every_module_is_named():
    modules = {f"bounds/{path.name}" for path in PACKAGE.glob("*.py")}
    assert modules - NAMED == {"bounds/__init__.py"}


def test_every_quota_is_named():
    resources = {each.words.removesuffix(" bytes") for each in Resource}
    assert not [name for name in resources if name not in TABLE]
