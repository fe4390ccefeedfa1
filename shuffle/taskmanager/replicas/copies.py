"""Copies and moves of the map outputs of one TaskManager: the facade of this package.

::

    commit ─▶ Replication ──┬─▶ CopyMaker ─▶ copier ──▶ another TaskManager
    drain  ─▶ Migration ────┘
              KnownTaskManagers: who there is, Watches: who is away or lost, Holdings: who has what
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ....transport.address import Address
from ...counters import Counters
from ...legs.producer_leg import ProducerLeg
from ...names import ShuffleKey, TaskManagerPlace, utf8_text
from ..cluster.known_taskmanagers import KnownTaskManagers
from ..cluster.taskmanager_watch import Presence
from ..cluster.watch_leg import WatchLeg
from ..cluster.watches import Watches
from ..config.sections import ClusterConfig, ReplicationConfig
from ..serve.result_partition_manager import ResultPartitionManager
from ..store.output_index import Lost
from ..store.shuffle_store import ShuffleStore
from .copies_status import CopiesStatus
from .copy_maker import CopyMaker
from .migration import Migration
from .replication import Replication, ReplicationServices

if TYPE_CHECKING:
    from asyncio import Future


class CopiesConfig(NamedTuple):
    """The settings of copies.

    Attributes:
        replication: Numbers and times.
        cluster: The other TaskManagers.
    """

    replication: ReplicationConfig = ReplicationConfig()
    cluster: ClusterConfig = ClusterConfig()


class Connector(Protocol):
    """Connects to other TaskManagers."""

    def own_host(self) -> str:
        """Return the host at which others reach this TaskManager."""

    async def copier(self, address: Address, application_id: str) -> ProducerLeg:
        """Connect in order to write copies of an application's map outputs."""

    async def watch(self, address: Address) -> WatchLeg:
        """Connect in order to know whether the other TaskManager lives."""

    def abort_readers_of(self, taskmanager_id: str) -> None:
        """End the connections that read from a TaskManager that counts as lost."""


class Drivers(Protocol):
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
        partitions: Sends readers elsewhere.
        store: Has the map outputs.
        connector: Connects to other TaskManagers.
        drivers: The drivers that are connected.
        lives: Tells whether an application has clients here, or had them lately.
        counters: Its counters.
        config: The settings.
    """

    def __init__(
        self,
        partitions: ResultPartitionManager,
        store: ShuffleStore,
        connector: Connector,
        drivers: Drivers,
        lives: Callable[[str], bool],
        counters: Counters,
        config: CopiesConfig,
    ) -> None:
        self._store = store
        self._partitions = partitions
        self._drivers = drivers
        known = KnownTaskManagers(store.taskmanager_id)
        maker = CopyMaker(store, connector.copier, store.taskmanager_id, counters)
        watches = Watches(
            known, connector.watch, config.replication.lost_after_seconds, self._changed
        )
        services = ReplicationServices(
            store=store,
            known=known,
            maker=maker,
            watches=watches,
            configured=[Address.parse(each) for each in config.cluster.taskmanagers],
            own_host=connector.own_host,
            lives=lives,
            counters=counters,
            config=config.replication,
        )
        self._connector = connector
        self.others = known
        self.watches = watches
        self.maker = maker
        self.replication = Replication(services, drivers.tell_held)
        to_remote = None if store.remote is None else store.move_to_remote
        self.migration = Migration(
            services, self.replication, partitions.moved, drivers.tell_moved, to_remote
        )

    def start(self) -> None:
        """Record the map outputs that were found at the start."""
        self.replication.adopt(
            output
            for shuffle in self._store.shuffles()
            for output in self._store.map_outputs(shuffle.key).values()
        )

    def known(self, application_id: str, place: TaskManagerPlace) -> None:
        """Record a TaskManager that a driver names.

        Raises:
            LimitExceeded: The application has named as many as it may.
        """
        self.replication.known(application_id, place)

    def shuffle_released(self, key: ShuffleKey, end: int | None) -> None:
        """Forget a released shuffle, or its map attempts below ``end``."""
        if end is None:
            self.replication.released(lambda other: other == key)
        else:
            self.replication.lost({key: self.replication.holdings.below(key, end)})
        self.migration.forget(
            lambda each: each.shuffle == key and (end is None or each.map_attempt_id < end)
        )

    def application_released(self, application_id: str) -> None:
        """Forget an application that has ended."""
        self.replication.application_released(application_id)
        self.migration.forget(lambda each: each.shuffle.application_id == application_id)

    def let_go(self, application_id: str) -> None:
        """Stop keeping an application alive at other TaskManagers."""
        self.maker.end_application(application_id)

    def lost(self, lost: Lost) -> None:
        """Forget map outputs that were lost with a directory."""
        self.replication.lost(lost)

    def undo_moves(self) -> None:
        """Let map outputs that have moved be read here again, and tell the drivers."""
        for key, map_attempt_ids in self.migration.undo().items():
            self._drivers.tell_held(key, map_attempt_ids)

    def status(self) -> CopiesStatus:
        """Return how many copies are to be made, and how far a move has come."""
        progress = self.migration.progress
        return CopiesStatus(
            self.replication.waiting,
            len(self.replication.holdings.short),
            len(self.watches),
            progress.active,
            progress.moved,
            progress.staying,
            utf8_text(progress.reason),
        )

    async def close(self) -> None:
        """Give up what is under way, and close all connections. Idempotent."""
        await self.replication.close()

    def _changed(self, taskmanager_id: str, now: Presence, before: Presence) -> None:
        self.replication.changed(taskmanager_id, now, before)
        if now is Presence.LOST:
            self._connector.abort_readers_of(taskmanager_id)
