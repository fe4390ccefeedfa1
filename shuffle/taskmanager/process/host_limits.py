"""Checks whether settings can work on this host, before anything is opened.

A value that was set and cannot work is refused. A default is lowered instead, so that a TaskManager
without any configuration starts on a small host too: :func:`fitted` lowers ``max_connections`` to
the descriptors there are, and a default memory tier uses only the space that its tmpfs has.

The checks are pure: :func:`gather` reads the limits of the host.
"""

from __future__ import annotations

import logging
import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ....protocol.limits import RECEIVE_TAIL_BYTES
from ....transport.settings import approximate_size
from ..store.files.directory_threads import threads_of_a_disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ..config.taskmanager_config import TaskManagerConfig

logger = logging.getLogger(__name__)

OTHER_DESCRIPTORS: Final = 64
"""Descriptors beside those of accepted connections: listening sockets, arenas, journals, HTTP and
connections to other TaskManagers."""

OTHER_THREADS: Final = 7
"""Threads beside those of the storage: the event loop's, those of areas and HTTP."""

DIRECTORY_THREADS: Final = 2
"""Threads of a storage directory: its journal's, and that of its probes."""

_NO_LIMIT: Final = 1 << 60
"""From here on, a limit of a control group means none: version 1 has no value for it."""

_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})


class FileSystem(NamedTuple):
    """The file system of a directory."""

    kind: str
    """Such as ``ext4`` or ``tmpfs``; empty if unknown."""
    size_bytes: int

    @property
    def in_memory(self) -> bool:
        """Whether files there take memory."""
        return self.kind in _IN_MEMORY


class HostFacts(NamedTuple):
    """The limits of a host that matter to one configuration."""

    memory_bytes: int | None
    """Physical memory; None if unknown."""
    control_group_bytes: int | None
    """Memory that the control groups of this process allow; None: as much as there is."""
    descriptors: int | None
    """Most descriptors that this process may have; None: no limit."""
    threads: int | None
    """Most threads that the control groups of this process allow; None: no limit."""
    file_systems: dict[Path, FileSystem]
    """By configured directory."""

    @property
    def most_memory(self) -> tuple[int | None, str]:
        """The memory that this process can have, and where that limit comes from."""
        limit, own = self.memory_bytes, self.control_group_bytes
        if own is not None and (limit is None or own < limit):
            return own, "the control group of this process allows"
        return limit, "this host has"


class HostProblem(NamedTuple):
    """A setting that cannot work on this host."""

    key: str
    text: str
    """Value, limit and remedy."""


# ---- the checks ------------------------------------------------------------------------------


def problems(config: TaskManagerConfig, host: HostFacts) -> list[HostProblem]:
    """Return every setting that cannot work on a host."""
    return [problem for check in CHECKS for problem in check(config, host)]


def _memory(config: TaskManagerConfig, host: HostFacts) -> Iterator[HostProblem]:
    limit, whose = host.most_memory
    if limit is None:
        return
    memory, storage = config.memory, config.storage
    stride = memory.segment_size_bytes + RECEIVE_TAIL_BYTES
    pool = memory.network_segments * stride * config.processes
    there = f"{whose} {approximate_size(limit)} of memory"
    if pool > limit:
        yield HostProblem(
            "network_segments",
            f"network_segments = {memory.network_segments}: with segments of "
            f"{approximate_size(memory.segment_size_bytes)} they need {approximate_size(pool)}"
            f"{_of_processes(config)}, {there}: set at most {limit // stride // config.processes}",
        )
        return
    needs = {
        "network_segments": pool,
        "memory_tier_bytes": _on_tmpfs(storage.memory_tier_bytes, storage.memory_directory, host),
        "region_areas_bytes": _on_tmpfs(storage.region_areas_bytes, _areas(config), host),
    }
    total = sum(needs.values())
    if total > limit and not any(_tmpfs(config, host)):
        largest = max(needs, key=lambda key: needs[key])
        parts = ", ".join(f"{key} {approximate_size(part)}" for key, part in needs.items() if part)
        yield HostProblem(
            largest,
            f"{largest} is too much for this host: {parts} need {approximate_size(total)} "
            f"together, {there}: lower {largest}",
        )


