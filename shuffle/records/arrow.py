"""Arrow record batches as records: one batch is one record, in Arrow's IPC stream format.

Needs pyarrow, which nothing else of a TaskManager does; it is imported at the first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from shuffle.records.errors import MalformedElement
from shuffle.records.framing import BytesLike

if TYPE_CHECKING:
    import pyarrow


class ArrowSerializer:
    """Values are ``pyarrow.RecordBatch``; each carries its schema, so batches may differ.

    The reader's batch owns its memory. A batch that spanned buffers (one of any use does) has been
    put together in memory of its own already and is not copied again.

    Raises:
        ModuleNotFoundError: pyarrow is not installed.
    """

    borrows = False

    def __init__(self) -> None:
        self._arrow: Any = importlib.import_module("pyarrow")
        self._ipc: Any = importlib.import_module("pyarrow.ipc")

    def serialize(self, value: "pyarrow.RecordBatch") -> memoryview:
        """Return the batch in the IPC stream format."""
        if not isinstance(value, self._arrow.RecordBatch):
            raise MalformedElement("Value is no Arrow record batch", value=type(value).__name__)
        sink = self._arrow.BufferOutputStream()
        with self._ipc.new_stream(sink, value.schema) as writer:
            writer.write_batch(value)
        return memoryview(sink.getvalue())

    def deserialize(self, payload: BytesLike) -> "pyarrow.RecordBatch":
        """Return the batch.

        Raises:
            MalformedElement: Not an IPC stream with exactly one batch.
        """
        if isinstance(payload, memoryview):  # borrowed: the batch would outlive it
            payload = bytes(payload)
        try:
            with self._ipc.open_stream(self._arrow.py_buffer(payload)) as reader:
                batches = list(reader)
            for batch in batches:
                batch.validate(full=True)
        except (self._arrow.ArrowException, OSError, EOFError) as error:
            raise MalformedElement("Record is no Arrow IPC stream", value=str(error)) from error
        if len(batches) != 1:
            raise MalformedElement("Record is no single Arrow batch", value=len(batches), limit=1)
        return batches[0]
