"""Detects two TaskManagers with the same id: one uses a copy of the other's directories.

The id is stored in the directories and survives the process; the instance id is new at each start.
A restarted TaskManager is a new instance with the same id, perhaps on another host. Two instances
must not run at the same time: one does not have the map outputs that the other commits, and drivers
and readers identify TaskManagers by the id.
"""

import secrets
from typing import Final, NamedTuple

from ....protocol.errors import ErrorCode, SluiceError
from ....protocol.schema import HelloAck
from ....transport.address import Address
from ....transport.connection import Connection

_INSTANCE_BYTES: Final = 8


class _Instance(NamedTuple):
    """An instance that answered.

    Attributes:
        taskmanager_id: Its id.
        instance_id: Its instance id.
        address: The address that it advertises.
    """

    taskmanager_id: str
    instance_id: str
    address: Address


class Instances:
    """The instances of TaskManagers to which this one has connections.

    Args:
        own_id: The id of this TaskManager.
    """

    def __init__(self, own_id: str) -> None:
        self.own_instance_id: Final = secrets.token_hex(_INSTANCE_BYTES)
        """The instance id of this TaskManager, new at each start."""
        self._own_id: Final = own_id
        self._connected: dict[Connection, _Instance] = {}

    def admit(self, connection: Connection, ack: HelloAck) -> None:
        """Admit a connection to a TaskManager, unless another instance of it is connected.

        An instance at the same address as the other has replaced it, as after a restart.

        Raises:
            TASKMANAGER_MISMATCH: Another instance with the same id runs at another address.
        """
        address = Address(ack.advertised_host, ack.data_port)
        if ack.taskmanager_id == self._own_id and ack.instance_id != self.own_instance_id:
            raise _clone(ack, "this TaskManager")
        for each, other in self._connected.items():
            if (
                not each.closing
                and other.taskmanager_id == ack.taskmanager_id
                and other.instance_id != ack.instance_id
                and other.address != address
            ):
                raise _clone(ack, str(other.address))
        self._connected[connection] = _Instance(ack.taskmanager_id, ack.instance_id, address)

    def lost(self, connection: Connection) -> None:
        """Forget a closed connection; one that was never admitted is ignored."""
        self._connected.pop(connection, None)


def _clone(ack: HelloAck, first: str) -> SluiceError:
    return SluiceError(
        f"Two TaskManagers run with the id {ack.taskmanager_id}",
        code=ErrorCode.TASKMANAGER_MISMATCH,
        value=Address(ack.advertised_host, ack.data_port),
        limit=first,
        remedy="One has a copy of the other's directories: stop it, and remove the file "
        "taskmanager-id from its directories",
    )
