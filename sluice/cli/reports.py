"""The documents that commands print with ``--json``.

A field is removed, or gets another meaning, only with a new number in ``schema``.
``docs/reference/command-line.md`` is generated from these classes.
"""

from typing import Any, Literal, TypeAlias

import msgspec

from ..shuffle.taskmanager.status.status import TaskManagerStatus
from ..shuffle.taskmanager.store.shuffle_page import ShufflePage
from ..shuffle.taskmanager.store.store_status import ShuffleStatus

Severity: TypeAlias = Literal["ok", "warning", "critical", "unknown"]


class EndpointReport(msgspec.Struct, frozen=True):
    """The answer of one HTTP port."""

    url: str
    """The HTTP port."""
    reachable: bool
    """Whether it answered with a status."""
    problem: str
    """Why there is no status; else empty."""
    status: Any
    """The status as `/api/v1/status` returns it; null without one."""


class ClusterReport(msgspec.Struct, frozen=True, tag_field="schema", tag="sluice.status/1"):
    """`sluice status URL URL... --json`: several TaskManagers. One alone prints its own status."""

    taskmanagers: tuple[EndpointReport, ...]
    """In the order of the arguments."""
    sum: TaskManagerStatus | None
    """The statuses of those that answered as one: numbers are added, lists are joined; null
    if none answered."""


class CheckFinding(msgspec.Struct, frozen=True):
    """One thing that `sluice check` found."""

    severity: Severity
    """`warning`, `critical` or `unknown`."""
    url: str
    """Where."""
    text: str
    """What, with the value and the limit."""


class CheckMeasure(msgspec.Struct, frozen=True):
    """One number of the performance data."""

    name: str
    """Its label."""
    value: float
    """The number."""
    unit: str
    """`s`, `B`, `%`, or empty for a count."""
    warning: float | None = None
    """Above it is a warning; null: never."""
    critical: float | None = None
    """Above it is critical; null: never."""


class CheckReport(msgspec.Struct, frozen=True, tag_field="schema", tag="sluice.check/1"):
    """`sluice check --json`."""

    severity: Severity
    """The worst of the findings."""
    summary: str
    """The line in words, without performance data."""
    findings: tuple[CheckFinding, ...]
    """The worst first."""
    measures: tuple[CheckMeasure, ...]
    """The performance data, over all TaskManagers that answered."""


class DoctorCheck(msgspec.Struct, frozen=True):
    """One line of `sluice doctor`."""

    name: str
    """What was checked, such as `java` or `port 7337`."""
    result: Literal["ok", "problem", "skipped"]
    """`skipped`: there is nothing to check."""
    text: str
    """What was found, with value and limit."""
    remedy: str = ""
    """What to do about a problem; else empty."""


class DoctorReport(msgspec.Struct, frozen=True, tag_field="schema", tag="sluice.doctor/1"):
    """`sluice doctor --json`."""

    problems: int
    """Number of checks that found a problem."""
    checks: tuple[DoctorCheck, ...]
    """In the order of the lines."""


class InspectReport(msgspec.Struct, frozen=True, tag_field="schema", tag="sluice.inspect/1"):
    """`sluice inspect --json`."""

    source: tuple[str, ...]
    """The URL, or the directories."""
    shuffles: tuple[ShuffleStatus, ...]
    """All shuffles, if none is named."""
    shuffle: ShufflePage | None
    """The map outputs of the shuffle that is named; else null."""
    problems: tuple[str, ...]
    """Damage in the journals and in the bytes of regions; empty without `--directory`."""


class TopRow(msgspec.Struct, frozen=True):
    """One line of `sluice top`: a gate, a pipelined partition, or a shuffle that is stored."""

    url: str
    """Its TaskManager."""
    kind: Literal["gate", "pipelined", "stored"]
    """What it is."""
    application_id: str
    """Its application."""
    shuffle_id: int
    """Its shuffle."""
    number: int
    """The gate or the map attempt; 0 for a stored shuffle."""
    wait: float
    """Part of the last interval in which it waited, from 0 to 1."""
    waits_for: Literal["data", "reader", ""]
    """`data`: the reader waits for its sources; `reader`: data waits for the reader."""
    bytes_per_second: float
    """Rate in the last interval: bytes received by a gate, sent by a partition, or stored."""
    memory_bytes: int
    """Network memory that it holds; for a stored shuffle the bytes in its tiers."""


class TopReport(msgspec.Struct, frozen=True, tag_field="schema", tag="sluice.top/1"):
    """`sluice top --json`: one document on a line for each refresh."""

    asked: int
    """TaskManagers that were asked."""
    unreachable: dict[str, str]
    """Why a TaskManager has not answered, by its URL."""
    bytes_in_per_second: float
    """Over accepted connections of all TaskManagers."""
    bytes_out_per_second: float
    """As `bytes_in_per_second`."""
    memory_used_bytes: int
    """Network memory in use."""
    memory_total_bytes: int
    """Network memory of all TaskManagers."""
    max_lag_seconds: float
    """The worst lag of an event loop in the last minute."""
    rows: tuple[TopRow, ...]
    """In the order that was asked for."""


