"""How a release runs its commands."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tools.release.run import CommandFailedError, run

if TYPE_CHECKING:
    from pathlib import Path


def test_the_checkout_is_not_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    text = "import os; print(os.environ.get('PYTHONPATH'), os.environ['WANTED'], os.getcwd())"
    output = run(
        [sys.executable, "-c", text],
        deadline_seconds=60,
        directory=tmp_path,
        environment={"WANTED": "yes"},
    )
    assert output == f"None yes {tmp_path}\n"


def test_a_failure_says_what_the_command_printed():
    text = "import sys; print('begun'); sys.exit('no compiler')"
    with pytest.raises(CommandFailedError, match=r"exit code 1\nbegun\nno compiler"):
        run([sys.executable, "-c", text], deadline_seconds=60)


def test_the_reason_is_the_first_line_of_the_output():
    assert CommandFailedError("pip: exit code 1\nno such file\nhint: look").reason == "no such file"
    assert CommandFailedError("pip did not end within 1 s").reason == "pip did not end within 1 s"


def test_a_command_ends_at_its_deadline():
    text = "import threading; threading.Event().wait()"
    with pytest.raises(CommandFailedError, match=r"did not end within 0\.5 s"):
        run([sys.executable, "-c", text], deadline_seconds=0.5)
