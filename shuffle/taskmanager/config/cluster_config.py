"""Sections `[cluster]` and `[replication]`: the other TaskManagers, and copies on them."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from ....transport.address import InvalidAddress
from ....transport.member_address import parse_member
from ....transport.settings import Bytes, Count, Seconds, Settings

MAX_LABEL_CHARACTERS: Final = 253
"""Longest name of a node or a zone: that of a node in Kubernetes."""


def _split_names(value: object) -> object:
    """Split ``"a:1,b:1"`` from an environment variable or a flag into two addresses."""
    return (
        tuple(part.strip() for part in value.split(",") if part.strip())
        if isinstance(value, str)
        else value
    )


def _label(value: str) -> str:
    """Refuse a name that logs and pages cannot show, or that is too long for a message."""
    if len(value) > MAX_LABEL_CHARACTERS or not (value.isascii() and value.isprintable()):
        raise ValueError(
            f'"{value}" must be printable ASCII of at most {MAX_LABEL_CHARACTERS} characters'
        )
    return value


class ClusterConfig(Settings):
    """The other TaskManagers of the cluster."""

    taskmanagers: Annotated[tuple[str, ...], BeforeValidator(_split_names)] = ()
    """The other TaskManagers: `HOST:PORT`, or `dns:NAME` or `dns:NAME:PORT` for all addresses of a
    name. Members report further members to each other and to drivers, and map outputs are copied
    and moved to them. May include this TaskManager. With a cluster secret each TaskManager must
    advertise the address that the name has (`advertised_host`), or list it in
    `address_aliases`. As a flag or variable: separated by commas."""

    resolve_interval_seconds: Seconds = Field(30, gt=0)
    """Interval at which the names in `taskmanagers` are resolved. They are also resolved when a
    member no longer answers."""

    node: Annotated[str, AfterValidator(_label)] = ""
    """The machine on which this TaskManager runs. Executors prefer TaskManagers of their node, and
    copies go to other nodes. Empty: its advertised host."""

    zone: Annotated[str, AfterValidator(_label)] = ""
    """The zone of its node. Copies go to other zones, if there are any. Empty: it is not known."""

    @field_validator("taskmanagers")
    @classmethod
    def _are_members(cls, members: tuple[str, ...]) -> tuple[str, ...]:
        for member in members:
            try:
                parse_member(member)
            except InvalidAddress as error:
                raise ValueError(str(error)) from None
        return members


class ReplicationConfig(Settings):
    """Copying and moving map outputs to other TaskManagers."""

    copy_streams: Count = Field(4, ge=1, le=64)
    """Map outputs copied or moved at a time. One of each application always is."""

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
