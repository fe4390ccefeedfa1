"""The gates of a consumer connection: their numbers, their channels, and the limit of both."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    ROLE_CONSUMER,
    AddCredit,
    BufferResponse,
    CloseGate,
    GateChannel,
    GateClosed,
    OpenGate,
)
from tests.support.bad_input import DATA, beside_a_good_client, gate_to
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES, mini_cluster
from tests.support.pipelined_clients import PipelinedReader
from tests.support.raw_client import acknowledged


@pytest.mark.parametrize(
    "numbers", [[(0, 1), (0, 2)], [(0, 1), (2, 1)], [(0, 0)], [(0, 1, 1)], [(0, 1), (1, 2)]]
)
async def test_numbers_in_use_close_the_connection(tmp_path, numbers):
    async with mini_cluster(tmp_path, 1) as cluster, beside_a_good_client(cluster) as bad:
        ack = acknowledged(await bad.greet(ROLE_CONSUMER))
        for gate, *channels in numbers:
            bad.send_message(gate_to(ack, gate, *channels))
        error = await bad.until_refused()
        assert error is not None
        assert error.code == ErrorCode.CHANNEL_IN_USE


async def test_a_channel_number_is_free_after_its_end(tmp_path):
    """Closing the first gate must not close a channel of the second one of the same number."""
    async with mini_cluster(tmp_path, 1) as cluster:
        ack = await cluster.write(0, 1, [[b"short"]])
        await cluster.write(0, 2, [[DATA]])
        client = await cluster.consumer(0)
        client.send(gate_to(ack, 0, 1))
        while True:
            message, _ = await client.receive()
            if isinstance(message, BufferResponse) and message.data_type:
                break
        client.send(gate_to(ack, 5, 1, attempt=2))
        client.send(CloseGate(0))
        await client.expect(GateClosed)
        client.send(AddCredit(1, 100))
        content = b""
        while True:
            message, payload = await client.receive()
            if isinstance(message, BufferResponse):
                if message.data_type:
                    break
                content += payload
        assert DATA.endswith(content)
        assert len(DATA) - len(content) <= SEGMENT_SIZE_BYTES  # the first came before GateClosed


async def test_a_gate_that_is_not_open_can_be_closed(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        client = await cluster.consumer(0)
        client.send(CloseGate(12))
        assert await client.receive() == (GateClosed(12), b"")


async def test_channels_of_a_consumer_are_bounded(tmp_path):
    """A gate and its channels count; a gate too many is refused, the others live on."""
    async with mini_cluster(tmp_path, 1, max_channels_per_connection=3) as cluster:
        ack = await cluster.write(0, 1, [[b"x"]])
        client = await cluster.consumer(0)
        reader = PipelinedReader(client, [(ack, 1)], credit=1)
        here = GateChannel(21, ack.taskmanager_id, ack.advertised_host, ack.data_port, [1])
        client.send(OpenGate(20, 1, 0, 1, 1, [here, replace(here, channel=22)]))
        with pytest.raises(RemoteError, match="Too many channels") as caught:
            await client.expect(BufferResponse)
        assert (caught.value.code, caught.value.limit) == (ErrorCode.LIMIT_EXCEEDED, "3")
        assert "max_channels_per_connection" in str(caught.value)
        await reader.close()
        again = PipelinedReader(client, [(ack, 1)], first_number=20)
        await again.read_all()
        assert again.data() == b"x"
        await again.close()
