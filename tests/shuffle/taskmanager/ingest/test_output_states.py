"""The tables of states: each message is allowed in one state, and refused in all others."""

from __future__ import annotations

import pytest

from sluice.protocol.errors import UnexpectedMessage
from sluice.protocol.schema import (
    BeginRegion,
    FinishPartition,
    PipelinedData,
    RegionData,
    SecureRegion,
    SharedRegion,
)
from sluice.shuffle.errors import MapOutputMismatch
from sluice.shuffle.taskmanager.ingest.output_states import (
    PipelinedState,
    StoredState,
    after_pipelined,
    after_stored,
)

STORED = {
    (StoredState.OPEN, BeginRegion): StoredState.IN_REGION,
    (StoredState.OPEN, SharedRegion): StoredState.OPEN,
    (StoredState.IN_REGION, RegionData): StoredState.IN_REGION,
    (StoredState.OPEN, SecureRegion): StoredState.SECURING,
    (StoredState.OPEN, FinishPartition): StoredState.FINISHING,
}
PIPELINED = {
    (PipelinedState.OPEN, PipelinedData): PipelinedState.OPEN,
    (PipelinedState.OPEN, FinishPartition): PipelinedState.FINISHING,
}


@pytest.mark.parametrize("message", sorted({key[1] for key in STORED}, key=str))
@pytest.mark.parametrize("state", StoredState)
def test_messages_to_a_map_output(state, message):
    after = STORED.get((state, message))
    if after is not None:
        assert after_stored(state, message, 7) is after
    else:
        with pytest.raises(MapOutputMismatch, match=f"{message.__name__} is not allowed") as caught:
            after_stored(state, message, 7)
        assert caught.value.value == f"state {state.value}"
        assert caught.value.map_attempt_id == 7


@pytest.mark.parametrize("message", sorted({key[1] for key in PIPELINED}, key=str))
@pytest.mark.parametrize("state", PipelinedState)
def test_messages_to_a_pipelined_partition(state, message):
    after = PIPELINED.get((state, message))
    if after is not None:
        assert after_pipelined(state, message, 3) is after
    else:
        with pytest.raises(UnexpectedMessage, match=f"that is {state.value}") as caught:
            after_pipelined(state, message, 3)
        assert caught.value.value == 3
