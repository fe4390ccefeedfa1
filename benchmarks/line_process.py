"""Child processes that take commands and give answers, one JSON line each."""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

ANSWER_DEADLINE_SECONDS: Final = 60.0
END_DEADLINE_SECONDS: Final = 15.0


class LineProcess:
    """A child process. It writes a line when it is ready, and ends with its standard input."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def tell(self, command: Any) -> None:
        """Send a command."""
        if self._process.stdin is None:
            raise RuntimeError("a child without standard input")
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    async def answer(self) -> Any:
        """Wait for its next line.

        Raises:
            RuntimeError: The child has ended.
            TimeoutError: The child stays silent.

        Cancellation: the line is lost.
        """
        if self._process.stdout is None:
            raise RuntimeError("a child without standard output")
        async with asyncio.timeout(ANSWER_DEADLINE_SECONDS):
            line = await asyncio.get_running_loop().run_in_executor(
                None, self._process.stdout.readline
            )
        if not line:
            raise RuntimeError("a child process has ended, see its messages above")
        return json.loads(line)


@contextlib.contextmanager
def line_process(*arguments: str, program: str = sys.executable) -> Iterator[LineProcess]:
    """Run ``PROGRAM ARGUMENTS`` for the time of a block; the program is Python by default."""
    process = subprocess.Popen(
        [program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield LineProcess(process)
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(END_DEADLINE_SECONDS)
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


async def next_command() -> Any | None:
    """In the child: wait for a command; None at the end of the input."""
    line = await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    return json.loads(line) if line else None


def say(answer: Any) -> None:
    """In the child: send an answer, or the line that it is ready."""
    print(json.dumps(answer), flush=True)
