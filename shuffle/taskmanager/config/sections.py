"""Settings of the shuffle: network memory, storage, applications."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from ....transport.address import Address, InvalidAddress
from ....transport.settings import NONE_ALLOWED, Bytes, Count, FilePath, Seconds, Settings

_PAGE_BYTES: Final = 4096
"""Minimum size of a memory tier, which allocates whole pages."""


class NetworkMemoryConfig(Settings):
    """The pool of network segments and how it is shared."""

    segment_size_bytes: Bytes = Field(32 * 1024, ge=1024, le=1024 * 1024)
    """Size of a network buffer. The same on every TaskManager of a cluster."""

    network_segments: Count = Field(2048, ge=1, le=1 << 24)
    """Segments in the pool, allocated once at start."""

    exclusive_buffers_per_channel: Count = Field(2, ge=0, le=1024)
    """Segments that each remote input channel owns while it is open. 0: a channel has memory only
    while it has data."""

    floating_buffers_per_gate: Count = Field(8, ge=0, le=65536)
    """Segments that the channels of a gate share; channels with a backlog get them."""

    floating_buffers_per_stored_gate: Count = Field(32, ge=0, le=65536)
    """The same for a gate of stored map outputs. No barrier waits behind their buffers, so there
    can be more."""

    max_overdraft_buffers: Count = Field(5, ge=0, le=65536)
    """Free segments that a pipelined partition of a task in the TaskManager's own process may use
    beyond its share to finish a record. Other clients have their own settings for this and the next
    key."""

    max_buffers_per_channel: Count = Field(10, ge=1, le=1 << 24)
    """Segments that may wait for one consumer of such a partition before its producer stops
    starting new records."""

    max_open_channels_per_gate: Count = Field(64, ge=1, le=1 << 24)
    """Remote channels of stored map outputs that a gate reads at a time, so that the memory of a
    reduce task does not grow with the number of hosts."""

    exclusive_request_timeout_seconds: Seconds = Field(30, gt=0)
    """Time for which a new gate may wait for its exclusive segments."""

    partition_request_timeout_seconds: Seconds = Field(10, gt=0)
    """Time for which a request for a partition waits until its producer has registered."""

    read_segments_per_connection: Count = Field(16, ge=1, le=65536)
    """Maximum segments that one connection may hold for reads from the disk tier."""

    write_segments_per_partition: Count = Field(16, ge=1, le=65536)
    """Maximum segments that one map attempt may hold for writes to the disk tier."""

    max_partitions_per_connection: Count = Field(1024, ge=1, le=1 << 20)
    """Map outputs and pipelined partitions that one connection may write at a time."""

    max_channels_per_connection: Count = Field(65536, ge=2, le=1 << 24)
    """Gates and channels that one connection may have open at a time."""

    max_regions_per_partition: Count = Field(65536, ge=1, le=1 << 24)
    """Regions that one map output may have."""

    map_output_resume_timeout_seconds: Seconds = Field(30, gt=0)
    """Time for which the secured regions of a map output are kept after its producer's connection
    is lost, or after a restart, so that the producer can continue."""

    region_progress_timeout_seconds: Seconds = Field(120, gt=0)
    """Time for which an announced region waits for its next byte while the producer has credit.
    After it the map output fails."""

    gate_progress_timeout_seconds: Seconds = Field(20, gt=0)
    """Time after which a gate, channel or pipelined partition without progress loses its segments
    while another application waits for segments."""

    @property
    def least_network_segments(self) -> int:
        """Minimum number of segments with which a transfer can begin.

        The exclusive segments of one channel, and one segment each for the gate to share, for a
        connection that reads the disk tier and for a map attempt that writes to it.
        """
        return self.exclusive_buffers_per_channel + 3

    @model_validator(mode="after")
    def _channels_have_buffers(self) -> NetworkMemoryConfig:
        floating = min(self.floating_buffers_per_gate, self.floating_buffers_per_stored_gate)
        if self.exclusive_buffers_per_channel == floating == 0:
            raise ValueError(
                "exclusive_buffers_per_channel = 0 leaves channels of a gate without floating "
                "buffers no memory at all: set floating_buffers_per_gate and "
                "floating_buffers_per_stored_gate to at least 1"
            )
        return self

    @model_validator(mode="after")
    def _pool_large_enough(self) -> NetworkMemoryConfig:
        if self.network_segments < self.least_network_segments:
            raise ValueError(
                f"network_segments = {self.network_segments} is too small a pool: at least "
                f"{self.least_network_segments} segments (exclusive_buffers_per_channel + 3) are "
                "needed for one transfer; raise network_segments"
            )
        return self


_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX: Final = re.compile(r"[A-Za-z0-9._/-]{0,400}")
_ENDPOINT: Final = re.compile(
    r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?/?|https?://\[[0-9a-fA-F:]+\](:[0-9]{1,5})?/?"
)


def _split_directories(value: object) -> object:
    """Split ``"/a:/b"`` from an environment variable or a flag into two directories."""
    return (
        tuple(part for part in value.split(os.pathsep) if part) if isinstance(value, str) else value
    )


def _temporary_directory() -> str:
    """Return the system's temporary directory, even if it is not writable.

    If it is not writable, opening the storage fails with a one-line error.
    """
    try:
        return tempfile.gettempdir()
    except OSError:
        return "/tmp"  # noqa: S108 - made private at start


def _own_directory(parent: str) -> Path:
    """Return the path of a directory below ``parent`` for this user."""
    return Path(parent, f"sluice-{os.getuid()}")


def remote_url(given: str) -> str:
    """Validate the URL of the remote tier, and normalize it.

    Raises:
        ValueError: It is neither a bucket nor an absolute path. The error does not repeat it,
            because it may contain a secret.
    """
    scheme, separator, rest = given.partition("://")
    if not separator:
        scheme, rest = "file", given
    if scheme == "file":
        if not rest.startswith("/"):
            raise ValueError("must be an absolute path, file:///PATH or s3://BUCKET/PREFIX")
        return "file://" + os.path.normpath(rest)
    if scheme != "s3":
        raise ValueError("must be s3://BUCKET/PREFIX, file:///PATH or an absolute path")
    bucket, _, prefix = rest.partition("/")
    if not _BUCKET.fullmatch(bucket) or not _PREFIX.fullmatch(prefix):
        raise ValueError(
            "must be s3://BUCKET/PREFIX with the plain name of a bucket and a prefix of letters, "
            "digits and . _ - / only; credentials belong in the environment, see "
            "docs/operate/remote.md"
        )
    parts = [part for part in prefix.split("/") if part]
    return "s3://" + "/".join([bucket, *parts])


def http_url(given: str) -> str:
    """Validate the URL of a service.

    Raises:
        ValueError: It is not a plain HTTP URL.
    """
    if not _ENDPOINT.fullmatch(given):
        raise ValueError("must be http://HOST:PORT or https://HOST:PORT, without user and password")
    return given.rstrip("/")


class StorageConfig(Settings):
    """Storage of committed map outputs: memory tier, disks, remote store."""

    data_directories: Annotated[
        tuple[FilePath, ...], BeforeValidator(_split_directories), Field(min_length=1)
    ] = Field(
        default_factory=lambda: (_own_directory(_temporary_directory()) / "data",),
        json_schema_extra={"default_text": "`<temporary directory>/sluice-<user id>/data`"},
    )
    """Directories of the disk tier, ideally each on its own disk. They also contain the journals
    and the TaskManager's id. As a flag or variable: separated by colons."""

    memory_directory: Annotated[FilePath | None, NONE_ALLOWED] = Field(
        default_factory=lambda: _own_directory("/dev/shm"),  # noqa: S108 - made private at start
        json_schema_extra={"default_text": "`/dev/shm/sluice-<user id>`"},
    )
    """Directory of the memory tier, on tmpfs, so that the tier survives a killed daemon. None: no
    memory tier."""

    memory_tier_bytes: Bytes = Field(512 * 1024 * 1024, ge=0)
    """Maximum size of the memory tier. It uses memory only as it fills. 0: no memory tier."""

    memory_tier_reserve_percent: Count = Field(12, ge=0, le=50)
    """Percentage of the memory tier that a single application leaves free for the next one. Several
    applications leave less free. 0: first come, first served."""

    region_areas_bytes: Bytes = Field(256 * 1024 * 1024, ge=0)
    """Maximum memory shared with producers on this host, which write regions there instead of
    sending them. It adds to the memory tier. 0: producers send all regions."""

    region_areas_directory: Annotated[FilePath | None, NONE_ALLOWED] = None
    """Directory of that memory, on a tmpfs that producers see at the same path. None: below
    `memory_directory`."""

    disk_quota_bytes: Annotated[Annotated[Bytes, Field(ge=0)] | None, NONE_ALLOWED] = None
    """Maximum bytes used in each data directory. None: limited by the disk. 0: only the journal."""

    min_free_bytes: Bytes = Field(1024 * 1024 * 1024, ge=0)
    """Bytes left free on the disk of each data directory."""

    io_threads: Count = Field(4, ge=1, le=256)
    """Threads that read and write the disk tier."""

    health_check_seconds: Seconds = Field(1.0, gt=0)
    """Time between two probes of each directory. A directory that fails gets no new data until
    three probes succeed."""

    slow_disk_seconds: Seconds = Field(10.0, gt=0)
    """A directory whose probe takes longer than this gets no new data."""

    remote: Annotated[Annotated[str, AfterValidator(remote_url)] | None, NONE_ALLOWED] = None
    """Third tier, used when the disks are full: `s3://BUCKET/PREFIX`, or a shared directory as a
    path or `file:///PATH`. Must be the same on every TaskManager. None: no remote tier."""

    remote_endpoint: Annotated[Annotated[str, AfterValidator(http_url)] | None, NONE_ALLOWED] = None
    """URL of the S3 service, such as `https://minio.example:9000`. None: the variable
    `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL`, or else Amazon."""

    remote_quota_bytes: Annotated[Annotated[Bytes, Field(ge=1)] | None, NONE_ALLOWED] = None
    """Maximum bytes that this TaskManager keeps in the remote tier. None: no limit."""

    remote_part_bytes: Bytes = Field(8 * 1024 * 1024, ge=5 * 1024 * 1024, le=1024 * 1024 * 1024)
    """Size of a part of an upload. A region up to this size is uploaded in one request."""

    remote_upload_bytes: Bytes = Field(64 * 1024 * 1024, ge=1)
    """Maximum memory for parts that are being filled or sent. While it is used up, producers get no
    credit."""

    remote_requests: Count = Field(64, ge=1, le=4096)
    """Maximum number of concurrent reads of the remote tier."""

    remote_timeout_seconds: Seconds = Field(30, gt=0, le=240)
    """Timeout of a request to the remote tier, including retries with exponential backoff."""

    remote_orphan_seconds: Seconds = Field(24 * 3600, ge=1)
    """Age after which objects without a map output are removed, and moved map outputs whose
    application no TaskManager has known for this time."""

    verify_checksums: bool = True
    """Verify the checksum of every region on arrival. Reduce tasks always verify blocks."""

    @field_validator("memory_tier_bytes")
    @classmethod
    def _none_or_a_page(cls, size_bytes: int) -> int:
        if 0 < size_bytes < _PAGE_BYTES:
            raise ValueError(f"must be at least {_PAGE_BYTES}, or 0 for no memory tier")
        return size_bytes

    @model_validator(mode="after")
    def _directories_differ(self) -> StorageConfig:
        if len(set(self.data_directories)) < len(self.data_directories):
            raise ValueError(
                f"data_directories = {os.pathsep.join(map(str, self.data_directories))} names a "
                "directory twice: name each once"
            )
        return self