def _of_processes(config: TaskManagerConfig) -> str:
    return f" for {config.processes} data processes" if config.processes > 1 else ""


def _tmpfs(config: TaskManagerConfig, host: HostFacts) -> Iterator[HostProblem]:
    storage = config.storage
    if "memory_tier_bytes" not in storage.model_fields_set or storage.memory_directory is None:
        return
    there = host.file_systems.get(storage.memory_directory)
    if there is not None and storage.memory_tier_bytes > there.size_bytes:
        yield HostProblem(
            "memory_tier_bytes",
            f"memory_tier_bytes = {approximate_size(storage.memory_tier_bytes)}: memory_directory "
            f"{storage.memory_directory} has {approximate_size(there.size_bytes)} in all: lower "
            "memory_tier_bytes or raise the size of the tmpfs (docker: --shm-size)",
        )


def _disks(config: TaskManagerConfig, host: HostFacts) -> Iterator[HostProblem]:
    least = config.storage.min_free_bytes
    for directory in config.storage.data_directories:
        disk = host.file_systems.get(directory)
        if disk is not None and least >= disk.size_bytes:
            yield HostProblem(
                "min_free_bytes",
                f"min_free_bytes = {approximate_size(least)}: the disk of data directory "
                f"{directory} has {approximate_size(disk.size_bytes)} in all and would take "
                "nothing: lower min_free_bytes or use a larger disk",
            )


def _descriptors(config: TaskManagerConfig, host: HostFacts) -> Iterator[HostProblem]:
    transport, limit = config.transport, host.descriptors
    if limit is None or transport.max_connections + OTHER_DESCRIPTORS <= limit:
        return
    least = 2 * OTHER_DESCRIPTORS
    if limit < least:
        yield HostProblem(
            "max_connections",
            f"max_connections = {transport.max_connections}: this process may have {limit} open "
            f"files, at least {least} are needed: raise the limit (ulimit -n, LimitNOFILE)",
        )
    elif "max_connections" in transport.model_fields_set:
        yield HostProblem(
            "max_connections",
            f"max_connections = {transport.max_connections}: this process may have {limit} open "
            f"files, and needs {OTHER_DESCRIPTORS} for other things: set at most "
            f"{limit - OTHER_DESCRIPTORS}, or raise the limit (ulimit -n, LimitNOFILE)",
        )


def _threads(config: TaskManagerConfig, host: HostFacts) -> Iterator[HostProblem]:
    threads, limit = config.storage.io_threads, host.threads
    disks = len(config.storage.data_directories)
    directories = 1 + disks  # the memory tier's is one, with as many threads as a disk
    others = (OTHER_THREADS + DIRECTORY_THREADS * directories) * config.processes
    if limit is not None and threads_of_a_disk(threads, disks) * directories + others > limit:
        yield HostProblem(
            "io_threads",
            f"io_threads = {threads}: the control group of this process allows {limit} threads, "
            f"and {others} are needed for other things{_of_processes(config)}: lower io_threads "
            "or raise pids.max",
        )


CHECKS: Final[tuple[Callable[[TaskManagerConfig, HostFacts], Iterable[HostProblem]], ...]] = (
    _memory,
    _tmpfs,
    _disks,
    _descriptors,
    _threads,
)


def fitted(config: TaskManagerConfig, limit: int | None) -> TaskManagerConfig:
    """Return the configuration with a ``max_connections`` for which there are descriptors."""
    if limit is None or config.transport.max_connections + OTHER_DESCRIPTORS <= limit:
        return config
    most = max(1, limit - OTHER_DESCRIPTORS)
    transport = config.transport.model_copy(update={"max_connections": most})
    return config.model_copy(update={"transport": transport})


