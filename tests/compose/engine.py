"""A Docker engine for the test: the machine's own, or one started for the test alone."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.compose.commands import ComposeTestFailed, run, tail, wait_until
from tests.compose.namespace import private_network

if TYPE_CHECKING:
    from collections.abc import Iterator

_ANSWER_SECONDS = 20
_START_SECONDS = 60
_STOP_SECONDS = 60
_INSTALL_SECONDS = 300
_PROGRAMS = {
    "dockerd": "docker.io",
    "docker": "docker.io",
    "containerd": "containerd",
    "debootstrap": "debootstrap",
    "iptables": "iptables",
    "nft": "nftables",
    "ip": "iproute2",
    "unshare": "util-linux",
}
"""Programs that a private engine needs, and the Debian packages that bring them."""
_COMPOSE_PACKAGE = "docker-compose"
OPEN_FILES = 65536
"""The default of SLUICE_OPEN_FILES."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A running engine and how to talk to it."""

    environment: dict[str, str]
    """Environment for the ``docker`` command."""
    compose: tuple[str, ...]
    """The compose command: ``docker compose`` or ``docker-compose``."""
    private: bool
    """Whether it was started for this test, and so has no images and no other users."""

    def docker(
        self, *arguments: str | Path, timeout_seconds: float = 60, check: bool = True
    ) -> str:
        """Run the ``docker`` command."""
        return run(
            ["docker", *arguments],
            timeout_seconds=timeout_seconds,
            environment=self.environment,
            check=check,
        )


@contextmanager
def any_engine(directory: Path, name: str, data: Path | None = None) -> Iterator[Engine]:
    """Give the engine that ``docker`` reaches; with none, start one below ``directory``.

    Args:
        directory: For the files of an engine that is started here.
        name: Unique on the machine.
        data: Where such an engine keeps its images, so that a later one has them; None: below
            ``directory``.

    Raises:
        ComposeTestFailed: There is none and none can be started; the text says what to install.
    """
    environment = dict(os.environ)
    if shutil.which("docker") and _answers(environment):
        yield Engine(environment, _compose(environment), private=False)
        return
    _install()
    with private_network(name), _dockerd(directory, data or directory / "data") as socket:
        environment["DOCKER_HOST"] = f"unix://{socket}"
        # Debian's engine is driven by its classic builder: BuildKit's client part may be missing.
        environment |= {"DOCKER_BUILDKIT": "0", "COMPOSE_DOCKER_CLI_BUILD": "0"}
        # It can grant no more than this process may have.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        environment["SLUICE_OPEN_FILES"] = str(min(OPEN_FILES, most))
        yield Engine(environment, _compose(environment), private=True)


def _answers(environment: dict[str, str]) -> bool:
    try:
        run(["docker", "info"], timeout_seconds=_ANSWER_SECONDS, environment=environment)
    except ComposeTestFailed:
        return False
    return True


def _compose(environment: dict[str, str]) -> tuple[str, ...]:
    for command in (("docker", "compose"), ("docker-compose",)):
        try:
            run([*command, "version"], timeout_seconds=_ANSWER_SECONDS, environment=environment)
        except ComposeTestFailed:
            continue
        return command
    raise ComposeTestFailed(
        "neither `docker compose` nor `docker-compose` is there: install Docker's compose plugin"
        f" (Debian 12: apt-get install {_COMPOSE_PACKAGE})"
    )


def _install() -> None:
    missing = {package for name, package in _PROGRAMS.items() if shutil.which(name) is None}
    if shutil.which("docker-compose") is None:
        missing.add(_COMPOSE_PACKAGE)
    packages = sorted(missing)
    if os.geteuid() != 0:
        raise ComposeTestFailed(
            "no Docker engine answers, and starting one needs root: start Docker, point DOCKER_HOST"
            " to an engine, or run `make compose-test` as root"
        )
    if not packages:
        return
    if shutil.which("apt-get") is None:
        raise ComposeTestFailed(
            f"no Docker engine answers, and {', '.join(packages)} cannot be installed without"
            " apt-get: install and start Docker with its compose plugin"
        )
    print(f"installing {' '.join(packages)}", flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update"], timeout_seconds=_INSTALL_SECONDS, environment=quiet)
    run(
        ["apt-get", "install", "-y", "--no-install-recommends", *packages],
        timeout_seconds=_INSTALL_SECONDS,
        environment=quiet,
    )


@contextmanager
def _dockerd(directory: Path, data: Path) -> Iterator[Path]:
    """Run an engine whose files are all below these two directories; yields its socket."""
    socket, log = directory / "docker.sock", directory / "dockerd.log"
    command = [
        # If this process is killed, the engine gets SIGTERM and stops its containers.
        *("setpriv", "--pdeathsig", "TERM"),
        *("dockerd", "--host", f"unix://{socket}", "--pidfile", directory / "docker.pid"),
        *("--data-root", data, "--exec-root", directory / "exec"),
    ]
    with ExitStack() as undo:
        undo.callback(_remove_cgroups)
        undo.callback(_unmount_below, data)
        undo.callback(_unmount_below, directory)
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        undo.callback(_stop, process)
        environment = {**os.environ, "DOCKER_HOST": f"unix://{socket}"}

        def ready() -> bool | str:
            if process.poll() is not None:
                raise ComposeTestFailed(
                    f"dockerd ended with code {process.returncode}:\n{tail(log.read_text())}"
                )
            return (socket.exists() and _answers(environment)) or "no answer"

        try:
            wait_until("the engine answers", ready, timeout_seconds=_START_SECONDS)
        except ComposeTestFailed as error:
            raise ComposeTestFailed(f"{error}\n{tail(log.read_text())}") from None
        yield socket


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the engine; it ends its containers and its containerd."""
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(_STOP_SECONDS)


def _unmount_below(directory: Path) -> None:
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in sorted(mounts, reverse=True):
        if Path(mount).is_relative_to(directory):
            run(["umount", "--lazy", mount], timeout_seconds=_ANSWER_SECONDS, check=False)


def _remove_cgroups() -> None:
    """Take away the empty control groups that the engine leaves behind."""
    for parent in Path("/sys/fs/cgroup").glob("*/docker"):
        for group in (*parent.glob("*"), parent):
            if group.is_dir():
                try:
                    group.rmdir()
                except OSError:
                    # Not empty: another engine's.
                    continue
