"""Write the lock files of requirements/: every installed distribution with its SHA-256.

``make constraints`` calls it. One resolution covers everything; the other files are parts of it,
so that a distribution has the same version wherever it is installed.

A version alone is not enough: an index or a cache can serve another file for it. pip-tools resolves
only for its own Python and platform, so uv makes one universal resolution. The files are not
constraints, because pip refuses an editable installation together with hashed constraints.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_WHOLE = "requirements/development.txt"
_AS_IN_WHOLE = ("--constraint", _WHOLE)

LOCKS = {
    _WHOLE: ("pyproject.toml", "--all-extras", "--group", "pyproject.toml:build"),
    "requirements/build.txt": ("--group", "pyproject.toml:build", *_AS_IN_WHOLE),
    "requirements/taskmanager.txt": ("pyproject.toml", "--extra", "remote", *_AS_IN_WHOLE),
    "requirements/spark.txt": ("pyproject.toml", "--extra", "spark", *_AS_IN_WHOLE),
    # Resolved separately: these tools have their own environment.
    "requirements/supply-chain.txt": ("--group", "pyproject.toml:supply-chain"),
}
"""The lock files, and the parts of pyproject.toml that they resolve."""


def main() -> int:
    """Compile all lock files; return uv's exit code if one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    upgrade = ["--upgrade"] if parser.parse_args().upgrade else []
    for path, sources in LOCKS.items():
        command = [
            *(Path(sys.executable).with_name("uv"), "pip", "compile", "--quiet", "--no-config"),
            # One file for each platform and each Python: markers say where a line holds.
            *("--universal", "--python-version", "3.11", "--generate-hashes"),
            *("--annotation-style", "line", "--custom-compile-command", "make constraints"),
            *("--output-file", path, *sources, *upgrade),
        ]
        words = [str(word) for word in command]
        done = subprocess.run(words, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
