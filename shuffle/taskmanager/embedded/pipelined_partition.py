"""A pipelined partition whose task runs in the TaskManager's own process.

The task fills the TaskManager's own segments; readers on the same TaskManager read them in place,
and others get them over TCP. The task needs no credit: it shares the partition's pool with the
TaskManager.
"""

from ....protocol.errors import SluiceError
from ...client.partition_location import PartitionLocation
from ...client.shuffle_environment import PartitionSettings
from ...errors import ProducerFailed, failure_of
from ...memory import LocalBufferPool
from ...names import ShuffleKey
from ...partition.consumption import Consumption, all_readers_gone, reader_left
from ...partition.partition_states import PartitionState
from ...partition.partition_type import ResultPartitionType, pool_bounds
from ...partition.pipelined_result_partition import PartitionListeners, PipelinedResultPartition
from ..hybrid.hybrid_spiller import HybridSpiller, SpillingWriter
from ..ingest.incoming_output import ProducerServices


class EmbeddedPipelinedPartition(PipelinedResultPartition):
    """A pipelined partition that readers find by name until they have consumed it.

    Args:
        services: The parts of the TaskManager.
        key: The shuffle.
        location: Names the partition.
        settings: The settings that its task chose.

    Raises:
        InsufficientNetworkBuffers: The memory for it cannot be promised.
        DuplicateMapOutput: A partition of that name is registered.
        InvalidRequest: The number of subpartitions is less than 1.
    """

    def __init__(
        self,
        services: ProducerServices,
        key: ShuffleKey,
        location: PartitionLocation,
        settings: PartitionSettings,
    ) -> None:
        pool = _pool(services, key, location, settings)
        self._services = services
        self._key = key
        self._map_attempt_id = location.map_attempt_id
        self._task_event = settings.task_event
        self._finished = False
        self._consumption = Consumption()
        kind = ResultPartitionType(location.partition_type)
        spiller: HybridSpiller | None = None
        if kind.is_hybrid:
            writer = SpillingWriter(self._writer_waits, self._not_spilled, self._fail_and_release)
            spiller = HybridSpiller(kind, pool, services.store, key, writer)
        try:
            super().__init__(
                pool.name,
                settings.num_subpartitions,
                pool,
                partition_type=kind,
                consumption=settings.consumption,
                flusher=settings.flusher,
                listeners=PartitionListeners(self._became_consumable, self._all_read),
                overflow=spiller,
            )
            services.partitions.register_pipelined(
                key, location.map_attempt_id, self, self._fail_and_release
            )
        except BaseException:
            pool.destroy()
            raise
        services.task_events.register(key, location.map_attempt_id, self._task_event_came)
        services.counters.pipelined_partitions_opened += 1

    # ---- the writer ------------------------------------------------------------------------------

    async def finish(self) -> None:
        """End every subpartition; the partition stays until it is read or released.

        Raises:
            SluiceError: The partition has failed or is released.

        Cancellation: it does not wait.
        """
        if self._finished:
            return  # its readers may have consumed it, which releases it
        await super().finish()
        self._finished = True
        self._services.counters.pipelined_partitions_finished += 1
        self._leave_task()

    def fail(self, error: SluiceError) -> None:
        """End with an error; readers get ProducerFailed."""
        self._fail(self._producer_failed(error))

    async def wait_consumed(self, timeout_seconds: float) -> None:
        """Wait until a reader of each subpartition has reached the end.

        Raises:
            DeadlineExceeded: They have not in time.
            SluiceError: They will not: the partition failed or is released, a reader left early, or
                the TaskManager stopped.

        Cancellation: safe.
        """
        await self._consumption.wait(self.name, timeout_seconds)

    def release(self, error: SluiceError | None = None) -> None:
        """Release everything, including memory. Idempotent."""
        if self.state is PartitionState.OPEN:
            self._fail(
                ProducerFailed(
                    "The producer gave its partition up", map_attempt_id=self._map_attempt_id
                )
            )
        super().release(error)
        self._consumption.end(self._failure)
        self.forget_listeners()
        self._services.partitions.unregister_pipelined(self._key, self._map_attempt_id, self, error)

    # ---- inside ----------------------------------------------------------------------------------

    def _fail(self, error: SluiceError, told: SluiceError | None = None) -> None:
        """End with an error, unless the partition is finished.

        Args:
            error: What the task gets.
            told: What readers get; by default the same.
        """
        if self.state is not PartitionState.OPEN:
            return
        self._services.counters.pipelined_partitions_failed += 1
        self._leave_task()
        told = told or error
        self._services.partitions.unregister_pipelined(self._key, self._map_attempt_id, self, told)
        if self._end(PartitionState.FAILED, error):
            self._give_up(told)
        self._consumption.end(error)

    def _writer_waits(self) -> bool:
        """Return whether the spiller may write.

        A task waits for a buffer, has ended, or has used up the pool with events.
        """
        pool = self.memory.pool
        waiting = pool.waiting_listeners > 0 or pool.waiting_for_availability > 0
        return waiting or pool.is_destroyed or self.has_events_beside_pool

    def _not_spilled(self, error: SluiceError) -> bool:
        """Fail the partition, or release it if it is read; return whether its readers need it."""
        self._fail(error, self._producer_failed(error))
        if self.is_consumed:
            self.release(error)
        return self.state is PartitionState.FINISHED

    def _producer_failed(self, error: SluiceError) -> ProducerFailed:
        return ProducerFailed(
            "The producer failed",
            value=f"{error.code.name}: {error}",
            map_attempt_id=self._map_attempt_id,
        )

    def _leave_task(self) -> None:
        """Stop taking events for the task."""
        self._services.task_events.unregister(
            self._key, self._map_attempt_id, self._task_event_came
        )

    def _became_consumable(self) -> None:
        self._services.partitions.wake(self._key)

    def _all_read(self) -> None:
        """Release the partition after its last reader, unless it is reconsumable."""
        if self.partition_type.is_reconsumable:
            self._consumption.end()
            self._services.partitions.pipelined_consumed()
            return
        self._fail(all_readers_gone(self._map_attempt_id))
        if self.is_read:
            self._consumption.end()
        self.release(None if self.is_read else reader_left(self._map_attempt_id))

    def _fail_and_release(self, error: SluiceError) -> None:
        """Fail the partition: its shuffle was released, or spilled bytes are lost."""
        self._fail(error)
        self.release(error)

    def _task_event_came(self, event_type: int, payload: bytes) -> None:
        if self._task_event is None:
            return
        try:
            self._task_event(event_type, payload)
        except Exception as error:  # noqa: BLE001
            # The handler is the task's code: a bug in it ends this partition and nothing else.
            self.fail(failure_of(error, "handling a task event"))


def _pool(
    services: ProducerServices,
    key: ShuffleKey,
    location: PartitionLocation,
    settings: PartitionSettings,
) -> LocalBufferPool:
    """Make the pool of a partition.

    Raises:
        InsufficientNetworkBuffers: The memory cannot be promised.
        InvalidPoolSize: The task allows it no segment.
    """
    config = services.config
    return services.network_pool.create_local_pool(
        f"pipelined partition {location.map_attempt_id} of shuffle {key.shuffle_id} of "
        f"{key.application_id}",
        *pool_bounds(
            ResultPartitionType(location.partition_type),
            settings.num_subpartitions,
            config.exclusive_buffers_per_channel,
            config.floating_buffers_per_gate,
            settings.max_segments,
        ),
        max_overdraft_buffers=config.max_overdraft_buffers,
        max_buffers_per_channel=config.max_buffers_per_channel,
        kind="pipelined",
    )
