"""TPC-H data as parquet files, generated once and kept in `benchmarks/data/`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.cluster import REPOSITORY
from tests.support.jobs.tpch import TABLES

DATA_DIRECTORY = REPOSITORY / "benchmarks" / "data"
GENERATE_TIMEOUT_SECONDS = 600.0


def ensure_tpch(scale_factor: float = 1.0, directory: Path = DATA_DIRECTORY) -> Path:
    """Return a directory with a ``TABLE.parquet`` per TPC-H table; a missing one is generated.

    A directory appears under its final name only when it is complete.

    Raises:
        RuntimeError: The generator is missing or failed.
    """
    target = directory / f"tpch-sf{scale_factor:g}"
    if all((target / f"{table}.parquet").is_file() for table in TABLES):
        return target
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".generating-", dir=directory) as scratch:
        generated = Path(scratch) / "tables"
        _generate(scale_factor, generated)
        shutil.rmtree(target, ignore_errors=True)
        generated.rename(target)
    return target


def warm_page_cache(data: Path) -> int:
    """Read every file once, so that the first job does not pay for the disk; return the bytes."""
    size = 0
    for path in sorted(data.iterdir()):
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                size += len(part)
    return size


def _generate(scale_factor: float, target: Path) -> None:
    beside_python = Path(sys.executable).parent / "tpchgen-cli"
    program = str(beside_python) if beside_python.exists() else shutil.which("tpchgen-cli")
    if program is None:
        raise RuntimeError("tpchgen-cli is not installed: run `make setup`")
    command = [program, "parquet", "--scale-factor", f"{scale_factor:g}"]
    command += ["--output-dir", str(target)]
    try:
        subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=GENERATE_TIMEOUT_SECONDS
        )
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"tpchgen-cli failed: {error.stderr.strip()}") from error
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"tpchgen-cli took over {GENERATE_TIMEOUT_SECONDS:g} s") from error
