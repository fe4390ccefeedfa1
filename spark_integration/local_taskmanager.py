"""Runs a TaskManager process for one local run, and removes its files afterwards."""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..protocol.identity import SECRET_BYTES, TOKEN_ID_BYTES, SubmitToken, secret_to_text
from ..transport import private_file
from .errors import SparkIntegrationError

if TYPE_CHECKING:
    from types import TracebackType

START_TIMEOUT_SECONDS: Final = 30.0
STOP_TIMEOUT_SECONDS: Final = 40.0
"""More than the daemon's own drain_timeout_seconds."""
_LOG_LINES: Final = 10_000
_TAIL_LINES: Final = 20


class LocalTaskManager:
    """Runs ``sluice taskmanager`` on loopback with free ports and its own directories.

    A context manager; ``endpoint`` is valid inside. If the TaskManager does not start, the error
    contains the end of its log.

    Args:
        authenticated: Whether it accepts only clients with its token.

    Raises:
        SparkIntegrationError: There is no writable temporary directory.
    """

    def __init__(self, *, authenticated: bool = False) -> None:
        self._authenticated = authenticated
        try:
            self._directory = Path(tempfile.mkdtemp(prefix="sluice-"))
        except OSError as error:
            raise SparkIntegrationError(
                "A local TaskManager needs a temporary directory",
                value=error.strerror or str(error),
                remedy="Set TMPDIR to a directory that can be written, or give --endpoints",
            ) from error
        shared_memory = Path("/dev/shm")  # noqa: S108 - a fresh name below it, made by mkdtemp
        self._memory = (
            Path(tempfile.mkdtemp(prefix="sluice-", dir=shared_memory))
            if os.access(shared_memory, os.W_OK)
            else self._directory / "memory"
        )
        self._socket = self._directory / "taskmanager.sock"
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue(_LOG_LINES)

    @property
    def endpoint(self) -> str:
        """The TaskManager's address, in the form of ``spark.sluice.endpoints``."""
        return f"unix:{self._socket}"

    @property
    def token_file(self) -> Path:
        """The file of an authenticated TaskManager's submit token, private to its owner."""
        return self._directory / "token"

    def __enter__(self) -> LocalTaskManager:
        """Start the TaskManager and wait until it is ready.

        Raises:
            SparkIntegrationError: The TaskManager was not ready within 30 seconds.
        """
        command = [
            *(
                sys.executable,
                "-c",
                "from sluice.cli.main import main; main()",
                "taskmanager",
            ),
            *("--bind-host", "127.0.0.1", "--data-port", "0", "--http-host", "127.0.0.1"),
            *("--http-port", "0", "--socket-path", str(self._socket)),
            *("--data-directories", str(self._directory / "data")),
            *("--memory-directory", str(self._memory)),
        ]
        try:
            if self._authenticated:
                command += ("--cluster-secret-files", str(self._make_secret()))
            # In its own process group, so that Ctrl-C reaches spark-submit first.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            threading.Thread(target=self._collect, daemon=True, name="sluice-log").start()
            self._wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the TaskManager and remove its directories."""
        self.close()

    def close(self) -> None:
        """Stop the TaskManager (SIGTERM, SIGKILL after 40 s), remove its files. Idempotent."""
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_TIMEOUT_SECONDS)
        for directory in (self._directory, self._memory):
            shutil.rmtree(directory, ignore_errors=True)

    def _make_secret(self) -> Path:
        """Write a new secret and a token made of it; return the secret's file."""
        secret = secrets.token_bytes(SECRET_BYTES)
        token = SubmitToken.make(secret, "local run", 0, secrets.token_bytes(TOKEN_ID_BYTES))
        path = self._directory / "secret"
        private_file.write_new(path, secret_to_text(secret) + "\n")
        private_file.write_new(self.token_file, token.to_text() + "\n")
        return path

    def _collect(self) -> None:
        """Read the log while the TaskManager runs, so that the pipe never fills."""
        process = self._process
        if process is None or process.stderr is None:
            return
        with process.stderr as stream:
            for line in stream:
                with contextlib.suppress(queue.Full):
                    self._lines.put_nowait(line)
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        tail: list[str] = []
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise self._not_ready("was not ready in time", tail) from None
            if line is None:
                raise self._not_ready("ended at once", tail)
            if " is ready: " in line:
                return
            tail = [*tail[1 - _TAIL_LINES :], line]

    @staticmethod
    def _not_ready(what: str, tail: list[str]) -> SparkIntegrationError:
        return SparkIntegrationError(
            f"The local TaskManager {what}",
            value="".join(tail).strip(),
            limit=f"{START_TIMEOUT_SECONDS:.0f} s",
            remedy="Correct what its log says, or give running ones with --endpoints",
        )
