"""The status of the members of the cluster, as one TaskManager sees them."""

from typing import Annotated, ClassVar

import msgspec

from ...metric import Combined, gauge, total
from .taskmanager_watch import Presence


class WatchedMemberStatus(msgspec.Struct, frozen=True, gc=False):
    """One address at which this TaskManager watches another one, and what that one reports."""

    key_fields: ClassVar[tuple[str, ...]] = ("watched_at",)

    taskmanager_id: str = ""
    """Empty until a TaskManager has answered at the address."""
    watched_at: str = ""
    """``host:port`` at which it is watched: as configured, resolved or reported."""
    address: str = ""
    """``host:port`` of its data port, as it advertises it; empty until it has answered."""
    http_port: Annotated[int, Combined("max")] = 0
    """Its HTTP port; 0 if it is not known."""
    node: str = ""
    """The machine on which it runs; empty: its host."""
    zone: str = ""
    """The zone of its node; empty if it is not known."""
    presence: Annotated[
        str,
        gauge(
            "Addresses at which members are watched.",
            "cluster_members",
            by="presence",
            zeros=tuple(each.value for each in Presence),
        ),
    ] = Presence.UNKNOWN.value
    """``unknown`` until the first attempt, then ``present``, ``away`` or ``lost``."""
    draining: bool = False
    """Whether it takes no new map outputs."""
    free_bytes: Annotated[int, Combined("max")] = 0
    """Free bytes of its tiers in its last report."""
    open_outputs: Annotated[int, Combined("max")] = 0
    """Map outputs being written to it in its last report."""


class MembersStatus(msgspec.Struct, frozen=True, gc=False):
    """The members of the cluster, and how this TaskManager finds them."""

    node: str = ""
    """The machine on which this TaskManager runs."""
    zone: str = ""
    """The zone of its node; empty if it is not known."""
    members: tuple[WatchedMemberStatus, ...] = ()
    """The others, by the address at which each is watched."""
    names_failing: Annotated[
        int,
        gauge(
            "Names of TaskManagers that cannot be resolved now.",
            "cluster_names_failing",
            combine="max",
        ),
    ] = 0
    dials: Annotated[
        int,
        total(
            "Attempts to connect to TaskManagers in order to watch them.",
            "cluster_dials",
        ),
    ] = 0
