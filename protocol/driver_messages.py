"""Messages of the driver leg that name map outputs.

``Message`` of ``sluice.protocol.messages`` includes them.
"""

from typing import NamedTuple, TypeAlias


class ReleaseAttempts(NamedTuple):
    """Frees the map outputs of a shuffle whose map attempt is below ``end``.

    The answer is ShuffleReleased. A driver that numbers the attempts of its application in the
    order in which they begin excludes later attempts, even if the message arrives late.
    """

    shuffle_id: int
    end: int


class CheckOutputs(NamedTuple):
    """Asks which of these map outputs the TaskManager does not have.

    OutputsLost names them; OutputsChecked follows.
    """

    check: int
    shuffle_id: int
    map_attempt_ids: list[int]


class OutputsChecked(NamedTuple):
    """Answers CheckOutputs: the TaskManager has all outputs that it did not report as lost."""

    check: int


DriverMessage: TypeAlias = ReleaseAttempts | CheckOutputs | OutputsChecked
