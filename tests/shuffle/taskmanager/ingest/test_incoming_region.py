"""The position and the checksum of a region that is received, on either tier."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from sluice.protocol.schema import BeginRegion, RegionData
from sluice.shuffle.errors import ChecksumMismatch, MapOutputMismatch
from tests.shuffle.taskmanager.ingest.rig import DATA, SEGMENT


@pytest.mark.parametrize("data", [b"abc", b""])
async def test_a_wrong_checksum_fails_the_map_output(rig, data):
    def send() -> None:
        rig.output.received(BeginRegion(0, 0, 0, [len(data)], 0xDEAD))
        rig.payload(0, data)

    with pytest.raises(ChecksumMismatch) as caught:
        send()
    assert caught.value.retryable
    assert caught.value.value == f"{crc32c(data):#010x}"
    assert caught.value.limit == "0x0000dead"


async def test_empty_region_data_is_refused(rig):
    rig.begin([100], DATA[:100])
    with pytest.raises(MapOutputMismatch, match="without data") as caught:
        rig.output.data_received(RegionData(0, 0), 0)
    assert (caught.value.value, caught.value.limit) == (0, 1)


@pytest.mark.parametrize(("offset", "length"), [(1, 1), (SEGMENT, 1), (0, 101)])
async def test_data_that_is_not_the_next_part_is_refused(rig, offset, length):
    rig.begin([100], DATA[:100])
    with pytest.raises(MapOutputMismatch) as caught:
        rig.output.payload_buffer(RegionData(0, offset), length)
    assert caught.value.value == f"{length} bytes at {offset}"
    assert caught.value.limit == "100 bytes at 0"
