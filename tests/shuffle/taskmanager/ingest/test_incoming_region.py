"""The position and the checksum of a region that is received, on either tier."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from sluice.protocol.schema import BeginRegion, RegionData
from sluice.shuffle.errors import ChecksumMismatch, MapOutputMismatch
from tests.shuffle.taskmanager.ingest.rig import DATA, SEGMENT


async def test_a_wrong_checksum_at_the_end_of_a_region(rig):
    rig.output.received(BeginRegion(0, 0, 0, [3], 1))
    with pytest.raises(ChecksumMismatch) as caught:
        rig.payload(0, b"abc")
    assert caught.value.retryable
    assert caught.value.value == f"{crc32c(b'abc'):#010x}"


@pytest.mark.parametrize(("offset", "length"), [(1, 1), (SEGMENT, 1), (0, 101)])
async def test_data_that_is_not_the_next_part(rig, offset, length):
    rig.begin([100], DATA[:100])
    with pytest.raises(MapOutputMismatch) as caught:
        rig.output.payload_buffer(RegionData(0, offset), length)
    assert caught.value.limit == "100 bytes at 0"
