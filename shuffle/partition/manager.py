"""Finds map outputs by name: who asks before the producer has committed waits, up to a deadline."""

import asyncio
from collections.abc import Callable, Sequence

from protocol.errors import SluiceError
from shuffle.errors import InvalidRequest, PartitionNotFound
from shuffle.memory import LocalBufferPool
from shuffle.partition.stored_view import StoredPartitionView
from shuffle.partition.view import DataListener
from shuffle.storage.outputs import MapOutput, ShuffleKey
from shuffle.storage.store import ShuffleStore, release_regions


class ResultPartitionManager:
    """The registry of committed map outputs, and of those who wait for one.

    Args:
        store: Holds what is committed.
        segment_size_bytes: Largest buffer of the views made here.
        request_timeout_seconds: How long a request waits for a map output to be committed.
    """

    def __init__(
        self, store: ShuffleStore, segment_size_bytes: int, request_timeout_seconds: float
    ) -> None:
        self._store = store
        self._segment_size_bytes = segment_size_bytes
        self._request_timeout_seconds = request_timeout_seconds
        self._waiting: dict[ShuffleKey, set[asyncio.Future[None]]] = {}

    @property
    def waiting_requests(self) -> int:
        """Requests that wait for a registration."""
        return sum(len(waiters) for waiters in self._waiting.values())

    async def commit(self, output: MapOutput) -> None:
        """Commit a finished map output and serve those who waited for it.

        Raises:
            SluiceError: It could not be made durable, or is committed already; its regions have
                been given up.

        Cancellation: the commit goes on, nobody waits for it.
        """
        try:
            committed = self._store.commit(output)
        except SluiceError:
            release_regions(output.regions)
            raise
        # What follows must follow too when the producer is gone by then, and nobody waits here.
        committed.add_done_callback(lambda done: self._committed(output, done))
        await asyncio.shield(committed)

    def _committed(self, output: MapOutput, done: "asyncio.Future[None]") -> None:
        if done.cancelled():
            return  # then the journal gives the regions up, if they must be
        if done.exception() is not None:
            release_regions(output.regions)
            return
        for waiter in self._waiting.pop(output.key, ()):
            if not waiter.done():
                waiter.set_result(None)

    def find(
        self, key: ShuffleKey, map_attempt_ids: Sequence[int]
    ) -> tuple[list[MapOutput], int | None]:
        """Look map outputs up.

        Returns:
            Those that are committed, and the first map attempt that is not, or None.
        """
        found: list[MapOutput] = []
        for map_attempt_id in map_attempt_ids:
            output = self._store.lookup(key, map_attempt_id)
            if output is None:
                return found, map_attempt_id
            found.append(output)
        return found, None

    async def request_outputs(
        self, key: ShuffleKey, map_attempt_ids: Sequence[int]
    ) -> list[MapOutput]:
        """Look map outputs up, waiting for those that are not committed yet.

        Raises:
            PartitionNotFound: One is still missing at the deadline.

        Cancellation: safe, nothing is left behind.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._request_timeout_seconds
        while True:
            found, missing = self.find(key, map_attempt_ids)
            if missing is None:
                return found
            waiter: asyncio.Future[None] = loop.create_future()
            waiters = self._waiting.setdefault(key, set())
            waiters.add(waiter)
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError as error:
                raise PartitionNotFound(
                    f"Map attempt {missing} of shuffle {key.shuffle_id} is not here",
                    value=missing,
                    limit=f"{self._request_timeout_seconds} s",
                    remedy="Spark runs the map task again",
                    map_attempt_id=missing,
                ) from error
            finally:
                waiters.discard(waiter)
                if not waiters and self._waiting.get(key) is waiters:
                    del self._waiting[key]

    def create_view(
        self,
        outputs: Sequence[MapOutput],
        start_subpartition: int,
        end_subpartition: int,
        buffer_size_bytes: int,
        read_pool: Callable[[], LocalBufferPool],
        listener: DataListener,
        credit_bytes: int | None = None,
    ) -> StoredPartitionView:
        """Make a view over a range of subpartitions of committed map outputs.

        Args:
            outputs: The map outputs.
            start_subpartition: First subpartition wanted.
            end_subpartition: The one behind the last.
            buffer_size_bytes: Largest buffer, or group of buffers, to give.
            read_pool: Memory for reads of the disk tier.
            listener: Told when a view that had nothing has something.
            credit_bytes: What one credit pays for; a whole ``buffer_size_bytes`` by default.

        Raises:
            InvalidRequest: The range is empty or beyond what a map output has.
        """
        most = min(output.num_subpartitions for output in outputs)
        if not 0 <= start_subpartition < end_subpartition <= most:
            raise InvalidRequest(
                "Range of subpartitions is empty or too large",
                value=f"{start_subpartition} to {end_subpartition}",
                limit=most,
            )
        return StoredPartitionView(
            self._store,
            outputs,
            start_subpartition,
            end_subpartition,
            min(self._segment_size_bytes, buffer_size_bytes),
            buffer_size_bytes,
            buffer_size_bytes if credit_bytes is None else credit_bytes,
            read_pool,
            listener,
        )
