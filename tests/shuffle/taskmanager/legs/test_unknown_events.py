"""Malformed events of another TaskManager: the channel fails by name, the others go on."""

from __future__ import annotations

import asyncio

import msgpack
import pytest

from sluice.protocol import schema as m
from sluice.protocol.errors import ErrorCode
from tests.support.bad_input import asked, check_the_other_channel
from tests.support.fuzz_streams import frame
from tests.support.fuzz_target import sent, target

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])

BAD_EVENTS = {
    "an unknown event": (m.EVENT, msgpack.packb([99])),
    "no msgpack": (m.EVENT, b"\xc1"),
    "totals below zero": (m.EVENT, msgpack.packb([1, -1, -1])),
    "an unknown event that overtakes": (m.PRIORITY_EVENT, msgpack.packb([99])),
    "an unknown event that blocks": (m.BLOCKING_EVENT, msgpack.packb([99])),
}


@one_loop
@pytest.mark.parametrize("name", BAD_EVENTS)
async def test_an_unknown_event_fails_its_channel(tmp_path, name):
    data_type, payload = BAD_EVENTS[name]
    async with target(tmp_path) as made:
        client, peer = await asked(made)
        assert await peer.feed(frame(m.BufferResponse(0, 0, 0, data_type), payload))
        for _ in range(10):
            await asyncio.sleep(0)
        errors = [said for said in sent(client) if isinstance(said, m.ErrorResponse)]
        assert [(error.channel, error.code) for error in errors] == [(0, ErrorCode.INVALID_EVENT)]
        assert m.CancelPartitionRequest(0) in sent(peer)
        await check_the_other_channel(made, client, peer)
        await made.check()
