"""Channel selectors: they choose the subpartition of each record.

The writer tells a selector once how many subpartitions there are. The choices for a batch are the
choices for its records, one after the other.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from crc32c import crc32c

from ...protocol.errors import ErrorCode, SluiceError
from ..partition.result_partition_writer import ALL_SUBPARTITIONS
from .framing import BytesLike, Turns

T = TypeVar("T")


class ChannelSelector(ABC, Generic[T]):
    """Chooses a subpartition for each record. Custom ones override :meth:`select`.

    Attributes:
        num_subpartitions: Number of subpartitions; 0 before :meth:`setup`.
    """

    num_subpartitions: int = 0

    def setup(self, num_subpartitions: int) -> None:
        """Set the number of subpartitions; called once, by the writer.

        Raises:
            CONFIGURATION: The number is below 1.
        """
        if num_subpartitions < 1:
            raise SluiceError(
                "A channel selector needs at least 1 subpartition",
                code=ErrorCode.CONFIGURATION,
                value=num_subpartitions,
                limit=1,
            )
        self.num_subpartitions = num_subpartitions

    @abstractmethod
    def select(self, record: T) -> int:
        """Return the record's subpartition, or ``ALL_SUBPARTITIONS``."""

    def select_many(self, records: Sequence[T]) -> Sequence[int] | Turns | int:
        """Return the subpartition of each record, or the one that all go to, or their turns."""
        return list(map(self.select, records))


class RoundRobinSelector(ChannelSelector[T]):
    """Chooses one subpartition after the other.

    Args:
        start: The first subpartition, modulo their number. Tasks with different starts do not all
            load the same reader first.
    """

    def __init__(self, start: int = 0) -> None:
        self._next = start

    def setup(self, num_subpartitions: int) -> None:
        """Set the number of subpartitions."""
        super().setup(num_subpartitions)
        self._next %= num_subpartitions

    def select(self, record: T) -> int:
        """Return the next subpartition in turn."""
        chosen = self._next
        following = chosen + 1
        self._next = 0 if following >= self.num_subpartitions else following
        return chosen

    def select_many(self, records: Sequence[T]) -> Turns:
        """Return the next subpartitions in turn."""
        turns = Turns(self._next, self.num_subpartitions)
        self._next = (self._next + len(records)) % self.num_subpartitions
        return turns


class HashSelector(ChannelSelector[T]):
    """Sends equal keys to the same subpartition, in every process and in every version.

    The subpartition is the CRC-32C (polynomial 0x1EDC6F41, as in RFC 3720) of the key's bytes,
    modulo the number of subpartitions. Python's own ``hash`` differs from process to process.

    Args:
        key: Returns the bytes of a record's key; a bytes record is its own key by default.
    """

    def __init__(self, key: Callable[[T], BytesLike] | None = None) -> None:
        self._key = key

    def select(self, record: T) -> int:
        """Return the subpartition of the record's key."""
        key = self._key
        return crc32c(record if key is None else key(record)) % self.num_subpartitions  # type: ignore[arg-type]

    def select_many(self, records: Sequence[T]) -> Sequence[int]:
        """Return the subpartition of each record's key."""
        count = self.num_subpartitions
        keys = records if self._key is None else map(self._key, records)
        return [checksum % count for checksum in map(crc32c, keys)]  # type: ignore[arg-type]


class BroadcastSelector(ChannelSelector[T]):
    """Sends every record to every subpartition; it is stored once."""

    def select(self, record: T) -> int:
        """Return ``ALL_SUBPARTITIONS``."""
        return ALL_SUBPARTITIONS

    def select_many(self, records: Sequence[T]) -> int:
        """Return ``ALL_SUBPARTITIONS``."""
        return ALL_SUBPARTITIONS


class FunctionSelector(ChannelSelector[T]):
    """Lets a function choose.

    Args:
        choose: Takes the record and the number of subpartitions, returns a subpartition.
    """

    def __init__(self, choose: Callable[[T, int], int]) -> None:
        self._choose = choose

    def select(self, record: T) -> int:
        """Return the function's choice."""
        return self._choose(record, self.num_subpartitions)
