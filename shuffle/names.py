"""Names that both ends of a leg share: of a shuffle, and of a map attempt."""

from typing import NamedTuple


class ShuffleKey(NamedTuple):
    """A shuffle of an application."""

    application_id: str
    shuffle_id: int


class MapAttemptKey(NamedTuple):
    """One attempt of one map task of a shuffle."""

    shuffle: ShuffleKey
    map_attempt_id: int
