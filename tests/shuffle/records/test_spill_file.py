"""The temporary file of a very long record."""

import os

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.shuffle.records.spanning_deserializer import SpillFile
from tests.support.raises_code import raises_code


def test_read_returns_the_written_bytes(tmp_path):
    spill = SpillFile(7, str(tmp_path))
    for part in (b"abc", memoryview(b"de"), bytearray(b"fg")):
        spill.write(part)
    view = spill.read()
    assert bytes(view) == b"abcdefg"
    assert view.readonly
    spill.close()
    spill.close()
    with pytest.raises(ValueError, match="released"):
        view[0]
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_a_typed_error(monkeypatch):
    class FullDisk:
        def write(self, data: memoryview) -> int:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            pass

    spill = SpillFile(7)
    spill._file.close()
    monkeypatch.setattr(spill, "_file", FullDisk())
    with raises_code(ErrorCode.STORAGE_UNAVAILABLE, "temporary file .*No space left"):
        spill.write(b"abc")


def test_a_file_that_is_too_short_is_a_typed_error():
    spill = SpillFile(1 << 20)
    spill.write(b"abc")
    with raises_code(ErrorCode.STORAGE_UNAVAILABLE, "temporary file"):
        spill.read()
    spill.close()
