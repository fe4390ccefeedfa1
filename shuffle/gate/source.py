"""Where the data of an input channel comes from."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from sluice.transport.connector import Address


class ChannelSource(NamedTuple):
    """Where the data of one channel comes from.

    Attributes:
        taskmanager_id: The TaskManager that holds the map outputs.
        address: Where it can be reached.
        map_attempt_ids: The map outputs wanted of it.
    """

    taskmanager_id: str
    address: Address
    map_attempt_ids: Sequence[int]


UNKNOWN_SOURCE: Final = ChannelSource("", Address("unknown", 0), ())
"""Of a channel whose producer is not known yet."""
