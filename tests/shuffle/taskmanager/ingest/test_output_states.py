"""Every message to an output in every state, and its end in every state, as a table."""

from __future__ import annotations

import os

import pytest
from crc32c import crc32c

from sluice.protocol import schema as m
from sluice.protocol.errors import UnexpectedMessage
from sluice.shuffle.errors import MapOutputMismatch, PartitionReleased
from sluice.shuffle.taskmanager.ingest.output_states import OutputMessage, StoredState
from sluice.shuffle.taskmanager.ingest.pipelined_output import PipelinedOutput
from sluice.shuffle.taskmanager.store.region_area import RegionArea
from tests.shuffle.taskmanager.ingest.rig import DATA, SEGMENT, StoredRig

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])  # a table: no loop matters
TWO = DATA[: 2 * SEGMENT]
MESSAGES: tuple[OutputMessage | m.RegionData, ...] = (
    m.BeginRegion(0, 1, 0, [len(TWO)], crc32c(TWO)),
    m.SharedRegion(0, 1, 0, [1], 0, 0),
    m.RegionData(0, 0),
    m.SecureRegion(0, 0),
    m.ReplicatePartition(0, 2, False),
    m.ReplicateToRemote(0, True),
    m.CopyOf(0, "tm-1", 2, False),
    m.FinishPartition(0, 3, 1),
)
# The state after each message, and after the end. An empty cell is a mismatch, – is ignored.
TABLE = """
          | Begin    | Shared| RegionData| Secure  | Replicate| Remote  | Copy| Finish   | end
OPEN      | IN_REGION| OPEN  |           | SECURING| OPEN     | OPEN    | OPEN| FINISHING| ABORTED
IN_REGION |          |       | ARRIVING  |         |          |         |     |          | ABORTED
ARRIVING  |          |       | IN_REGION |         |          |         |     |          | STRANDED
SECURING  |          |       |           |         | SECURING | SECURING|     |          | ABORTED
FINISHING |          |       |           |         |          |         |     | twice    | ABORTED
COMMITTING| –        | –     | –         | –       | –        | –       | –   | –       | COMMITTING
"""
ROWS = {
    name.strip(): [cell.strip() for cell in cells]
    for name, *cells in (line.split("|") for line in TABLE.strip("\n").splitlines())
}


async def reach(rig: StoredRig, state: str) -> None:
    """Write a region, and lead the map output from OPEN to a state."""
    rig.begin([3], b"abc")
    rig.payload(0, b"abc")
    if state in ("IN_REGION", "ARRIVING"):
        say(rig, MESSAGES[0])
    if state == "ARRIVING":
        rig.begin_payload(0, TWO[:SEGMENT])
    elif state == "SECURING":
        say(rig, MESSAGES[3])
    elif state in ("FINISHING", "COMMITTING"):
        say(rig, MESSAGES[-1])
    if state == "COMMITTING":
        await rig.until_committing()
    assert rig.output.state.name == state


def say(rig: StoredRig, message: OutputMessage | m.RegionData) -> None:
    if not isinstance(message, m.RegionData):
        rig.output.received(message)
    elif rig.output.state is StoredState.ARRIVING:
        rig.output.data_received(message, SEGMENT)
    else:
        rig.output.payload_buffer(message, 1)


@pytest.mark.parametrize("column", range(len(MESSAGES)), ids=lambda n: type(MESSAGES[n]).__name__)
@pytest.mark.parametrize("state", list(ROWS)[1:])
async def test_each_message_leads_to_the_state_of_the_table(rig, tmp_path, state, column):
    await reach(rig, state)
    memory = os.memfd_create("area")
    area = RegionArea("app", tmp_path / "area", memory, SEGMENT, lambda _: None)
    rig.outputs.attached_area._area = area
    message, after = MESSAGES[column], ROWS[state][column]
    if after == "twice":
        with pytest.raises(UnexpectedMessage, match="came twice"):
            say(rig, message)
    elif after:
        say(rig, message)
        assert rig.output.state.name == (state if after == "–" else after)
    else:
        with pytest.raises(MapOutputMismatch, match=type(message).__name__) as caught:
            say(rig, message)
        assert caught.value.map_attempt_id == 1
        assert str(caught.value.limit).startswith("state ")
        assert caught.value.value == f"state {rig.output.state.value}"
        assert rig.output.state.name == state
    rig.outputs.attached_area.detach()


@pytest.mark.parametrize("state", list(ROWS)[1:])
async def test_the_end_leads_to_the_state_of_the_table(rig, state):
    await reach(rig, state)
    rig.outputs.fail(0, PartitionReleased("Map output was resumed on another connection"))
    assert rig.output.state.name == ROWS[state][-1]


async def test_a_finished_pipelined_partition_refuses_messages(rig):
    output = PipelinedOutput(
        rig.outputs, m.OpenPipelinedPartition(1, 2, 1, 1, m.PARTITION_PIPELINED, 0)
    )
    output.open()
    output.received(m.FinishPartition(1, 0, 0))
    data = m.PipelinedData(1, 0, m.DATA)
    for refused in (
        lambda: output.payload_buffer(data, 1),
        lambda: output.data_received(data, 1),
        lambda: output.received(m.FinishPartition(1, 0, 0)),
    ):
        with pytest.raises(UnexpectedMessage, match="that is finishing") as caught:
            refused()
        assert (caught.value.value, caught.value.limit) == (1, "open")
