"""Messages of the driver leg that say which map outputs they are about.

They are of the same kind as those of ``sluice.protocol.messages``, whose ``Message`` has them too.
"""

from typing import NamedTuple, TypeAlias


class ReleaseAttempts(NamedTuple):
    """Frees the map outputs of a shuffle with a map attempt below ``end``; for ever.

    The answer is ShuffleReleased. A driver that numbers the attempts of its application in the
    order in which they begin names those that it can have meant, whenever the message arrives.
    """

    shuffle_id: int
    end: int


class CheckOutputs(NamedTuple):
    """Asks which of these map outputs are not here.

    OutputsLost names them; OutputsChecked follows.
    """

    check: int
    shuffle_id: int
    map_attempt_ids: list[int]


class OutputsChecked(NamedTuple):
    """Answer to CheckOutputs: what has not been named is here."""

    check: int


DriverMessage: TypeAlias = ReleaseAttempts | CheckOutputs | OutputsChecked
