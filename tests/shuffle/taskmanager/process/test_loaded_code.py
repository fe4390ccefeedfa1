"""A client and a daemon load little code of this project; lower a limit when less is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
{statement}
print(*(module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "sluice"))
"""


@pytest.mark.parametrize(
    ("statement", "most_modules", "most_lines"),
    [
        ("from sluice import ShuffleClient", 78, 15_010),
        ("import sluice.shuffle.taskmanager.process.service", 261, 47_400),
    ],
)
def test_a_process_loads_little_code(statement, most_modules, most_lines):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(statement=statement)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[4],
        timeout=60,
    )
    files = [Path(path) for path in done.stdout.split()]
    # An extension module of a compiled installation lies beside its source.
    sources = [path.with_name(f"{path.name.partition('.')[0]}.py") for path in files]
    lines = sum(len(source.read_text(encoding="utf-8").splitlines()) for source in sources)
    assert (len(files) <= most_modules, lines <= most_lines) == (True, True), (len(files), lines)
