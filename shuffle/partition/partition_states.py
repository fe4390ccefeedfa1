"""The states of result partitions and of their subpartitions, as tables.

A partition, whether its buffers are read while they are written, stored, or sent to a TaskManager::

    state       request, add   finish      fail      release
    OPEN        taken          FINISHING   FAILED    RELEASED
    FINISHING   refused        refused     FAILED    RELEASED   until everything is stored or sent
    FINISHED    refused        –           –         RELEASED
    FAILED      refused        refused     –         RELEASED
    RELEASED    refused        refused     –         –

A pipelined partition has nothing to wait for: ``finish`` leads from OPEN to FINISHED at once. Its
readers read on to the end. Readers of a FAILED partition get its error, or ``ProducerFailed`` if
its task failed. Readers of a RELEASED partition get the reason, usually ``PartitionReleased``. A
FINISHED hybrid partition that cannot spill stays FINISHED.

A subpartition of a pipelined partition::

    state      add, add_event   finish     release    create_view
    OPEN       queued           FINISHED   RELEASED   the one view, or refused: it is in use
    FINISHED   refused          –          RELEASED   the one view, or refused: it is in use
    RELEASED   dropped          –          –          refused, with the reason

The partition releases its subpartitions when it fails or is released. The release of a view leads
to RELEASED too, and is the reason then. A released subpartition drops buffers instead of refusing
them: the producer need not stop because one of its readers has lost interest.
"""

import enum
from typing import Final


class PartitionState(enum.Enum):
    """States of a result partition."""

    OPEN = "open"
    FINISHING = "finishing"
    FINISHED = "finished"
    FAILED = "failed"
    RELEASED = "released"


class SubpartitionState(enum.Enum):
    """States of a pipelined subpartition."""

    OPEN = "open"
    FINISHED = "finished"
    RELEASED = "released"


_OPEN: Final = PartitionState.OPEN
_FINISHING: Final = PartitionState.FINISHING
_FINISHED: Final = PartitionState.FINISHED
_FAILED: Final = PartitionState.FAILED
_RELEASED: Final = PartitionState.RELEASED

UNFINISHED: Final = frozenset({_OPEN, _FINISHING})
"""States of a partition that can still become complete."""

NEXT_STATES: Final[dict[PartitionState, frozenset[PartitionState]]] = {
    _OPEN: frozenset({_FINISHING, _FINISHED, _FAILED, _RELEASED}),
    _FINISHING: frozenset({_FINISHED, _FAILED, _RELEASED}),
    _FINISHED: frozenset({_RELEASED}),
    _FAILED: frozenset({_RELEASED}),
    _RELEASED: frozenset(),
}
"""The states that each state of a partition leads to."""
