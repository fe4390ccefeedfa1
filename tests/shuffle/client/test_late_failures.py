"""A client's partition that fails between two steps of its end."""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol.errors import SluiceError
from sluice.protocol.remote_error import RemoteError, error_response
from sluice.protocol.schema import FinishPartition
from tests.shuffle.client.rig import ProducerRig, turns, write

BROKEN = SluiceError("broken on purpose")


async def refused(partition, rig):
    rig.leg.message_received(error_response(partition.number, BROKEN), 0)


async def failed(partition, rig):
    partition.fail(BROKEN)


@pytest.mark.parametrize(("end", "error"), [(refused, RemoteError), (failed, SluiceError)])
@pytest.mark.parametrize("turns_before", range(5))
async def test_finish_ends_with_a_failure_that_comes_at_any_turn(end, error, turns_before):
    """Also in the turn between the last buffer's and FinishPartition's."""
    rig = ProducerRig(answer_timeout_seconds=5)
    partition = await rig.partition()
    partition.credit_granted(1)
    write(partition, 0, b"abc")
    partition.flush_all()
    await turns()
    finishing = asyncio.create_task(partition.finish())
    await turns(turns_before)
    is_told = any(type(message) is FinishPartition for message in rig.connection.sent)
    await end(partition, rig)
    with pytest.raises(error, match="broken on purpose"):
        await finishing
    if not is_told:
        assert not any(type(message) is FinishPartition for message in rig.connection.sent)
    partition.release()
    assert rig.all_memory_is_back()


@pytest.mark.parametrize("end", [refused, failed])
async def test_a_failure_while_the_connection_is_about_to_send_harms_no_other(end):
    """The partition has its turn on the connection after its end."""
    rig = ProducerRig()
    partition, other = await rig.partition(segments=4), await rig.partition(segments=4)
    write(partition, 0, b"abc")
    finishing = asyncio.create_task(partition.finish())
    await turns()
    partition.credit_granted(1)
    await end(partition, rig)
    await turns()
    assert rig.connection.aborted is None
    with pytest.raises(SluiceError, match="broken on purpose"):
        await finishing
    other.credit_granted(1)
    write(other, 0, b"def").finish()
    await turns()
    assert rig.connection.payloads[-1] == b"def"
    for each in (partition, other):
        each.release()
    assert rig.all_memory_is_back()
