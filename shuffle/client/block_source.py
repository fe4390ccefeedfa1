"""Reading blocking partitions: the blocks that a gate's buffers are made of, as buffers."""

from collections import deque

from protocol.errors import SluiceError
from protocol.events import EndOfPartition, decode_event, is_end_of_partition
from protocol.messages import DATA
from shuffle.gate.input_gate import BufferOrEvent
from shuffle.partition.blocks import BlockDecoder
from shuffle.partition.view import OutgoingBuffer
from shuffle.records.record_reader import BufferSource


class BlockSource:
    """A gate over blocking partitions, decoded. It reads like the gate.

    Args:
        gate: Its channels give the bytes of blocks, cut anywhere.
    """

    def __init__(self, gate: BufferSource) -> None:
        self._gate = gate
        self._decoders: dict[int, BlockDecoder] = {}
        self._decoded: deque[BufferOrEvent] = deque()
        self._failure: SluiceError | None = None

    @property
    def stored_bytes(self) -> int:
        """Bytes before decompression."""
        return sum(decoder.stored_bytes for decoder in self._decoders.values())

    @property
    def raw_bytes(self) -> int:
        """Bytes after it."""
        return sum(decoder.raw_bytes for decoder in self._decoders.values())

    def poll(self) -> BufferOrEvent | None:
        """Take the next buffer or event if one is there.

        Raises:
            BlockCorrupt: What a channel gave are no blocks.
            SluiceError: A channel failed.
        """
        while not self._decoded:
            taken = self._gate.poll()
            if taken is None:
                return None
            self._decode(taken)
        return self._decoded.popleft()

    async def next_buffer_or_event(self) -> BufferOrEvent | None:
        """Wait for the next buffer or event; None after the end.

        Raises:
            SluiceError: As :meth:`poll`.

        Cancellation: safe, nothing is taken.
        """
        while not self._decoded:
            taken = await self._gate.next_buffer_or_event()
            if taken is None:
                return None
            self._decode(taken)
        return self._decoded.popleft()

    def _decode(self, taken: BufferOrEvent) -> None:
        if self._failure is not None:
            if taken.buffer.release is not None:
                taken.buffer.release()
            raise self._failure.with_traceback(None)
        index, buffer = taken
        decoder = self._decoders.get(index)
        if decoder is None:
            decoder = self._decoders[index] = BlockDecoder()
        try:
            if buffer.data_type != DATA:
                if is_end_of_partition(buffer.payload):
                    decoder.finish()
                self._decoded.append(taken)
                return
            for payload, data_type in decoder.feed(buffer.payload):
                # The buffer is recycled below: what is part of it must be copied.
                content = payload if type(payload) is bytes else bytes(payload)
                if data_type != DATA and type(decode_event(content)) is EndOfPartition:
                    continue  # the channel has an end of its own
                self._decoded.append(BufferOrEvent(index, OutgoingBuffer(content, None, data_type)))
        except SluiceError as error:
            # What follows is no beginning of a block; nothing else may be made of it.
            self._failure = error
            raise
        finally:
            if buffer.release is not None:
                buffer.release()
