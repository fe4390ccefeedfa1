"""The states of pipelined partitions and of their subpartitions.

A partition::

    state      request, add   finish     fail       release
    OPEN       taken          FINISHED   FAILED     RELEASED
    FINISHED   refused        –          –          RELEASED
    FAILED     refused        refused    –          RELEASED
    RELEASED   refused        refused    –          –

FINISHED is complete: its readers read on to the end. Those of a FAILED one get its error, and those
of a RELEASED one ``PartitionReleased``.

A subpartition::

    state      add, add_event   finish     release    create_view
    OPEN       queued           FINISHED   RELEASED   the one view
    FINISHED   refused          –          RELEASED   the one view
    RELEASED   dropped          –          –          refused, with the reason

The partition releases its subpartitions when it fails or is released. A view that is released leads
to RELEASED too. What comes then is dropped: the producer need not stop because one of its readers
has lost interest.
"""

import enum
from typing import Protocol


class PartitionState(enum.Enum):
    """States of a pipelined partition."""

    OPEN = "open"
    FINISHED = "finished"
    FAILED = "failed"
    RELEASED = "released"


class SubpartitionState(enum.Enum):
    """States of a pipelined subpartition."""

    OPEN = "open"
    FINISHED = "finished"
    RELEASED = "released"


class SubpartitionOwner(Protocol):
    """The partition, as its subpartitions see it."""

    def subpartition_consumed(self, index: int) -> None:
        """The view of a subpartition was released: nobody reads it any more."""

    def buffer_size_announced(self, index: int, size_bytes: int) -> None:
        """The reader of a subpartition wants buffers of at most this size."""
