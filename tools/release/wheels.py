"""Build the source distribution of a release, and every wheel out of it.

Wheels that are made of the sdist show that the sdist is complete. A compiled wheel takes minutes,
so it is kept in ``build/wheels`` under the digest of the sdist and of the tools that made it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

from tools.release.run import ROOT, SUPPLY_CHAIN, CommandFailedError, run

KEPT = ROOT / "build" / "wheels"
"""Environments that build wheels, and the compiled wheels of earlier runs."""

_BUILD_LOCK = ROOT / "requirements" / "build.txt"
_RUN_LOCK = ROOT / "requirements" / "taskmanager.txt"
_VERSION = (
    "import json, sysconfig;from platform import python_implementation, python_version;"
    "v = sysconfig.get_config_vars();"
    "print(json.dumps([python_implementation(), python_version(),"
    " sysconfig.get_path('include'), v['SOABI']]))"
)
_INSTALL_SECONDS = 900
_COMPILE_SECONDS = 5400
_PACK_SECONDS = 300


class Interpreter(NamedTuple):
    """A Python that gets a compiled wheel.

    Attributes:
        command: The program, as it was given.
        version: For example ``3.11.2``.
        abi: Its part of the name of an extension module; it differs between machines too.
    """

    command: str
    version: str
    abi: str


def find_interpreter(command: str) -> Interpreter | str:
    """Return the Python of a command, or the reason why no wheel can be compiled for it."""
    program = shutil.which(command)
    if program is None:
        return f"there is no {command} here"
    if shutil.which("cc") is None:
        return "there is no C compiler here (Debian: apt-get install gcc)"
    try:
        text = run([program, "-c", _VERSION], deadline_seconds=60)
    except CommandFailedError as error:
        return f"{command} does not run: {error.reason}"
    implementation, version, include, abi = json.loads(text)
    if implementation != "CPython":
        return f"{command} is {implementation}, and mypyc compiles for CPython"
    if not (Path(include) / "Python.h").is_file():
        return f"{command} has no headers in {include} (Debian: apt-get install python3-dev)"
    return Interpreter(program, version, abi)


def build_sdist(output: Path) -> Path:
    """Build the sdist, with the plugin's jar, into a directory without another one.

    Raises:
        CommandFailedError: The build failed; its message says why.
    """
    build = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", output, ROOT]
    run(build, deadline_seconds=_PACK_SECONDS)
    (sdist,) = output.glob("sluice_shuffle-*.tar.gz")
    return sdist


def build_pure_wheel(sdist: Path, output: Path) -> Path:
    """Build the wheel for any Python and any machine."""
    with tempfile.TemporaryDirectory() as directory:
        wheel = _wheel(Path(sys.executable), sdist, Path(directory) / "wheel", compile_it=False)
        return Path(shutil.copy(wheel, output))


def build_compiled_wheel(sdist: Path, interpreter: Interpreter, output: Path) -> Path:
    """Build the wheel of one Python, or take the one of an earlier run from the same bytes.

    auditwheel names the oldest C library that the wheel runs on and fails if it needs a library
    that such a host may lack.
    """
    digest = hashlib.sha256(interpreter.abi.encode())
    for path in (sdist, _BUILD_LOCK, _RUN_LOCK):
        digest.update(path.read_bytes())
    kept = KEPT / f"{interpreter.version}-{digest.hexdigest()[:16]}"
    if not list(kept.glob("*.whl")):
        fresh = KEPT / f"{kept.name}.unfinished"
        python = _build_environment(interpreter)
        _wheel(python, sdist, fresh, compile_it=True)
        shutil.rmtree(kept, ignore_errors=True)
        fresh.rename(kept)
    (wheel,) = kept.glob("*.whl")
    before = set(output.glob("*.whl"))
    run(
        [SUPPLY_CHAIN / "auditwheel", "repair", "--wheel-dir", output, wheel],
        deadline_seconds=_PACK_SECONDS,
    )
    (repaired,) = set(output.glob("*.whl")) - before
    return repaired


def _wheel(python: Path, sdist: Path, directory: Path, *, compile_it: bool) -> Path:
    """Build one wheel in an empty directory, from a fresh copy of the sources."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    source = directory / "source"
    with tarfile.open(sdist) as archive:
        archive.extractall(source, filter="data")
    (root,) = source.iterdir()
    pip = [python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run(
        [*pip, "--wheel-dir", directory, root],
        deadline_seconds=_COMPILE_SECONDS if compile_it else _PACK_SECONDS,
        environment={"HATCH_BUILD_HOOKS_ENABLE": "1"} if compile_it else {},
    )
    shutil.rmtree(source)
    (wheel,) = directory.glob("*.whl")
    return wheel


def _build_environment(interpreter: Interpreter) -> Path:
    """Make the virtual environment that compiles, from pinned wheels only; return its Python."""
    directory = KEPT / f"environment-{interpreter.version}"
    python = directory / "bin" / "python"
    shutil.rmtree(directory, ignore_errors=True)
    run([interpreter.command, "-m", "venv", directory], deadline_seconds=_INSTALL_SECONDS)
    install = [python, "-m", "pip", "install", "--quiet", "--require-hashes"]
    locks = ["--requirement", _BUILD_LOCK, "--requirement", _RUN_LOCK]
    run([*install, "--only-binary", ":all:", *locks], deadline_seconds=_INSTALL_SECONDS)
    return python
