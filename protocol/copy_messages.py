"""Messages about copies of map outputs, and about map outputs that move to other TaskManagers.

They are of the same kind as those of ``sluice.protocol.messages``, whose ``Message`` has them too.
"""

from typing import NamedTuple, TypeAlias


class ReplicatePartition(NamedTuple):
    """Asks that a map output be kept by several TaskManagers; before FinishPartition.

    ``replicas`` counts the TaskManager that the producer writes to. If synchronous,
    PartitionFinished waits for the copies.
    """

    partition: int
    replicas: int
    synchronous: bool


class CopyOf(NamedTuple):
    """Says that a map output is written by a TaskManager that has it; before FinishPartition.

    ``origin`` is the TaskManager that vouches for the copy, which is the sender; ``moved`` says
    that the sender will not keep its own.
    """

    partition: int
    origin: str
    replicas: int
    moved: bool


class KnownTaskManager(NamedTuple):
    """Names another TaskManager that the application uses."""

    taskmanager_id: str
    host: str
    port: int


class OutputsHeld(NamedTuple):
    """Map outputs of the connection's application that other TaskManagers have copied here."""

    shuffle_id: int
    map_attempt_ids: list[int]


class OutputsMoved(NamedTuple):
    """Map outputs of the connection's application are at another TaskManager from now on."""

    move: int
    shuffle_id: int
    taskmanager_id: str
    host: str
    port: int
    map_attempt_ids: list[int]


class MoveNoted(NamedTuple):
    """Answer to OutputsMoved: readers are sent to the new place."""

    move: int


CopyMessage: TypeAlias = (
    ReplicatePartition | CopyOf | KnownTaskManager | OutputsHeld | OutputsMoved | MoveNoted
)
