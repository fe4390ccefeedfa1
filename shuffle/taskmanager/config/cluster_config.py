"""Sections `[cluster]` and `[replication]`: the other TaskManagers, and copies on them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, field_validator

from ....transport.address import Address, InvalidAddress
from ....transport.settings import Bytes, Count, Seconds, Settings


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