def _split_names(value: object) -> object:
    """Split ``"a:1,b:1"`` from an environment variable or a flag into two addresses."""
    return (
        tuple(part.strip() for part in value.split(",") if part.strip())
        if isinstance(value, str)
        else value
    )


class ClusterConfig(Settings):
    """The other TaskManagers of the cluster."""

    taskmanagers: Annotated[tuple[str, ...], BeforeValidator(_split_names)] = ()
    """Addresses (`HOST:PORT`) of TaskManagers to which map outputs are copied and moved. Only
    needed for programs without a driver. May include this TaskManager. As a flag or variable:
    separated by commas."""

    @field_validator("taskmanagers")
    @classmethod
    def _have_ports(cls, addresses: tuple[str, ...]) -> tuple[str, ...]:
        for address in addresses:
            try:
                is_socket = not Address.parse(address).port
            except InvalidAddress:
                is_socket = True
            if is_socket:
                raise ValueError(
                    f'"{address}" is not the address of another host: write it as HOST:PORT, '
                    "an IPv6 address in brackets"
                )
        return addresses


class ReplicationConfig(Settings):
    """Copying and moving map outputs to other TaskManagers."""

    copy_streams: Count = Field(4, ge=1, le=64)
    """Map outputs copied or moved at a time."""

    synchronous_timeout_seconds: Seconds = Field(20, gt=0)
    """Time for which the commit of a map output waits for synchronous copies. After it the commit
    is acknowledged, and the copies are made later."""

    lost_after_seconds: Seconds = Field(30, gt=0)
    """Time for which a TaskManager may be unreachable before its copies are made again elsewhere. A
    restart should take less."""

    restore_bytes_per_second: Bytes = Field(128 * 1024 * 1024, ge=1)
    """Maximum bytes per second that are copied again after a loss."""

    move_noted_timeout_seconds: Seconds = Field(10, gt=0)
    """Time for which a move waits for the driver to acknowledge the new locations before readers
    are redirected."""


class ApplicationConfig(Settings):
    """How long an application may be disconnected."""

    application_expiry_seconds: Seconds = Field(60, gt=0)
    """Time after which an application's data is dropped when its last connection has closed."""
