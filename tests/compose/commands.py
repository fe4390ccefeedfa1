"""Programs run with a deadline, conditions waited for with a deadline."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

CHECK_INTERVAL_SECONDS = 0.5
"""Time between two looks at something that cannot announce a change."""


class ComposeTestFailed(Exception):
    """A check of the stack failed; the text says what was expected and what came instead."""


def run(
    command: Sequence[str | Path],
    *,
    timeout_seconds: float,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    check: bool = True,
) -> str:
    """Run a program to its end and return its standard output and error, joined.

    Raises:
        ComposeTestFailed: It cannot be started, took longer than the time it has, or, with
            ``check``, ended with another code than 0.
    """
    words = [str(word) for word in command]
    line = " ".join(words)
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_seconds,
            env=None if environment is None else dict(environment),
            cwd=directory,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        said = error.output or b""
        text = said.decode(errors="replace") if isinstance(said, bytes) else said
        raise ComposeTestFailed(
            f"`{line}` did not end within {timeout_seconds:g} s; it said:\n{tail(text)}"
        ) from None
    except OSError as error:
        raise ComposeTestFailed(f"`{line}` cannot be started: {error}") from error
    if check and done.returncode != 0:
        raise ComposeTestFailed(
            f"`{line}` ended with code {done.returncode}; it said:\n{tail(done.stdout)}"
        )
    return done.stdout


def wait_until(what: str, condition: Callable[[], bool | str], *, timeout_seconds: float) -> None:
    """Look again and again until ``condition`` returns True; a text says why not yet.

    For programs of others that offer nothing to wait on.

    Raises:
        ComposeTestFailed: The time ran out.
    """
    deadline = time.monotonic() + timeout_seconds
    while (answer := condition()) is not True:
        if time.monotonic() > deadline:
            raise ComposeTestFailed(f"{what}: not within {timeout_seconds:g} s; now {answer}")
        time.sleep(CHECK_INTERVAL_SECONDS)


def tail(text: str, lines: int = 40) -> str:
    """The last lines of a text, indented."""
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:])
