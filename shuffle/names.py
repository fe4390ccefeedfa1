"""Names that both ends of a leg share: a shuffle, a map attempt, a range of subpartitions."""

from functools import lru_cache
from typing import NamedTuple

from ..transport.address import MAX_PORT, Address, host_port, without_brackets


class ShuffleKey(NamedTuple):
    """A shuffle of an application."""

    application_id: str
    shuffle_id: int

    def __str__(self) -> str:
        return f"shuffle {self.shuffle_id} of {self.application_id}"

    @property
    def log_fields(self) -> dict[str, object]:
        """The ``extra`` of a log line about it."""
        return {"application": self.application_id, "shuffle": self.shuffle_id}


@lru_cache(maxsize=4096)
def shuffle_key(application_id: str, shuffle_id: int) -> ShuffleKey:
    """Return the key of a shuffle, one object for the many map outputs that keep it."""
    return ShuffleKey(application_id, shuffle_id)


class MapAttemptKey(NamedTuple):
    """One attempt of one map task of a shuffle."""

    shuffle: ShuffleKey
    map_attempt_id: int

    @property
    def log_fields(self) -> dict[str, object]:
        """The ``extra`` of a log line about it."""
        return self.shuffle.log_fields | {"map_attempt": self.map_attempt_id}


class TaskManagerPlace(NamedTuple):
    """A TaskManager, and where others reach its data port."""

    taskmanager_id: str
    host: str
    port: int

    @property
    def address(self) -> Address:
        """The address of the data port."""
        return Address(self.host, self.port)

    def __str__(self) -> str:
        return f"{self.taskmanager_id} {host_port(self.host, self.port)}"

    def wire_text(self) -> str:
        """Return the text that clients parse: IPv6 addresses have no brackets."""
        return f"{self.taskmanager_id} {self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "TaskManagerPlace | None":
        """Read a place from its text; None if the text is not one."""
        taskmanager_id, _, address = text.partition(" ")
        host, _, port = address.rpartition(":")
        host = without_brackets(host)
        if not taskmanager_id or not host or not port.isdecimal() or not 0 < int(port) <= MAX_PORT:
            return None
        return cls(taskmanager_id, host, int(port))


class SubpartitionRange(NamedTuple):
    """The subpartitions of a shuffle from ``start`` up to ``end``, which is not one of them."""

    shuffle: ShuffleKey
    start: int
    end: int


def utf8_text(value: object) -> str:
    r"""Return the text of a value as UTF-8 can have it, so that every page can show it.

    The name of a file may have any bytes. Those that are not UTF-8 read as in the log: ``\udcff``.
    """
    return str(value).encode(errors="backslashreplace").decode()