def _areas(config: TaskManagerConfig) -> Path | None:
    """Return the directory whose file system has the region areas."""
    return config.storage.region_areas_directory or config.storage.memory_directory


def _on_tmpfs(wanted_bytes: int, directory: Path | None, host: HostFacts) -> int:
    """Return the memory that files of a directory can take."""
    there = None if directory is None else host.file_systems.get(directory)
    if there is None or not there.in_memory:
        return 0
    return min(wanted_bytes, there.size_bytes)


# ---- the host --------------------------------------------------------------------------------


def gather(config: TaskManagerConfig) -> HostFacts:
    """Look at the host of this process, as far as a configuration asks for it. Blocks."""
    directories = {
        *config.storage.data_directories,
        config.storage.memory_directory,
        _areas(config),
    }
    _, descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
    return HostFacts(
        memory_bytes=_physical_memory(),
        control_group_bytes=control_group_limit("memory", "memory.max", "memory.limit_in_bytes"),
        descriptors=None if descriptors == resource.RLIM_INFINITY else descriptors,
        threads=control_group_limit("pids", "pids.max", "pids.max"),
        file_systems={
            directory: found
            for directory in directories
            if directory is not None and (found := _file_system(directory)) is not None
        },
    )


def fit(config: TaskManagerConfig) -> TaskManagerConfig:
    """Fit a configuration without problems to this process, and the process to it.

    The soft limit of open files is raised as far as the connections need it and the hard one
    allows it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    made = fitted(config, None if hard == unlimited else hard)
    most = made.transport.max_connections
    if most < config.transport.max_connections:
        logger.warning(
            "max_connections is %d instead of %d: this process may have %d open files; raise the "
            "limit (ulimit -n, LimitNOFILE)",
            most,
            config.transport.max_connections,
            hard,
        )
    if soft not in (unlimited, hard) and soft < most + OTHER_DESCRIPTORS:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most + OTHER_DESCRIPTORS, hard))
    return made


def control_group_limit(
    controller: str,
    file: str,
    old_file: str,
    mounted: Path = Path("/sys/fs/cgroup"),
    member: Path = Path("/proc/self/cgroup"),
) -> int | None:
    """Return the least limit of the control groups that this process is in.

    Each group on the way to the root has a limit of its own. A container may see its own group as
    the root, under a path that only its host has: groups that are not there have no say.

    Args:
        controller: Such as ``memory``.
        file: The file of the limit in version 2.
        old_file: The same in version 1.
        mounted: Where the groups are.
        member: The groups of this process.
    """
    limits: list[int] = []
    for line in _text(member).splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            root, name = mounted, file
        elif controller in controllers.split(","):
            root, name = mounted / controller, old_file
        else:
            continue
        group = Path(path.lstrip("/"))
        for each in (group, *group.parents):
            limit = _text(root / each / name).strip()
            if limit.isdecimal() and int(limit) < _NO_LIMIT:
                limits.append(int(limit))
    return min(limits, default=None)


def _physical_memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def _file_system(directory: Path) -> FileSystem | None:
    """Return the file system on which a directory lies, or will lie."""
    for existing in (directory, *directory.absolute().parents):
        try:
            usage, device = os.statvfs(existing), existing.stat().st_dev
        except OSError:
            continue
        # Some pseudo file systems have no size of their own; files there fail with better reasons.
        return (
            FileSystem(_kind(device), usage.f_blocks * usage.f_frsize) if usage.f_blocks else None
        )
    return None


def _kind(device: int) -> str:
    if not (hasattr(os, "major") and hasattr(os, "minor")):
        return ""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in _text(Path("/proc/self/mountinfo")).splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split()[2:3] == [wanted]:
            return source.split(" ", 1)[0]
    return ""


def _text(path: Path) -> str:
    """Return the content of a file of the kernel; empty if there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
