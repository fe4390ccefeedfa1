"""Section `[storage]`: directories, tiers and the remote store."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    field_validator,
    model_validator,
)

from ....transport.settings import NONE_ALLOWED, Bytes, Count, FilePath, Seconds, Settings

_PAGE_BYTES: Final = 4096
"""Minimum size of a memory tier, which allocates whole pages."""

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


def _state_directory() -> Path:
    """Return the directory for data of this user that survives a restart.

    If it cannot be written, opening the storage fails with a one-line error.
    """
    state = os.environ.get("XDG_STATE_HOME", "")
    home = os.path.expanduser("~")
    if os.geteuid() == 0 or not os.path.isabs(home):  # a user without a home
        return Path("/var/lib/sluice")
    return Path(state if os.path.isabs(state) else Path(home, ".local/state"), "sluice")


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
        default_factory=lambda: (_state_directory(),),
        json_schema_extra={
            "default_text": "`~/.local/state/sluice`, or `sluice` in `$XDG_STATE_HOME`; for root "
            "`/var/lib/sluice`"
        },
    )
    """Directories of the disk tier, ideally each on its own disk. They also contain the journals
    and the TaskManager's id. Refused if other users can write to one or replace it. As a flag or
    variable: separated by colons."""

    memory_directory: Annotated[FilePath | None, NONE_ALLOWED] = Field(
        default_factory=lambda: Path(f"/dev/shm/sluice-{os.getuid()}"),  # noqa: S108 - refused if open
        json_schema_extra={"default_text": "`/dev/shm/sluice-<user id>`"},
    )
    """Directory of the memory tier, on tmpfs, so that the tier survives a killed daemon. None: no
    memory tier."""

    memory_tier_bytes: Bytes = Field(512 * 1024 * 1024, ge=0)
    """Maximum size of the memory tier. It uses memory only as it fills. 0: no memory tier."""

    memory_tier_reserve_percent: Count = Field(12, ge=0, le=50)
    """Percentage of the memory tier that a single tenant leaves free for the next one. Several
    tenants leave less free. 0: first come, first served."""

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
    """Threads that read and write the disk tier. Each data directory has an equal part, at least
    one. The memory tier has as many threads as one data directory."""

    health_check_seconds: Seconds = Field(1.0, gt=0)
    """Time between two probes of each directory. A directory that fails gets no new data until
    three probes succeed."""

    slow_disk_seconds: Seconds = Field(10.0, gt=0)
    """A directory whose probe takes longer than this gets no new data."""

    journal_sync: Literal["never", "interval", "commit"] = "never"
    """When stored data is synced, so that it survives a power cut. `commit`: before a commit or a
    secured region is acknowledged. `interval`: within `journal_sync_interval_seconds`, so at most
    these are lost. `never`: data that the kernel has not written back is lost. The memory tier is
    never synced, and always lost."""

    journal_sync_interval_seconds: Seconds = Field(1.0, gt=0, le=3600)
    """Time after which a committed map output is synced, with `journal_sync = "interval"`."""

    remote: Annotated[Annotated[str, AfterValidator(remote_url)] | None, NONE_ALLOWED] = None
    """Third tier, for regions when the disks are full, and for moved map outputs and copies:
    `s3://BUCKET/PREFIX`, or a shared directory as a path or `file:///PATH`. Must be the same on
    every TaskManager. None: no remote tier."""

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

    scrub_bytes_per_second: Bytes = Field(4 * 1024 * 1024, ge=0)
    """Maximum rate at which stored data is verified in the background, while no reader or writer
    waits for its directory. 0: stored data is verified only when it is read."""

    verify_checksums: bool = True
    """Verify the checksum of every region on arrival. Reduce tasks always verify blocks."""

    _disk_sharers: int = PrivateAttr(1)

    @property
    def disk_sharers(self) -> int:
        """How many data processes share the room of each disk."""
        return self._disk_sharers

    def shared_by(self, processes: int, **changed: object) -> Self:
        """Return this section for one of several data processes, with changed settings."""
        share = self.model_copy(update=changed)
        share._disk_sharers = processes
        return share

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
