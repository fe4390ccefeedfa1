"""Copies and moves the map outputs of one TaskManager: wires the parts together.

::

    commit ─▶ Replication ─▶ ApplicationCopies ─┬─▶ Target ─▶ another TaskManager,
    drain  ─▶ Migration ────────────────────────┘             or the remote tier
              KnownTaskManagers: their places       Watches: which are away or lost
              Placement: which of them comes first  Holdings: which has which map output
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from ....transport.member_address import parse_member
from ...counters import Counters
from ...names import ShuffleKey, TaskManagerPlace, utf8_text
from ..bounds.owner_slots import OwnerSlots
from ..cluster.known_taskmanagers import KnownTaskManagers
from ..cluster.member_reports import MemberReports
from ..cluster.members import Members
from ..cluster.members_status import MembersStatus
from ..cluster.peer_connector import PeerConnector
from ..cluster.placement import Placement
from ..cluster.taskmanager_watch import Presence
from ..cluster.watches import Watches
from ..config.taskmanager_config import TaskManagerConfig
from ..serve.result_partition_manager import ResultPartitionManager
from ..store.shuffle_store import ShuffleStore
from .copier_connections import CopierConnections
from .copies_status import CopiesStatus
from .holdings import Holdings
from .migration import Migration
from .replication import Replication
from .target import CopyServices, DriverNotices

if TYPE_CHECKING:
    from ..tracing.tracing import Tracing


class ApplicationClients(Protocol):
    """The clients of the applications."""

    def lives(self, application_id: str) -> bool:
        """Return whether an application has clients here, or had them a short time ago."""

    def vouching(self, application_id: str) -> int:
        """Return the features with which a copier says whether it has clients."""


class Copies:
    """Copies and moves the map outputs of one TaskManager.

    Args:
        store: Has the map outputs.
        partitions: Sends readers of moved map outputs to other TaskManagers, and releases map
            outputs that were released there.
        connector: Connects to other TaskManagers.
        reports: The reports that this TaskManager and the members of its cluster exchange.
        drivers: The connected drivers.
        applications: The applications that have clients here, or had them a short time ago.
        counters: The counters of this TaskManager.
        config: The settings.
        tracing: Makes the spans of copies; None if traces are off.
    """

    def __init__(  # noqa: PLR0913 - they are the parts of one TaskManager
        self,
        store: ShuffleStore,
        partitions: ResultPartitionManager,
        connector: PeerConnector,
        reports: MemberReports,
        drivers: DriverNotices,
        applications: ApplicationClients,
        counters: Counters,
        config: TaskManagerConfig,
        tracing: "Tracing | None" = None,
    ) -> None:
        self._connector: Final = connector
        self._cluster: Final = config.cluster
        known = KnownTaskManagers(store.taskmanager_id, store.accounts)
        watches = Watches(
            known,
            reports,
            connector.watch,
            config.replication.lost_after_seconds,
            self._changed,
        )
        self.services: Final = CopyServices(
            store=store,
            known=known,
            watches=watches,
            placement=Placement(
                known,
                reports,
                self._location,
            ),
            connections=CopierConnections(
                lambda address, application_id: connector.copier(
                    address, application_id, applications.vouching(application_id)
                ),
                applications.lives,
            ),
            holdings=Holdings(),
            moved=partitions.moved,
            damage=partitions.damage,
            drivers=drivers,
            release=partitions.release_shuffle,
            streams=OwnerSlots(config.replication.copy_streams, config.replication.copy_streams),
            counters=counters,
            config=config.replication,
            tracing=tracing,
        )
        self.replication: Final = Replication(self.services, lambda: self.migration.awaited())
        self.migration: Final = Migration(self.services, self.replication.watch_shared)

    def watch_members(self) -> None:
        """Begin to watch the members of the cluster. Called once."""
        cluster, watches = self._cluster, self.services.watches
        watches.watch_members(
            Members(
                [parse_member(each) for each in cluster.taskmanagers],
                cluster.resolve_interval_seconds,
                watches.members_changed,
            )
        )

    def shuffle_released(self, key: ShuffleKey, end: int | None) -> None:
        """Forget a released shuffle, or its map attempts below ``end``."""
        self.migration.shuffle_released(key, end)
        self.replication.shuffle_released(key, end)

    def application_released(self, application_id: str) -> None:
        """Forget an ended application."""
        self.migration.application_released(application_id)
        self.replication.application_released(application_id)

    def lost(self, lost: Mapping[ShuffleKey, Sequence[int]]) -> None:
        """Forget map outputs that are not here any longer."""
        self.migration.lost(lost)
        self.replication.lost(lost)

    async def close(self) -> None:
        """Cancel the copies and moves being made. Idempotent."""
        await self.migration.close()
        await self.replication.close()

    def status(self) -> CopiesStatus:
        """Return the status of copies and moves."""
        progress = self.migration.progress
        return CopiesStatus(
            self.replication.waiting,
            len(self.services.holdings.short),
            len(self.services.watches),
            progress.active,
            progress.moved,
            progress.staying,
            utf8_text(progress.reason),
            len(self.services.holdings.short_of_remote),
            self.services.watches.unreachable,
        )

    def members_status(self) -> MembersStatus:
        """Return the status of the members of the cluster."""
        return self.services.watches.status(*self._location())

    def _location(self) -> tuple[str, str]:
        """Return node and zone of this TaskManager."""
        return self._cluster.node or self._connector.own_host(), self._cluster.zone

    def _changed(self, place: TaskManagerPlace, now: Presence, before: Presence) -> None:
        self.replication.changed(place, now, before)
        self.migration.changed(place, now)
        if now is Presence.LOST:
            self._connector.abort_readers_of(place)
