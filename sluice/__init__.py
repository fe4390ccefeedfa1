"""Sluice, a networked shuffle service for Spark: the public names.

Each name is loaded at its first use, so that the names of a client load neither Spark nor what only
a TaskManager runs::

    from sluice import HashSelector, ShuffleClient, StringSerializer

The packages below are, from the lowest layer to the highest: ``sluice.protocol``,
``sluice.transport``, ``sluice.shuffle``, ``sluice.spark_integration``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluice.protocol.errors import SluiceError
    from sluice.shuffle.client.client import ShuffleClient
    from sluice.shuffle.client.config import ClientConfig
    from sluice.shuffle.client.partition_location import PartitionLocation
    from sluice.shuffle.client.traced import traced
    from sluice.shuffle.dataflow.sync import SyncShuffleClient
    from sluice.shuffle.partition.partition_type import ResultPartitionType
    from sluice.shuffle.records.selectors import (
        BroadcastSelector,
        ChannelSelector,
        FunctionSelector,
        HashSelector,
        RoundRobinSelector,
    )
    from sluice.shuffle.records.serializers import (
        ArrowSerializer,
        BytesSerializer,
        Int64Serializer,
        MsgpackSerializer,
        StringSerializer,
    )
    from sluice.shuffle.taskmanager.config.taskmanager_config import TaskManagerConfig
    from sluice.shuffle.taskmanager.taskmanager import TaskManager
    from sluice.spark_integration.conf import configure, spark_conf

_MODULES = {
    "ArrowSerializer": "sluice.shuffle.records.serializers",
    "BroadcastSelector": "sluice.shuffle.records.selectors",
    "BytesSerializer": "sluice.shuffle.records.serializers",
    "ChannelSelector": "sluice.shuffle.records.selectors",
    "ClientConfig": "sluice.shuffle.client.config",
    "FunctionSelector": "sluice.shuffle.records.selectors",
    "HashSelector": "sluice.shuffle.records.selectors",
    "Int64Serializer": "sluice.shuffle.records.serializers",
    "MsgpackSerializer": "sluice.shuffle.records.serializers",
    "PartitionLocation": "sluice.shuffle.client.partition_location",
    "ResultPartitionType": "sluice.shuffle.partition.partition_type",
    "RoundRobinSelector": "sluice.shuffle.records.selectors",
    "ShuffleClient": "sluice.shuffle.client.client",
    "SluiceError": "sluice.protocol.errors",
    "StringSerializer": "sluice.shuffle.records.serializers",
    "SyncShuffleClient": "sluice.shuffle.dataflow.sync",
    "TaskManager": "sluice.shuffle.taskmanager.taskmanager",
    "TaskManagerConfig": "sluice.shuffle.taskmanager.config.taskmanager_config",
    "configure": "sluice.spark_integration.conf",
    "spark_conf": "sluice.spark_integration.conf",
    "traced": "sluice.shuffle.client.traced",
}
"""The module in which each public name is defined."""

__all__ = [
    "ArrowSerializer",
    "BroadcastSelector",
    "BytesSerializer",
    "ChannelSelector",
    "ClientConfig",
    "FunctionSelector",
    "HashSelector",
    "Int64Serializer",
    "MsgpackSerializer",
    "PartitionLocation",
    "ResultPartitionType",
    "RoundRobinSelector",
    "ShuffleClient",
    "SluiceError",
    "StringSerializer",
    "SyncShuffleClient",
    "TaskManager",
    "TaskManagerConfig",
    "configure",
    "spark_conf",
    "traced",
]


def __getattr__(name: str) -> Any:
    """Load a public name at its first use.

    Raises:
        AttributeError: There is no such name.
    """
    if name not in _MODULES:
        raise AttributeError(f"module 'sluice' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
