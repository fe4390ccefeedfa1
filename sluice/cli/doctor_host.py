"""What ``sluice doctor`` checks on this host, without asking any TaskManager."""

from __future__ import annotations

import errno
import os
import resource
import socket
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from ..protocol.errors import SluiceError
from ..shuffle.taskmanager.process import host_limits
from ..shuffle.taskmanager.processes import shares
from ..spark_integration import spark_home
from ..spark_integration.conf import supported_version
from ..spark_integration.errors import SparkIntegrationError
from ..transport import tls
from ..transport.access import read_revoked_tokens, read_secret
from ..transport.address import ANY_FAMILY, Address, InvalidAddress, is_every_address
from ..transport.settings import approximate_size
from ..transport.trusted_path import UntrustedPath, require_trusted
from .printing import one_line
from .reports import DoctorCheck

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from ..shuffle.taskmanager.config.taskmanager_config import TaskManagerConfig

MIN_CERTIFICATE_SECONDS: Final = 14 * 86400.0
"""A certificate that expires sooner is a problem."""


def ok(name: str, text: str) -> DoctorCheck:
    """Return the line of a check that found no problem."""
    return DoctorCheck(name, "ok", one_line(text))


def skipped(name: str, text: str) -> DoctorCheck:
    """Return the line of a check that does not apply."""
    return DoctorCheck(name, "skipped", one_line(text))


def problem(name: str, text: str, remedy: str) -> DoctorCheck:
    """Return the line of a problem."""
    return DoctorCheck(name, "problem", one_line(text), one_line(remedy))


def refused(name: str, error: SluiceError) -> DoctorCheck:
    """Return the line of a problem that has its remedy."""
    remedy = error.remedy or ""
    text = str(error)
    if remedy:
        text = text.replace(f". {remedy}", "").replace(remedy, "")
    return problem(name, text, remedy)


# ---- what jobs need --------------------------------------------------------------------------


def spark(environment: Mapping[str, str]) -> Iterator[DoctorCheck]:
    """Check the PySpark of this environment and the Java that Spark's scripts find."""
    home = spark_home.pyspark_home()
    if home is None:
        yield skipped("spark", "PySpark is not installed: a TaskManager does not need it")
    else:
        try:
            major, minor = supported_version(None)
            yield ok("spark", f"PySpark {major}.{minor} in {home}")
        except SparkIntegrationError as error:
            yield refused("spark", error)
    try:
        spark_home.require_java(environment, spark_home.conf_directory(environment))
        yield ok("java", f"Java {spark_home.OLDEST_JAVA} or later, {_java(environment)}")
    except SparkIntegrationError as error:
        if home is None:
            yield skipped("java", f"{error.message}: only Spark needs it")
        else:
            yield refused("java", error)


def _java(environment: Mapping[str, str]) -> str:
    home = environment.get("JAVA_HOME")
    return f"JAVA_HOME is {home}" if home else "found as Spark finds it"


# ---- what a TaskManager needs ----------------------------------------------------------------


def limits(config: TaskManagerConfig) -> Iterator[DoctorCheck]:
    """Check open files, memory, threads and the sizes of file systems."""
    host = host_limits.gather(config)
    found = host_limits.problems(config, host)
    for each in found:
        text, _, remedy = each.text.rpartition(": ")
        yield problem(f"limit of {each.key}", text, remedy)
    needed = config.transport.max_connections + host_limits.OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        if not any(each.key == "max_connections" for each in found):
            yield problem(
                "open files",
                f"{hard} are allowed, max_connections = {config.transport.max_connections} needs "
                f"{needed}: fewer connections are accepted",
                "Raise the limit (ulimit -n, LimitNOFILE)",
            )
    else:
        yield ok("open files", f"{_count(soft)} now, at most {_count(hard)}, {needed} are needed")
    if not found:
        memory, whose = host.most_memory
        size = "an unknown size" if memory is None else approximate_size(memory)
        yield ok("memory", f"{whose} {size} of memory")


