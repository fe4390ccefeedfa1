"""Checksums of a release, as coreutils read them."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tools.release.checksums import NAME, write_checksums, wrong_files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def release(tmp_path: Path) -> Path:
    for name in ("b.whl", "a.tar.gz"):
        (tmp_path / name).write_text(name)
    write_checksums(tmp_path)
    return tmp_path


def test_all_other_files_are_listed_in_order(release: Path):
    write_checksums(release)
    lines = (release / NAME).read_text().splitlines()
    assert [line.partition("  ")[2] for line in lines] == ["a.tar.gz", "b.whl"]
    assert wrong_files(release) == []


def test_changed_missing_and_unlisted_files_are_found(release: Path):
    (release / "a.tar.gz").write_text("something else")
    (release / "b.whl").unlink()
    (release / "c.whl").touch()
    assert wrong_files(release) == ["a.tar.gz", "b.whl", "c.whl"]


def test_sha256sum_reads_the_file(release: Path):
    if shutil.which("sha256sum") is None:
        pytest.skip("there is no sha256sum here")
    command = ["sha256sum", "--check", "--strict", NAME]
    done = subprocess.run(command, cwd=release, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
