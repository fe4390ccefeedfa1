"""Payloads of any shape become one row of bytes."""

from __future__ import annotations

import pytest

from sluice.protocol.errors import SluiceError
from sluice.shuffle.records.spanning_serializer import flat


@pytest.mark.parametrize("shape", [(6,), (2, 3), (3, 2, 1)])
def test_a_view_of_several_dimensions_is_one_row_of_bytes(shape):
    found = flat(memoryview(b"abcdef").cast("B", shape))
    assert (found.ndim, found.format, bytes(found)) == (1, "B", b"abcdef")


def test_a_view_with_gaps_is_refused():
    with pytest.raises(SluiceError, match="not contiguous"):
        flat(memoryview(b"abcdef")[::2])