def _count(limit: int) -> str:
    return "no limit" if limit == resource.RLIM_INFINITY else str(limit)


def memory_directory(config: TaskManagerConfig) -> Iterator[DoctorCheck]:
    """Check the file system of the memory tier, /dev/shm by default."""
    storage = config.storage
    directory = storage.memory_directory
    if directory is None or not (storage.memory_tier_bytes or storage.region_areas_bytes):
        yield skipped("memory tier", "it is turned off")
        return
    name = f"memory tier {directory}"
    there = host_limits.gather(config).file_systems.get(directory)
    if there is None:
        yield problem(name, "its file system cannot be examined", "Set memory_directory")
        return
    needed = storage.memory_tier_bytes + storage.region_areas_bytes
    size = approximate_size(there.size_bytes)
    if not there.in_memory:
        yield problem(
            name,
            f"it is on {there.kind or 'another file system'}, not in memory",
            "Set memory_directory to a directory on tmpfs, or memory_tier_bytes = 0",
        )
    elif there.size_bytes < needed:
        yield problem(
            name,
            f"its {there.kind} has {size}, memory_tier_bytes and region_areas_bytes need "
            f"{approximate_size(needed)}: less goes to memory",
            "Raise the size of the tmpfs (docker: --shm-size, Kubernetes: emptyDir with medium "
            "Memory), or lower the two settings",
        )
    else:
        yield ok(name, f"{there.kind} of {size}, {approximate_size(needed)} are needed")


def data_directories(config: TaskManagerConfig) -> Iterator[DoctorCheck]:
    """Check that the directories of the disk tier can be used, and have room."""
    for directory in config.storage.data_directories:
        yield _data_directory(directory, config.storage.min_free_bytes)


def _data_directory(directory: Path, min_free_bytes: int) -> DoctorCheck:
    name = f"disk {directory}"
    there = next(each for each in (directory, *directory.absolute().parents) if each.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        return problem(
            name,
            f"{there} cannot be written by user {os.geteuid()}",
            f"chown it to that user, or run as the owner of {there}",
        )
    try:
        if there == directory:
            require_trusted(directory, private=True)
        usage = os.statvfs(there)
    except UntrustedPath as error:
        return problem(name, error.reason, error.remedy)
    except OSError as error:
        return problem(name, error.strerror or str(error), "Repair or replace the disk")
    free = usage.f_bavail * usage.f_frsize
    text = (
        f"{approximate_size(free)} are free, min_free_bytes is {approximate_size(min_free_bytes)}"
    )
    if free <= min_free_bytes:
        return problem(name, text, "Free space, or use another data directory")
    return ok(name, text if there == directory else f"{text}; it is made at the first start")


def certificates(config: TaskManagerConfig, now: float) -> Iterator[DoctorCheck]:
    """Check the TLS files of the data port."""
    if not config.transport.tls_enabled:
        yield skipped("certificate", "TLS is turned off")
        return
    try:
        loaded = tls.reloading_tls(config.transport, accepts=True)
    except SluiceError as error:
        yield refused("certificate", error)
        return
    shown = None if loaded is None else loaded.current().certificate
    if shown is None:
        yield skipped("certificate", "none is shown")
        return
    yield expiry("certificate", shown.expires_at, now, str(config.transport.tls_certificate_file))


def expiry(name: str, expires_at: float, now: float, where: str) -> DoctorCheck:
    """Return the line of a certificate that can be used.

    Args:
        name: Of the check.
        expires_at: In seconds since 1970.
        now: In seconds since 1970.
        where: Its file or its TaskManager.
    """
    day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(expires_at))
    if expires_at - now < MIN_CERTIFICATE_SECONDS:
        return problem(
            name,
            f"{where} expires on {day}",
            "Renew it; a TaskManager loads a changed file by itself",
        )
    return ok(name, f"{where} is good until {day}")


