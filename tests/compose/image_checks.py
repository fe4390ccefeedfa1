"""Checks of the TaskManager's image by itself; each raises when it fails."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.compose.commands import ComposeTestFailed, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.compose.stack import Stack

_READY_SECONDS = 60
_END_SECONDS = 30
_ANY_USER = "1234560000:0"
"""As on OpenShift: a user that the image does not know, and group 0."""
_STRICT = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges:true")
_DIRECTORIES = ("--volume", "/var/lib/sluice", "--volume", "/run/sluice", "--volume", "/etc/secret")
_SECRET = """
umask 077; sluice secret create /etc/secret/made
install -m 0440 -o 0 -g 0 /etc/secret/made /etc/secret/secret; rm /etc/secret/made
"""
"""As a pod mounts a secret with ``defaultMode: 0440`` and its ``fsGroup``."""
_SETTINGS = (
    "--env=SLUICE_CLUSTER_SECRET_FILES=/etc/secret/secret",
    "--env=SLUICE_MEMORY_TIER_BYTES=16MiB",
)
_ENDED = ("0", "143")


def any_user_of_group_0_works(stack: Stack) -> None:
    """It starts for such a user, with a secret that its group may read and no writable /tmp."""
    docker, name = stack.engine.docker, f"{stack.project}-any-user"
    image = stack.environment["SLUICE_IMAGE"]
    with _container(stack, f"{name}-secret"):
        docker("run", "--name", f"{name}-secret", "--user", "0", *_DIRECTORIES,
               "--entrypoint", "sh", image, "-euc", _SECRET)  # fmt: skip
        with _container(stack, name):
            docker("run", "--detach", "--name", name, "--user", _ANY_USER, *_STRICT, *_SETTINGS,
                   "--volumes-from", f"{name}-secret", image)  # fmt: skip
            wait_until(
                "a TaskManager of any user",
                lambda: "is ready" in (log := docker("logs", name)) or log,
                timeout_seconds=_READY_SECONDS,
            )
            docker("exec", name, "sluice", "drain")
            docker("stop", "--time", str(_END_SECONDS), name, timeout_seconds=2 * _END_SECONDS)
            log = docker("logs", name)
            if _exit_code(stack, name) != "0" or "Traceback" in log:
                raise ComposeTestFailed(f"a TaskManager of any user did not end in order:\n{log}")


def it_ends_at_a_signal_at_once(stack: Stack) -> None:
    """A SIGTERM that comes with the first instruction of a container ends it."""
    docker, name = stack.engine.docker, f"{stack.project}-ended"
    with _container(stack, name):
        docker("run", "--detach", "--name", name, stack.environment["SLUICE_IMAGE"])
        docker("kill", "--signal", "TERM", name)
        docker("wait", name, timeout_seconds=_END_SECONDS)
        if _exit_code(stack, name) not in _ENDED:
            raise ComposeTestFailed(f"it ended with {_exit_code(stack, name)}, not {_ENDED}")


@contextmanager
def _container(stack: Stack, name: str) -> Iterator[None]:
    """Remove a container and its volumes at the end, if it was made."""
    try:
        yield
    finally:
        stack.engine.docker("rm", "--force", "--volumes", name, check=False)


def _exit_code(stack: Stack, name: str) -> str:
    return stack.engine.docker("inspect", "--format", "{{.State.ExitCode}}", name).strip()
