"""A host of its own that systemd runs, in namespaces of this machine: its first process is systemd.

It has its own loopback, processes, ``/run``, ``/dev/shm`` and control groups, and ``/etc`` and
``/var/lib`` whose changes are gone at the end. Only the units of the test exist.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.cluster import REPOSITORY
from tests.support.processes import ManagedProcess, ProcessFailed

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

SYSTEMD = Path("/lib/systemd/systemd")
PROGRAMS = (
    "systemctl",
    "systemd-sysusers",
    "systemd-tmpfiles",
    "unshare",
    "nsenter",
    "setpriv",
    "ip",
)
FILES = REPOSITORY / "deploy" / "systemd"
SECONDS = 60.0
"""Timeout for the start of the host, and for each command on it."""

ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

TARGETS = ("sysinit", "basic", "shutdown", "network-online", "multi-user", "test")

_NAMESPACES = ("--mount", "--pid", "--net", "--ipc", "--uts", "--cgroup")

PYTHON = f"/opt/sluice/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
"""The path of this process's Python on the host."""

LIBRARIES = "/opt/sluice/python/lib"
"""Directory of its shared library, if any, for ``LD_LIBRARY_PATH``."""

PATHS = """
import site, sys
site.addsitedir("/opt/sluice/lib")
sys.path.insert(0, "/opt/sluice/repository")
"""
"""Lets a program find Sluice and what it needs."""

_LAUNCHER = f"""#!{PYTHON} -P{PATHS}
from sluice.cli.main import main
main(prog_name="sluice")
"""

# File systems over /etc and /var/lib have the changes; /opt/sluice is laid out as the documentation
# says.
_BOOT = """
set -e
ip link set lo up
umount -l /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
for place in /run /dev/shm; do mount -t tmpfs none $place; done
mount -t tmpfs none {scratch}
cd {scratch}
for place in etc var/lib opt; do
  mkdir -p $place/upper $place/work
  mount -t overlay overlay -o lowerdir=/$place,upperdir=$place/upper,workdir=$place/work /$place
done
mkdir -p /opt/sluice/bin /opt/sluice/python /opt/sluice/lib /opt/sluice/repository
# Services do not see the home directories, where Python and the repository may be.
mount --bind {python} /opt/sluice/python
mount --bind {packages} /opt/sluice/lib
mount --bind {repository} /opt/sluice/repository
install -m 755 {directory}/launcher /opt/sluice/bin/sluice
mkdir -p /run/systemd
export container=other SYSTEMD_UNIT_PATH={directory}/units
exec {systemd} --system --unit=test.target --log-target=console --show-status=no
"""


def why_not() -> str:
    """Return why no host can be started here; empty if one can."""
    if os.geteuid() != 0:
        return "namespaces for a systemd need root"
    if not SYSTEMD.exists() or any(shutil.which(program) is None for program in PROGRAMS):
        return "systemd is not installed: apt-get install systemd iproute2"
    if _control_groups() is None:
        return "this machine has no cgroup2 file system"
    done = subprocess.run(
        ["unshare", "--fork", *_NAMESPACES, "true"], capture_output=True, text=True, check=False
    )
    return f"no namespaces here: {done.stderr.strip()}" if done.returncode else ""


class SystemdHost:
    """The host; a context manager that ends it with all its processes.

    Args:
        directory: Receives its log and units.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.units = directory / "units"
        self._control_group = Path(f"{_control_groups()}/sluice-test-{os.getpid()}")
        self._resources = ExitStack()
        self._first = 0

    def __enter__(self) -> Self:
        self.units.mkdir()
        for target in TARGETS:
            unit = f"[Unit]\nDescription={target}\nDefaultDependencies=no\n"
            (self.units / f"{target}.target").write_text(unit, encoding="utf-8")
        (self.directory / "launcher").write_text(_LAUNCHER, encoding="utf-8")
        scratch = self.directory / "scratch"
        scratch.mkdir()
        boot = _BOOT.format(
            scratch=scratch,
            directory=self.directory,
            python=sys.base_prefix,
            packages=sysconfig.get_path("purelib"),
            repository=REPOSITORY,
            systemd=SYSTEMD,
        )
        enter = f'echo $$ > {self._control_group}/cgroup.procs && exec "$@"'
        unshare = ["unshare", "--fork", "--kill-child", "--mount-proc", *_NAMESPACES]
        with ExitStack() as starting:
            self._control_group.mkdir()
            starting.callback(self._remove_control_groups)
            process = starting.enter_context(
                ManagedProcess(
                    "systemd",
                    ["sh", "-c", enter, "sh", *unshare, "sh", "-c", boot],
                    log_path=self.directory / "systemd.log",
                    environment=ENVIRONMENT,
                    directory=self.directory,
                )
            )
            starting.callback(process.send_signal, signal.SIGKILL)  # unshare ignores SIGTERM
            self._wait_until_running(process)
            self._resources = starting.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._resources.close()

    def run(self, *command: str, user: str = "root", groups: str = "") -> str:
        """Run a command on the host; return its output.

        Args:
            command: Program and arguments.
            user: Who runs it.
            groups: Comma list of the user's other groups.

        Raises:
            ProcessFailed: Its exit code was not 0; the message has its output.
        """
        enter = ["nsenter", "--target", str(self._first), "--all", "--"]
        if user != "root":
            enter += ["setpriv", f"--reuid={user}", f"--regid={user}"]
            enter += [f"--groups={groups}" if groups else "--clear-groups"]
        done = subprocess.run(
            [*enter, *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
            cwd="/",
            env=ENVIRONMENT | {"LD_LIBRARY_PATH": LIBRARIES},
        )
        if done.returncode:
            raise ProcessFailed(f"{command} failed: {done.stderr}{done.stdout}")
        return done.stdout

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """Return properties of a unit."""
        text = self.run("systemctl", "show", unit, "--property", ",".join(properties))
        return dict(line.split("=", 1) for line in text.splitlines())

    def wait_for(self, unit: str, **wanted: str) -> None:
        """Wait until properties of a unit have these values.

        Raises:
            TimeoutError: They did not; the message has the last values.
        """
        deadline = time.monotonic() + SECONDS
        while (found := self.show(unit, *wanted)) != wanted:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{unit} has {found} after {SECONDS:g} s, not {wanted}")
            time.sleep(0.1)

    def _wait_until_running(self, process: ManagedProcess) -> None:
        deadline = time.monotonic() + SECONDS
        while True:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            if children:
                self._first = int(children[0])
                with suppress(ProcessFailed):
                    self.run("systemctl", "is-system-running")
                    return
            if not process.running or time.monotonic() > deadline:
                raise ProcessFailed(process.describe("did not start"))
            time.sleep(0.1)

    def _remove_control_groups(self) -> None:
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                for group, _, _ in os.walk(self._control_group, topdown=False):
                    os.rmdir(group)
            except OSError:  # a killed process is still there
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                return


def _control_groups() -> str | None:
    """Return where cgroup2 is mounted."""
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    return next((place for _, place, kind, *_ in mounts if kind == "cgroup2"), None)
