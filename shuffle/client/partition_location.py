"""The location of a result partition, which its producer gives to its consumers."""

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...protocol.errors import ErrorCode, SluiceError
from ...transport.address import Address
from ..gate.channel_opener import ChannelSource
from ..names import TaskManagerPlace
from ..partition.partition_type import ResultPartitionType


class PartitionLocation(NamedTuple):
    """A result partition's name and place, in plain fields that travel as JSON or msgpack.

    Attributes:
        shuffle_id: Names the partition within its application, with the map attempt.
        map_attempt_id: Names one task's output.
        partition_type: A value of :class:`ResultPartitionType`.
        taskmanager_id: Identifies the TaskManager that holds the partition.
        host: Host at which other TaskManagers reach its data port.
        port: Its data port.
    """

    shuffle_id: int
    map_attempt_id: int
    partition_type: int
    taskmanager_id: str
    host: str
    port: int

    @property
    def is_stored(self) -> bool:
        """Whether the partition is stored, and so made of blocks."""
        return self.partition_type == ResultPartitionType.BLOCKING

    @property
    def place(self) -> TaskManagerPlace:
        """The TaskManager that holds the partition."""
        return TaskManagerPlace(self.taskmanager_id, self.host, self.port)

    def at(self, place: TaskManagerPlace) -> "PartitionLocation":
        """Return the location of a copy of the partition at another TaskManager."""
        return self._replace(taskmanager_id=place[0], host=place[1], port=place[2])

    @property
    def source(self) -> ChannelSource:
        """The source of the channel that reads the partition."""
        return ChannelSource(
            self.taskmanager_id, Address(self.host, self.port), (self.map_attempt_id,)
        )


def encode_locations(locations: Iterable[PartitionLocation]) -> str:
    """Write locations as JSON: a list with one list for each location."""
    return json.dumps([list(location) for location in locations])


def decode_locations(text: str | bytes) -> Sequence[PartitionLocation]:
    """Read the locations that :func:`encode_locations` wrote.

    Raises:
        CONFIGURATION: The text has another form.
    """
    try:
        rows = json.loads(text)
        return [_location(row) for row in rows]
    except (ValueError, TypeError) as error:
        raise SluiceError(
            "The text is not a list of partition locations",
            code=ErrorCode.CONFIGURATION,
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
