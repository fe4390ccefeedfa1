"""Copies of the checkout in which modules are changed and tests are run."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

CODE: Final = ("protocol", "transport", "shuffle", "spark_integration", "sluice")
BESIDE: Final = ("tests", "benchmarks", "tools", "docs", "examples", "pyproject.toml", "mypyc.ini")
JVM: Final = "spark_integration/jvm/"
DATA_PATH_TESTS: Final = ("tests/protocol", "tests/shuffle", "tests/support", "tests/conftest.py")


def files_of(root: Path, *places: str) -> list[str]:
    """Return the files of the repository in some places: those of git, and new ones."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *places]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True, timeout=60)  # noqa: S603
    names = set(listed.stdout.decode().split("\0")) - {""}
    return sorted(name for name in names if not name.startswith(JVM) and _is_there(root / name))


def _is_there(path: Path) -> bool:
    return path.is_symlink() or path.is_file()


def digest_of(root: Path, *places: str) -> str:
    """Return a digest of the names and contents of the files in some places."""
    digest = hashlib.sha256()
    for name in files_of(root, *places):
        if not (root / name).is_symlink():
            digest.update(name.encode() + b"\0" + (root / name).read_bytes() + b"\0")
    return digest.hexdigest()[:16]


class WorkingCopy:
    """One copy of the checkout, for one run of tests at a time.

    Args:
        root: The checkout.
        directory: Where to put the copy; one that is there is replaced.
    """

    def __init__(self, root: Path, directory: Path) -> None:
        self.directory = directory
        shutil.rmtree(directory, ignore_errors=True)
        for name in files_of(root, *CODE, *BESIDE):
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target, follow_symlinks=False)
        self._changed: dict[Path, bytes] = {}

    @property
    def package(self) -> str:
        """Prefix of the names of the files that are imported from the copy."""
        return f"{self.directory}/sluice/"

    def source(self, module: str) -> bytes:
        """Return a module as it is in the copy: the checkout may have changed since."""
        return (self.directory / module).read_bytes()

    def change(self, module: str, source: bytes) -> None:
        """Replace a module, until :meth:`restore`."""
        path = self.directory / module
        self._changed.setdefault(path, path.read_bytes())
        self._write(path, source)

    def restore(self) -> None:
        """Undo all changes. Idempotent."""
        for path, source in self._changed.items():
            self._write(path, source)
        self._changed.clear()

    @staticmethod
    def _write(path: Path, source: bytes) -> None:
        # Two changes may have one size and one time: then a compiled module of the other would do.
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()
        path.write_bytes(source)
