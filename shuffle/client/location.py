"""Where a result partition is: what a producer tells its consumers."""

from typing import NamedTuple

from shuffle.gate.channel_opener import ChannelSource
from shuffle.partition.partition_type import ResultPartitionType
from transport.connector import Address


class PartitionLocation(NamedTuple):
    """A result partition's name and place. Plain fields, so that it can travel as JSON or msgpack.

    Attributes:
        shuffle_id: With the map attempt, the partition's name within its application.
        map_attempt_id: One task's output.
        partition_type: A value of :class:`ResultPartitionType`.
        taskmanager_id: Who holds it.
        host: Where its data port is reached by other TaskManagers.
        port: That data port.
    """

    shuffle_id: int
    map_attempt_id: int
    partition_type: int
    taskmanager_id: str
    host: str
    port: int

    @property
    def is_blocking(self) -> bool:
        """Whether it is stored, and made of blocks."""
        return self.partition_type == ResultPartitionType.BLOCKING

    @property
    def source(self) -> ChannelSource:
        """The channel of a gate that reads it."""
        return ChannelSource(
            self.taskmanager_id, Address(self.host, self.port), (self.map_attempt_id,)
        )
