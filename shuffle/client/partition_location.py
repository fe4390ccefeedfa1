"""Where a result partition is: what a producer tells its consumers."""

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.shuffle.gate.source import ChannelSource
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.transport.connector import Address


class InvalidLocation(SluiceError):
    """What was handed over is no location of a partition."""

    code = ErrorCode.CONFIGURATION


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


def encode_locations(locations: Iterable[PartitionLocation]) -> str:
    """Write locations as JSON: a list with one list for each."""
    return json.dumps([list(location) for location in locations])


def decode_locations(text: str | bytes) -> Sequence[PartitionLocation]:
    """Read what :func:`encode_locations` wrote.

    Raises:
        InvalidLocation: It is something else.
    """
    try:
        rows = json.loads(text)
        return [_location(row) for row in rows]
    except (ValueError, TypeError) as error:
        raise InvalidLocation(
            "Locations of partitions cannot be understood",
            value=str(text[:80]),
            limit="JSON: a list of lists of " + ", ".join(PartitionLocation._fields),
            remedy="Write them with encode_locations",
        ) from error


def _location(row: object) -> PartitionLocation:
    if not isinstance(row, list):
        raise TypeError(row)
    location = PartitionLocation(*row)
    for value, kind in zip(location, PartitionLocation.__annotations__.values(), strict=True):
        if type(value) is not kind:
            raise TypeError(value)
    ResultPartitionType(location.partition_type)
    return location
