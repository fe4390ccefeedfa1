"""A short soak ends well."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.cluster import REPOSITORY

SECONDS = 600


@pytest.mark.extended
@pytest.mark.timeout(SECONDS + 20)
def test_jobs_are_right_while_members_change():
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak.run", "--minutes", "0.5"],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        cwd=REPOSITORY,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "soak: all is well" in done.stdout