def secrets(config: TaskManagerConfig, further: Path | None) -> Iterator[DoctorCheck]:
    """Check that the cluster secrets can be read, and by nobody else.

    Args:
        config: Names their files.
        further: Another file to check.
    """
    paths = dict.fromkeys([*config.auth.cluster_secret_files, *([further] if further else [])])
    for path in paths:
        try:
            read_secret(path)
            yield ok("secret", f"{path} can be read, and by its owner only")
        except SluiceError as error:
            yield refused("secret", error)
    if config.auth.revoked_tokens_file is not None:
        try:
            count = len(read_revoked_tokens(config.auth.revoked_tokens_file))
            yield ok("revoked tokens", f"{count} in {config.auth.revoked_tokens_file}")
        except SluiceError as error:
            yield refused("revoked tokens", error)
    if not paths:
        where = "anybody, from any host" if config.auth.allow_anonymous else "this host only"
        text = f"there is no cluster secret: a TaskManager serves {where}"
        if config.auth.allow_anonymous:
            yield problem("secret", text, "Make one with: sluice secret create FILE")
        else:
            yield skipped("secret", text)


class UsedPort(NamedTuple):
    """A port that a TaskManager listens on.

    Attributes:
        setting: The key of the port.
        host: The first address that it listens on, or the loopback if it listens on all.
        port: The port.
        error: Why a TaskManager could not listen there; None if it could.
        process: Index of the data process that listens on a data port; 0 for the HTTP port.
    """

    setting: str
    host: str
    port: int
    error: OSError | None
    process: int = 0


def used_ports(config: TaskManagerConfig) -> Iterator[UsedPort]:
    """Yield the ports that a TaskManager would listen on, in all its data processes."""
    hosts = config.with_addresses()
    processes = shares.process_count(config) if config.transport.data_port else 0
    for process in range(processes):
        port = shares.share_of(config, process, processes).transport.data_port
        yield _used("data_port", hosts.transport.bind_host or (), port, process)
    if config.http.http_port:
        yield _used("http_port", hosts.http.http_host or (), config.http.http_port)


def _used(setting: str, hosts: tuple[str, ...], port: int, process: int = 0) -> UsedPort:
    """Return a port, with the error that listening on it raises now."""
    own = hosts[0] if hosts else ANY_FAMILY
    if is_every_address(own):
        own = "::1" if ":" in own else "127.0.0.1"
    return UsedPort(setting, own, port, _bind_error(hosts, port), process)


def _bind_error(hosts: tuple[str, ...], port: int) -> OSError | None:
    for host in hosts:
        name = "0.0.0.0" if host == ANY_FAMILY else host
        try:
            found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except OSError as error:
            return error
        for family, kind, protocol, _, address in found[:1]:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(address)
                    probe.listen(1)
                except OSError as error:
                    return error
    return None


def port_line(used: UsedPort, *, is_ours: bool) -> DoctorCheck:
    """Return the line of a port.

    Args:
        used: The port.
        is_ours: Whether a TaskManager listens there already.
    """
    setting, _, port, error, process = used
    name = f"port {port}"
    what = f"{setting} of data process {process}" if process else setting
    if error is None:
        return ok(name, f"{what} is free")
    if error.errno == errno.EADDRINUSE and is_ours:
        return ok(name, f"{what}: a TaskManager serves it")
    reason = error.strerror or str(error)
    remedy = {
        errno.EADDRINUSE: f"Stop the program that uses it (ss -ltnp), or set another {setting}",
        errno.EACCES: f"Set {setting} to a port above 1023",
    }.get(error.errno or 0, "Set bind_host and http_host to addresses of this host")
    return problem(name, f"{what} cannot be used: {reason}", remedy)


def as_address(text: str) -> Address | None:
    """Return an address that a user typed; None if it is not one."""
    try:
        return Address.parse(text)
    except InvalidAddress:
        return None
