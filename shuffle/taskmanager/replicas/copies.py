"""Copies and moves the map outputs of one TaskManager: wires the parts together.

::

    commit ─▶ Replication ─┬─▶ Target ─▶ another TaskManager, or the remote tier
    drain  ─▶ Migration ───┘
              KnownTaskManagers: their places       Watches: which are away or lost
              Placement: which of them comes first  Holdings: which has which map output
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from ....transport.address import Address
from ...counters import Counters
from ...names import ShuffleKey, TaskManagerPlace, utf8_text
from ..cluster.known_taskmanagers import KnownTaskManagers
from ..cluster.peer_connector import PeerConnector
from ..cluster.placement import Placement
from ..cluster.taskmanager_watch import Presence
from ..cluster.watches import Watches
from ..config.taskmanager_config import TaskManagerConfig
from ..serve.moved_outputs import MovedOutputs
from ..store.shuffle_store import ShuffleStore
from .copier_connections import CopierConnections
from .copies_status import CopiesStatus
from .holdings import Holdings
from .migration import Migration
from .replication import Replication
from .target import CopyServices

if TYPE_CHECKING:
    from asyncio import Future


class DriverNotices(Protocol):
    """The drivers that are connected."""

    def tell_held(self, key: ShuffleKey, map_attempt_ids: Sequence[int]) -> None:
        """Tell the drivers of an application that copies are here."""

    def tell_moved(
        self, key: ShuffleKey, place: TaskManagerPlace, map_attempt_ids: Sequence[int]
    ) -> Iterable["Future[None]"]:
        """Announce moved map outputs; each future completes when its driver acknowledges."""


class Copies:
    """Copies and moves the map outputs of one TaskManager.

    Args:
        store: Has the map outputs.
        moved: Sends readers of moved map outputs to other TaskManagers.
        connector: Connects to other TaskManagers.
        drivers: The drivers that are connected.
        is_alive: Returns whether an application has clients here, or had them a short time ago.
        counters: The counters of this TaskManager.
        config: The settings.
    """

    def __init__(
        self,
        store: ShuffleStore,
        moved: MovedOutputs,
        connector: PeerConnector,
        drivers: DriverNotices,
        is_alive: Callable[[str], bool],
        counters: Counters,
        config: TaskManagerConfig,
    ) -> None:
        self._connector: Final = connector
        self._drivers: Final = drivers
        known = KnownTaskManagers(store.taskmanager_id)
        watches = Watches(
            known,
            [Address.parse(each) for each in config.cluster.taskmanagers],
            connector.watch,
            config.replication.lost_after_seconds,
            self._changed,
        )
        self.services: Final = CopyServices(
            store=store,
            known=known,
            watches=watches,
            placement=Placement(known, watches.presence, connector.own_host),
            connections=CopierConnections(connector.copier, is_alive),
            holdings=Holdings(),
            counters=counters,
            config=config.replication,
        )
        self.replication: Final = Replication(self.services, drivers.tell_held)
        self.migration: Final = Migration(self.services, moved, drivers.tell_moved)

    def shuffle_released(self, key: ShuffleKey, end: int | None) -> None:
        """Forget a released shuffle, or its map attempts below ``end``."""
        if end is None:
            self.replication.released(lambda other: other == key)
        else:
            self.replication.lost({key: self.services.holdings.below(key, end)})
        self.migration.forget(
            lambda each: each.shuffle == key and (end is None or each.map_attempt_id < end)
        )

    def application_released(self, application_id: str) -> None:
        """Forget an application that has ended."""
        self.replication.application_released(application_id)
        self.migration.forget(lambda each: each.shuffle.application_id == application_id)

    def undo_moves(self) -> None:
        """Let moved map outputs be read here again, and notify the drivers."""
        for key, map_attempt_ids in self.migration.undo().items():
            self._drivers.tell_held(key, map_attempt_ids)

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
        )

    def _changed(self, taskmanager_id: str, now: Presence, before: Presence) -> None:
        self.replication.changed(taskmanager_id, now, before)
        if now is Presence.LOST:
            self._connector.abort_readers_of(taskmanager_id)
