"""A JVM goes on without an archive that does not fit, and says nothing: here that is noticed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.class_archive import NAME

if TYPE_CHECKING:
    from tests.spark.applications import Application


def test_drivers_map_the_archive(own: Application, directory: Path):
    mapped = Path(f"/proc/{own.driver_pid}/maps").read_text(encoding="utf-8")
    assert str((directory / NAME).resolve()) in mapped
