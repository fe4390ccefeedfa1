"""The states of outputs on the producer leg, and the messages that each state allows.

A map output::

    state        BeginRegion   RegionData   SecureRegion   FinishPartition   the end
    OPEN         IN_REGION     ✗            SECURING       FINISHING         ABORTED
    IN_REGION    ✗             ARRIVING     ✗              ✗                 ABORTED
    ARRIVING     ✗             IN_REGION    ✗              ✗                 STRANDED
    SECURING     ✗             ✗            ✗              ✗                 ABORTED
    FINISHING    ✗             ✗            ✗              ✗                 ABORTED
    COMMITTING   –             –            –              –                 COMMITTING

✗ is a :class:`MapOutputMismatch` that fails the map output, – is ignored because it comes too late.
The end is AbortPartition, an error, a lost connection, or a takeover by another connection.
SharedRegion is a whole region in one message: it is allowed in OPEN and leads back there. So do
CopyOf, and ReplicatePartition, which is allowed in SECURING too.

The other steps are the TaskManager's own:

* RegionData leads to ARRIVING while its payload arrives in memory of the region, then back to
  IN_REGION. A region that is complete or empty leads to OPEN.
* SECURING leads back to OPEN when the regions survive the process, and FINISHING to COMMITTING when
  they are written. In COMMITTING the regions belong to the store and their row is on its way into
  the journal. It cannot be undone: an abort is answered after the commit.
* STRANDED keeps the memory of the region, because the transport still writes into it, and leads to
  ABORTED when the payload has arrived or its connection is lost.

A pipelined partition, which is read while it is written::

    state       PipelinedData   FinishPartition   abort, client lost   released, last reader gone
    OPEN        OPEN            FINISHING         GONE                 GONE
    FINISHING   ✗               ✗                 GONE                 GONE
    FINISHED    –               –                 –                    GONE

✗ fails the partition. WatchConsumption is allowed in OPEN and leads back there. In FINISHED its
number is free and no connection owns it; its last reader releases it. A partition that is gone
before it is finished has failed: its readers get the error, and so do requests that come for it a
little later.
"""

import enum
from typing import Final, TypeAlias

from ....protocol.errors import UnexpectedMessage
from ....protocol.schema import (
    BeginRegion,
    CopyChecksum,
    CopyOf,
    FinishPartition,
    PipelinedData,
    RegionData,
    ReplicatePartition,
    ReplicateToRemote,
    SecureRegion,
    SharedRegion,
    WatchConsumption,
)
from ...errors import MapOutputMismatch

DataMessage: TypeAlias = RegionData | PipelinedData
"""A message whose payload is a part of an output."""

OutputMessage: TypeAlias = (
    BeginRegion
    | SharedRegion
    | SecureRegion
    | ReplicatePartition
    | ReplicateToRemote
    | CopyChecksum
    | CopyOf
    | WatchConsumption
    | FinishPartition
)
"""A message without payload that only the output with its number can take."""

MessageType: TypeAlias = type[DataMessage | OutputMessage]


class StoredState(enum.Enum):
    """States of a map output on the producer leg."""

    OPEN = "open"
    IN_REGION = "in region"
    ARRIVING = "payload arriving"
    SECURING = "securing"
    FINISHING = "finishing"
    COMMITTING = "committing"
    STRANDED = "aborted, payload arriving"
    ABORTED = "aborted"


class PipelinedState(enum.Enum):
    """States of a pipelined partition on the producer leg."""

    OPEN = "open"
    FINISHING = "finishing"
    FINISHED = "finished"
    GONE = "gone"


STORED: Final[dict[MessageType, dict[StoredState, StoredState]]] = {
    BeginRegion: {StoredState.OPEN: StoredState.IN_REGION},
    SharedRegion: {StoredState.OPEN: StoredState.OPEN},
    RegionData: {StoredState.IN_REGION: StoredState.ARRIVING},
    SecureRegion: {StoredState.OPEN: StoredState.SECURING},
    ReplicatePartition: {
        StoredState.OPEN: StoredState.OPEN,
        StoredState.SECURING: StoredState.SECURING,
    },
    ReplicateToRemote: {
        StoredState.OPEN: StoredState.OPEN,
        StoredState.SECURING: StoredState.SECURING,
    },
    CopyChecksum: {StoredState.OPEN: StoredState.OPEN},
    CopyOf: {StoredState.OPEN: StoredState.OPEN},
    FinishPartition: {StoredState.OPEN: StoredState.FINISHING},
}
"""The states in which a map output takes each message, and the states to which it leads."""

STORED_END: Final[dict[StoredState, StoredState]] = {
    StoredState.OPEN: StoredState.ABORTED,
    StoredState.IN_REGION: StoredState.ABORTED,
    StoredState.ARRIVING: StoredState.STRANDED,
    StoredState.SECURING: StoredState.ABORTED,
    StoredState.FINISHING: StoredState.ABORTED,
    StoredState.COMMITTING: StoredState.COMMITTING,
}
"""The state to which the end leads a map output in each state that has an end."""


def not_allowed(state: StoredState, message: MessageType, map_attempt_id: int) -> MapOutputMismatch:
    """Make the error about a message that a map output does not take in its present state."""
    return MapOutputMismatch(
        f"{message.__name__} is not allowed here",
        value=f"state {state.value}",
        limit="state " + " or ".join(allowed.value for allowed in STORED[message]),
        map_attempt_id=map_attempt_id,
    )


def after_stored(state: StoredState, message: MessageType, map_attempt_id: int) -> StoredState:
    """Return the state to which a message leads a map output.

    Raises:
        MapOutputMismatch: The message is not allowed in the present state.
    """
    after = STORED[message].get(state)
    if after is None:
        raise not_allowed(state, message, map_attempt_id)
    return after


def not_open(state: PipelinedState, message: MessageType, number: int) -> UnexpectedMessage:
    """Make the error about a message that a pipelined partition takes only while it is open."""
    return UnexpectedMessage(
        f"{message.__name__} for a pipelined partition that is {state.value}",
        value=number,
        limit=PipelinedState.OPEN.value,
    )
