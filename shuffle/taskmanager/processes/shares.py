"""The configuration of each data process: its share of the storage, and addresses of its own.

Process 0 has the addresses and directories of the configuration. Process ``i`` > 0 has the port
``data_port`` + ``i`` * PROCESS_PORT_STEP, the socket ``socket_path`` with ``.i`` appended, and in
each directory a directory ``process-i``.

Map tasks are spread over the processes, so storage, I/O threads, control memory, the restore rate
and all quotas but three are divided. A reduce task may have a connection and a gate at each
process, so network segments, connections and channels, and their quotas, are not.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final, TypeVar

from ....protocol.limits import MAX_CONTROL_BYTES, MAX_PROCESSES
from ....protocol.schema import PROCESS_PORT_STEP
from ....transport.address import MAX_SOCKET_PATH_BYTES, Address
from ....transport.settings import MAX_PORT
from ..bounds.accounts import Resource
from ..bounds.quotas import QuotaConfig, parse_override

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ..config.storage_config import StorageConfig
    from ..config.taskmanager_config import TaskManagerConfig

_DIRECTORY: Final = "process-"
"""Name of the directory of a process in each directory, before its index."""

_OF_EACH: Final = frozenset({Resource.NETWORK_SEGMENTS, Resource.CONNECTIONS, Resource.CHANNELS})
"""Quotas that each process has as a whole, because reduce tasks use all processes."""

Amount = TypeVar("Amount", int, int | None)


def process_count(config: TaskManagerConfig) -> int:
    """Return how many data processes there are to be. Blocks.

    Directories that an earlier start with more processes left are served too: they may have map
    outputs.
    """
    return max(config.processes, 1 + max(_directories_of_processes(config.storage), default=0))


def address_problems(config: TaskManagerConfig) -> Iterator[tuple[str, str]]:
    """Yield the keys whose values do not fit the number of processes, and why. Blocks."""
    processes, transport = process_count(config), config.transport
    if processes == 1:
        return
    those = f"{processes} processes"
    if processes > config.processes:
        left = _directories_of_processes(config.storage)[processes - 1]
        those += f" (processes = {config.processes}, but there is {left}: remove it to use fewer)"
    if processes > MAX_PROCESSES:
        yield "processes", f"{those}, at most {MAX_PROCESSES} are possible: remove the directory"
        return
    if not transport.data_port:
        yield (
            "data_port",
            f"data_port = 0 with {those}: clients derive the other ports from data_port: set it, "
            "or use one process",
        )
    highest = MAX_PORT - PROCESS_PORT_STEP * (processes - 1)
    ports = {
        "data_port": transport.data_port,
        "advertised_port": transport.advertised_port or 0,
        "address_aliases": max(
            (Address.parse(each).port for each in config.auth.address_aliases), default=0
        ),
    }
    for key, port in ports.items():
        if port > highest:
            yield (
                key,
                f"{key} = {port} leaves no ports for {those}: set at most {highest}, or use fewer "
                "processes",
            )
    http_port, first = config.http.http_port, transport.data_port
    taken = range(first, first + PROCESS_PORT_STEP * processes, PROCESS_PORT_STEP)
    if first and http_port in taken:
        yield (
            "http_port",
            f"http_port = {http_port} is the data port of process {taken.index(http_port)} of "
            f"{those}: set another one, or use fewer processes",
        )
    path = transport.socket_path
    if path is not None:
        longest = os.fsencode(_Share(processes - 1, processes).socket(path) or "")
        if len(longest) > MAX_SOCKET_PATH_BYTES:
            yield (
                "socket_path",
                f"socket_path = {path} is too long for {those}: the last one is "
                f"{len(longest)} bytes long, at most {MAX_SOCKET_PATH_BYTES} are possible: shorten "
                "it",
            )


def _directories_of_processes(storage: StorageConfig) -> dict[int, Path]:
    """Return the directories of processes that exist in the configured ones, by index."""
    found = {}
    for directory in (*storage.data_directories, storage.memory_directory):
        names: list[str] = []
        if directory is not None:
            with contextlib.suppress(OSError):  # it is made, or refused, when it is opened
                names = os.listdir(directory)
        for name in names:
            index = name.removeprefix(_DIRECTORY)
            if name.startswith(_DIRECTORY) and index.isdecimal() and directory is not None:
                found[int(index)] = directory / name
    return found


def share_of(config: TaskManagerConfig, process: int, processes: int) -> TaskManagerConfig:
    """Return the configuration of one of several data processes.

    Args:
        config: That of the TaskManager.
        process: Index of the data process.
        processes: How many there are.
    """
    share = _Share(process, processes)
    transport, storage = config.transport, config.storage
    aliases = (Address.parse(each) for each in config.auth.address_aliases)
    return config.in_process(
        process,
        processes,
        transport=transport.model_copy(
            update={
                "data_port": share.port(transport.data_port),
                "advertised_port": transport.advertised_port
                and share.port(transport.advertised_port),
                "socket_path": share.socket(transport.socket_path),
                "max_control_memory_bytes": max(
                    MAX_CONTROL_BYTES, share.of(transport.max_control_memory_bytes)
                ),
            }
        ),
        auth=config.auth.model_copy(
            update={
                "address_aliases": tuple(
                    str(Address(each.host, share.port(each.port))) for each in aliases
                )
            }
        ),
        storage=storage.shared_by(
            processes,
            data_directories=tuple(map(share.directory, storage.data_directories)),
            memory_directory=share.directory(storage.memory_directory),
            memory_tier_bytes=share.of(storage.memory_tier_bytes),
            region_areas_bytes=share.of(storage.region_areas_bytes),
            region_areas_directory=share.directory(storage.region_areas_directory),
            disk_quota_bytes=share.of(storage.disk_quota_bytes),
            io_threads=share.of(storage.io_threads),
            remote_quota_bytes=share.of(storage.remote_quota_bytes),
            remote_upload_bytes=share.of(storage.remote_upload_bytes),
            remote_requests=share.of(storage.remote_requests),
            scrub_bytes_per_second=share.of(storage.scrub_bytes_per_second),
        ),
        quotas=share.quotas(config.quotas),
        replication=config.replication.model_copy(
            update={
                "restore_bytes_per_second": share.of(config.replication.restore_bytes_per_second)
            }
        ),
    )


class _Share:
    """Computes what one data process gets."""

    def __init__(self, process: int, processes: int) -> None:
        self._process = process
        self._processes = processes

    def of(self, amount: Amount) -> Amount:
        """Return the share of an amount, rounded up; None stays no limit, and 0 none."""
        return amount and -(-amount // self._processes)

    def port(self, port: int) -> int:
        return port + PROCESS_PORT_STEP * self._process

    def socket(self, path: Path | None) -> Path | None:
        if path is None or not self._process:
            return path
        return path.with_name(f"{path.name}.{self._process}")

    def directory(self, path: Path | None) -> Path | None:
        if path is None or not self._process:
            return path
        return path / f"{_DIRECTORY}{self._process}"

    def quotas(self, config: QuotaConfig) -> QuotaConfig:
        amounts = {
            resource.key: self._quota(resource, getattr(config, resource.key))
            for resource in Resource
        }
        rules = tuple(map(self._rule, config.quota_overrides))
        return config.model_copy(update={**amounts, "quota_overrides": rules})

    def _quota(self, resource: Resource, value: int | str | None) -> int | str | None:
        """Return the quota of a process; a percentage is of its share already."""
        if isinstance(value, int) and resource not in _OF_EACH:
            return self.of(value)
        return value

    def _rule(self, text: str) -> str:
        override = parse_override(text)
        quotas = (
            f"{resource.name.lower()} = {'none' if quota is None else quota}"
            for resource, value in override.quotas.items()
            for quota in (self._quota(resource, value),)
        )
        return f"{override.pattern}: {', '.join(quotas)}"
