"""The states of outputs on the producer leg, and the messages that each state allows.

A stored one, which is the output of a map attempt::

    state        BeginRegion   RegionData    SecureRegion   FinishPartition   AbortPartition
    OPEN         IN_REGION     ✗             SECURING       FINISHING         ABORTED
    IN_REGION    ✗             IN_REGION,    ✗              ✗                 ABORTED
                               OPEN at the
                               region's end
    SECURING     ✗             ✗             ✗              ✗                 ABORTED
    FINISHING    ✗             ✗             ✗              ✗                 ABORTED
    COMMITTING   –             –             –              –                 COMMITTING

✗ is a :class:`MapOutputMismatch` that fails the map output, – is ignored because it comes too late.
An empty region leaves OPEN as it is. SharedRegion is a whole region in one message: it is allowed
where BeginRegion is, and leaves OPEN as it is too. So do ReplicatePartition and CopyOf, which say
how many TaskManagers shall keep the map output.

IN_REGION leads to ABORTED also when the region's bytes do not come in time.
SECURING leads back to OPEN when the complete regions outlive the process, and FINISHING to
COMMITTING when all regions are written. In COMMITTING the regions belong to the store and a row is
on its way into the journal. That cannot be called back: an abort is answered behind the commit.

A pipelined one, which is read while it is written::

    state       PipelinedData   FinishPartition   abort, client lost   released, last reader gone
    OPEN        OPEN            FINISHING         GONE                 GONE
    FINISHING   ✗               ✗                 GONE                 GONE
    FINISHED    –               –                 –                    GONE

✗ fails the partition. In FINISHED its number is free and no connection owns it; it
goes with its last reader. A partition that goes before it is finished has failed: its readers are
told, and so are requests that come for it a little later.
"""

import enum
from typing import Final, TypeAlias

from ....protocol.errors import UnexpectedMessage
from ....protocol.schema import (
    BeginRegion,
    CopyOf,
    FinishPartition,
    PipelinedData,
    RegionData,
    ReplicatePartition,
    SecureRegion,
    SharedRegion,
)
from ...errors import MapOutputMismatch

DataMessage: TypeAlias = RegionData | PipelinedData
"""A message whose payload is a part of an output."""

OutputMessage: TypeAlias = (
    BeginRegion | SharedRegion | SecureRegion | ReplicatePartition | CopyOf | FinishPartition
)
"""A message without payload that only the output with its number can take."""

MessageType: TypeAlias = type[DataMessage | OutputMessage]


class StoredState(enum.Enum):
    """States of a map output on its way in."""

    OPEN = "open"
    IN_REGION = "in region"
    SECURING = "securing"
    FINISHING = "finishing"
    COMMITTING = "committing"
    ABORTED = "aborted"


class PipelinedState(enum.Enum):
    """States of a pipelined partition on the producer leg."""

    OPEN = "open"
    FINISHING = "finishing"
    FINISHED = "finished"
    GONE = "gone"


STORED: Final[dict[MessageType, tuple[StoredState, StoredState]]] = {
    BeginRegion: (StoredState.OPEN, StoredState.IN_REGION),
    SharedRegion: (StoredState.OPEN, StoredState.OPEN),
    RegionData: (StoredState.IN_REGION, StoredState.IN_REGION),
    SecureRegion: (StoredState.OPEN, StoredState.SECURING),
    ReplicatePartition: (StoredState.OPEN, StoredState.OPEN),
    CopyOf: (StoredState.OPEN, StoredState.OPEN),
    FinishPartition: (StoredState.OPEN, StoredState.FINISHING),
}
"""The one state in which a map output takes each message, and the state to which it leads."""

PIPELINED: Final[dict[MessageType, tuple[PipelinedState, PipelinedState]]] = {
    PipelinedData: (PipelinedState.OPEN, PipelinedState.OPEN),
    FinishPartition: (PipelinedState.OPEN, PipelinedState.FINISHING),
}
"""The same for a pipelined partition."""


def not_allowed(state: StoredState, message: MessageType, map_attempt_id: int) -> MapOutputMismatch:
    """Make the error about a message that a map output does not take in its present state."""
    return MapOutputMismatch(
        f"{message.__name__} is not allowed here",
        value=f"state {state.value}",
        limit=f"state {STORED[message][0].value}",
        map_attempt_id=map_attempt_id,
    )


def after_stored(state: StoredState, message: MessageType, map_attempt_id: int) -> StoredState:
    """Return the state to which a message leads a map output.

    Raises:
        MapOutputMismatch: The message is not allowed in the present state.
    """
    allowed, after = STORED[message]
    if state is not allowed:
        raise not_allowed(state, message, map_attempt_id)
    return after


def not_open(state: PipelinedState, message: MessageType, number: int) -> UnexpectedMessage:
    """Make the error about a message that a pipelined partition takes only while it is open."""
    return UnexpectedMessage(
        f"{message.__name__} for a pipelined partition that is {state.value}",
        value=number,
        limit=PipelinedState.OPEN.value,
    )


def after_pipelined(state: PipelinedState, message: MessageType, number: int) -> PipelinedState:
    """Return the state to which a message leads a pipelined partition.

    Raises:
        UnexpectedMessage: The message is not allowed in the present state.
    """
    allowed, after = PIPELINED[message]
    if state is not allowed:
        raise not_open(state, message, number)
    return after
