"""Run the commands of a release."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
SUPPLY_CHAIN = ROOT / "build" / "supply-chain" / "bin"
"""Commands of the environment that `make sbom` and `make release` have in common."""

_CHECKOUT = ("PYTHONPATH", "PYTHONSAFEPATH", "PYSPARK_PYTHON", "VIRTUAL_ENV", "SPARK_HOME")
"""Variables that would let the checkout, or another Spark, take the place of what is built."""


class CommandFailedError(Exception):
    """A command of a release did not end with exit code 0."""

    @property
    def reason(self) -> str:
        """The first line that the command printed, or the whole message if it printed none."""
        return str(self).splitlines()[:2][-1].strip()


def run(
    command: Sequence[object],
    *,
    deadline_seconds: float,
    directory: Path = ROOT,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a command without the checkout's variables and return its standard output.

    Args:
        command: The program and its arguments.
        deadline_seconds: The command is killed after this time.
        directory: Its working directory.
        environment: Additional variables.

    Raises:
        CommandFailedError: It failed or passed the deadline; the message has its last lines.
    """
    words = [str(word) for word in command]
    kept = {name: value for name, value in os.environ.items() if name not in _CHECKOUT}
    try:
        done = subprocess.run(  # noqa: S603 - no shell, and no input of others
            words,
            cwd=directory,
            env=kept | {"PATH": f"{SUPPLY_CHAIN}:{kept.get('PATH', '')}"} | dict(environment or {}),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
            timeout=deadline_seconds,
        )
    except subprocess.TimeoutExpired:
        raise CommandFailedError(
            f"{' '.join(words)} did not end within {deadline_seconds:g} s. If this machine is busy,"
            " run it again: finished wheels are kept"
        ) from None
    if done.returncode:
        output = (done.stdout[-3000:] + done.stderr[-3000:]).strip()
        raise CommandFailedError(f"{' '.join(words)}: exit code {done.returncode}\n{output}")
    return done.stdout