class GatherReport(msgspec.Struct, frozen=True, tag_field="schema", tag="sluice.gather/1"):
    """`sluice gather --json`, and `about.json` in its archive."""

    archive: str
    """The file that was written."""
    versions: dict[str, str]
    """Of Sluice, Python, the system and the packages that Sluice uses."""
    limits: dict[str, str]
    """Limits of this process, such as open files: now and at most."""
    environment: dict[str, str]
    """Variables of Sluice, Spark, Java and the remote store, without secrets."""
    files: dict[str, int]
    """Bytes of each file in the archive, except about.json."""
    missing: dict[str, str]
    """Why something could not be gathered, by its name."""


class Latency(msgspec.Struct, frozen=True):
    """Times of single operations, in seconds."""

    operations: int
    """How many were measured."""
    p50_seconds: float
    """The median."""
    p99_seconds: float
    """99 of 100 took no longer."""
    max_seconds: float
    """The longest."""


class DiskBenchReport(msgspec.Struct, frozen=True, tag_field="schema", tag="sluice.bench.disk/1"):
    """`sluice bench disk --json`."""

    directory: str
    """Where the file was."""
    size_bytes: int
    """Bytes that were written; fewer than asked for if the time was up."""
    block_bytes: int
    """Bytes of each write and read."""
    write_bytes_per_second: float
    """Blocks in order, with the sync at the end."""
    read_bytes_per_second: float
    """Blocks in random order, not from the page cache as far as the system allows."""
    sync: Latency
    """A write of 4 KiB and its sync, as a journal does it with journal_sync = commit."""


class NetworkBenchReport(
    msgspec.Struct, frozen=True, tag_field="schema", tag="sluice.bench.network/1"
):
    """`sluice bench network --json`."""

    peer: str
    """The other side."""
    streams: int
    """Connections at a time."""
    seconds: float
    """Time of each direction."""
    send_bytes_per_second: float
    """To the other side, all connections together."""
    receive_bytes_per_second: float
    """From the other side, all connections together."""
    connect_seconds: float
    """Time of the first connection."""
    round_trip: Latency
    """A message of 64 bytes and its answer."""


class DrainReport(msgspec.Struct, frozen=True):
    """`sluice drain --json`: the answer of `/api/v1/drain`."""

    state: str
    """The state of the TaskManager."""
    busy: bool
    """Whether it still wrote, read or moved anything when the wait was over."""
    moved: int = 0
    """Map outputs that are read elsewhere."""
    staying: int = 0
    """Map outputs that no other TaskManager takes."""
    reason: str = ""
    """Why they stay; empty if none does."""
    unread: tuple[str, ...] = ()
    """Directories that have not answered since the start: more map outputs may be there."""


class UndrainReport(msgspec.Struct, frozen=True):
    """`sluice undrain --json`: the answer of `/api/v1/undrain`."""

    state: str
    """The state of the TaskManager."""


class NewSecretReport(
    msgspec.Struct, frozen=True, tag_field="schema", tag="sluice.secret.create/1"
):
    """`sluice secret create --json`."""

    file: str | None
    """The file that has the secret; null without FILE."""
    secret: str | None
    """The secret; null if it is in a file."""


class NewTokenReport(msgspec.Struct, frozen=True, tag_field="schema", tag="sluice.token.create/1"):
    """`sluice token create --json`."""

    kind: Literal["submit", "access"]
    """`submit`: for applications; `access`: for HTTP ports."""
    file: str | None
    """The file that has the token; null without `--out`."""
    token: str | None
    """The token; null if it is in a file."""
    id: str
    """Its id, by which it is revoked."""
    expires_at: int | None
    """When it expires, in seconds since 1970; null: never."""


class TokenReport(msgspec.Struct, frozen=True, tag_field="schema", tag="sluice.token.show/1"):
    """`sluice token show --json`: the fields of a token, without its text."""

    kind: Literal["submit", "access"]
    """`submit`: for applications; `access`: for HTTP ports."""
    subject: str
    """Owner of a submit token, with `?` for characters that cannot be printed; else empty."""
    access: str
    """Scope of an access token, with `?` as in `subject`; else empty."""
    id: str
    """Its id, by which it is revoked."""
    secret_id: str
    """Id of the cluster secret that made a submit token; else empty."""
    expires_at: int | None
    """When it expires, in seconds since 1970; null: never."""
    expired: bool
    """Whether it has expired."""


class VersionReport(msgspec.Struct, frozen=True, tag_field="schema", tag="sluice.version/1"):
    """`sluice version --json`."""

    version: str
    """The version of Sluice."""
    data_path: str
    """`compiled` or `interpreted`."""
    python: str
    """The version of Python."""
