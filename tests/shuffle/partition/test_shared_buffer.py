"""A segment that one writer fills while many read it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.shuffle.errors import BufferBuilderFinished
from sluice.shuffle.memory import BufferAlreadyRecycled, NetworkBufferPool
from sluice.shuffle.partition.shared_buffer import BufferBuilder, finished_consumer

SIZE = 64


class Rig:
    def __init__(self, size: int = SIZE) -> None:
        self.network = NetworkBufferPool(2, size)
        self.pool = self.network.create_local_pool("p", 1, 2)

    def builder(self) -> BufferBuilder:
        buffer = self.pool.request_buffer_nowait()
        assert buffer is not None
        return BufferBuilder(buffer)


@pytest.fixture
def rig():
    rig = Rig()
    yield rig
    assert rig.pool.lent_segments == 0, "a reference was not given up"


def taken(consumer) -> bytes:
    piece = consumer.build()
    content = bytes(piece.payload)
    piece.recycle()
    return content


def test_finish_is_visible_once_with_all_bytes(rig):
    builder = rig.builder()
    consumer = builder.create_consumer()
    seen = []
    builder.add_finish_listener(lambda: seen.append((consumer.is_finished, consumer.unread_bytes)))
    builder.append(b"abc")
    assert builder.finish() == 3
    assert builder.finish() == 3
    assert seen == [(True, 3)]
    consumer.close()


def test_a_finished_builder_refuses_further_use(rig):
    builder = rig.builder()
    builder.append(b"x")
    builder.recycle()
    assert rig.pool.lent_segments == 0
    with pytest.raises(BufferBuilderFinished, match="append"):
        builder.append(b"y")
    with pytest.raises(BufferBuilderFinished, match="create_consumer"):
        builder.create_consumer()
    builder.recycle()


def test_the_segment_is_recycled_with_its_last_reference(rig):
    builder = rig.builder()
    consumer = builder.create_consumer()
    builder.append_and_commit(b"abc")
    piece = consumer.build()
    builder.append_and_commit(b"def")
    builder.finish()
    last = consumer.build_last()
    assert consumer.is_closed
    assert (bytes(piece.payload), bytes(last.payload)) == (b"abc", b"def")
    last.recycle()
    assert rig.pool.lent_segments == 1
    piece.recycle()
    assert rig.pool.lent_segments == 0


def test_a_slice_recycled_twice_takes_no_other_reference(rig):
    builder = rig.builder()
    consumer = builder.create_consumer()
    piece = consumer.build()
    piece.recycle()
    with pytest.raises(BufferAlreadyRecycled):
        piece.recycle()
    assert rig.pool.lent_segments == 1
    builder.finish()
    consumer.close()
    consumer.close()
    for use in (consumer.build, consumer.build_last, consumer.copy):
        with pytest.raises(BufferAlreadyRecycled):
            use()
    assert consumer.unread_bytes == 0


def test_a_buffer_that_is_complete_needs_no_builder(rig):
    buffer = rig.pool.request_buffer_nowait()
    buffer.segment.memory[:5] = b"whole"
    buffer.length = 5
    consumer = finished_consumer(buffer)
    assert consumer.is_finished
    assert consumer.unread_bytes == 5
    piece = consumer.build_last()
    assert (bytes(piece.payload), piece.length) == (b"whole", 5)
    piece.recycle()


@given(
    size=st.integers(1, 40),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.binary(max_size=12)),
            st.tuples(st.sampled_from(["commit", "copy", "from beginning"]), st.none()),
            st.tuples(st.sampled_from(["read", "close"]), st.integers(0, 5)),
        ),
        max_size=40,
    ),
)
def test_every_reader_sees_the_committed_bytes_from_its_start(size, steps):
    rig = Rig(size)
    builder = rig.builder()
    readers = [(builder.create_consumer(), bytearray())]
    closed = []
    written = committed = b""
    for step, value in steps:
        if step == "append":
            count = builder.append(value)
            assert count == min(len(value), size - len(written))
            written += value[:count]
        elif step == "commit":
            builder.commit()
            committed = written
        elif step == "from beginning":
            readers.append((builder.create_consumer(), bytearray()))
        elif readers and step == "copy":
            consumer, seen = readers[0]
            readers.append((consumer.copy(), seen.copy()))
        elif readers and step == "read":
            consumer, seen = readers[value % len(readers)]
            seen += taken(consumer)
            assert seen == committed
        elif readers and step == "close":
            closed.append(readers.pop(value % len(readers)))
            closed[-1][0].close()
        for consumer, seen in readers:
            assert consumer.unread_bytes == len(committed) - len(seen)
    assert builder.finish() == len(written)
    for consumer, seen in readers:
        seen += bytes((piece := consumer.build_last()).payload)
        piece.recycle()
        assert seen == written
    assert rig.pool.lent_segments == 0
