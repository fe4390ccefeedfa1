"""The longest event that the wire allows, and one that is longer, through the public API."""

from __future__ import annotations

import pytest

from sluice.protocol.errors import InvalidEvent
from sluice.protocol.events import CustomEvent, encode_event
from sluice.protocol.limits import MAX_EVENT_BYTES
from sluice.shuffle.records.record_reader import ChannelEvent
from sluice.shuffle.records.serializers import BytesSerializer
from tests.support.tasks import EVERY_SOURCE, ended

SHORTEST_BYTES = len(encode_event(CustomEvent("name", bytes(300))))
"""With a length that takes as many bytes as that of the longest."""


def event_of(length: int) -> CustomEvent:
    event = CustomEvent("name", bytes(300 + length - SHORTEST_BYTES))
    assert len(encode_event(event)) == length
    return event


@pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])
@EVERY_SOURCE
async def test_an_event_of_the_greatest_length_arrives_and_a_longer_one_is_refused(
    tmp_path, tasks_from, remote
):
    longest = event_of(MAX_EVENT_BYTES)
    async with (
        tasks_from(tmp_path, remote=remote) as tasks,
        tasks.producer.open_result_partition(1, 7, 1) as partition,
        tasks.consumer.open_gate([partition.location], 0) as gate,
    ):
        writer = partition.record_writer(BytesSerializer())
        with pytest.raises(InvalidEvent):
            writer.emit_event(CustomEvent("name", longest.payload + b"!"), 0)
        writer.emit_event(longest, 0)
        assert await gate.reader(BytesSerializer()).next() == ChannelEvent(0, longest)
        assert await ended(partition, gate) == []
