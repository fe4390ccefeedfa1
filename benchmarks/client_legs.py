"""Clients that write map outputs to a TaskManager by TCP and read them back, in turns.

A JVM client is the plugin's without Spark (``ClientLegs.java`` among its tests), in a process of
its own. A Python client is ``sluice.shuffle.client``, in this process. Both verify the blocks that
they read, which are not compressed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from benchmarks.line_process import LineProcess, line_process
from sluice.protocol.schema import DATA, ReleaseShuffle, ShuffleReleased
from sluice.shuffle.client.client import ShuffleClient
from sluice.shuffle.client.config import ClientConfig
from sluice.shuffle.partition.blocks import BlockCodec
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.spark_integration.conf import jar_path
from sluice.spark_integration.spark_home import installed_pyspark
from tests.support.wire_clients import driver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sluice.shuffle.client.partition_location import PartitionLocation
    from sluice.transport.address import Address
    from sluice.transport.config import TransportConfig

SOURCE: Final = (
    Path(__file__).resolve().parents[1]
    / "spark_integration/jvm/src/test/java/io/sluice/benchmark/ClientLegs.java"
)
MAP_OUTPUT_BYTES: Final = 32 * 1024 * 1024
"""Bytes of a map output, in both languages."""
_SUBPARTITIONS: Final = 16
_BUFFER_BYTES: Final = 32 * 1024
_PYTHON_APPLICATION: Final = "python-legs"


class Moved(NamedTuple):
    """The cost of moving bytes: CPU is that of the client's process alone."""

    total_bytes: int
    seconds: float
    cpu_seconds: float


class Legs(Protocol):
    """The producer leg and the consumer leg of one client."""

    async def write(self, shuffle_id: int, map_outputs: int) -> Moved:
        """Write and commit map outputs, one after the other."""

    async def read(self, shuffle_id: int, map_outputs: int) -> Moved:
        """Read all subpartitions of the map outputs that this client has written."""

    async def release(self, shuffle_id: int) -> None:
        """Release the map outputs."""


# ---- JVM ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JvmLegs:
    """A JVM client.

    Attributes:
        process: The JVM.
        versions: The JVM's own account of itself.
    """

    process: LineProcess
    versions: dict[str, str]

    async def write(self, shuffle_id: int, map_outputs: int) -> Moved:
        """Write and commit map outputs, one after the other."""
        return await self._ask(f"write {shuffle_id} {map_outputs}")

    async def read(self, shuffle_id: int, map_outputs: int) -> Moved:
        """Read all subpartitions of the map outputs that this client has written."""
        return await self._ask(f"read {shuffle_id} {map_outputs}")

    async def release(self, shuffle_id: int) -> None:
        """Release the map outputs."""
        await self._ask(f"release {shuffle_id}")

    async def _ask(self, command: str) -> Moved:
        self.process.tell(command)
        answer = await self.process.answer()
        return Moved(answer["bytes"], answer["seconds"], answer["cpu_seconds"])


@contextlib.asynccontextmanager
async def jvm_legs(address: Address, transport: TransportConfig) -> AsyncIterator[JvmLegs]:
    """Run a JVM client.

    Raises:
        RuntimeError: There is no Java, or the JVM has ended, and says why on its standard error.
    """
    api = ":".join(map(str, installed_pyspark().glob("jars/slf4j-api-*.jar")))
    files = (
        (transport.tls_ca_file, transport.tls_certificate_file, transport.tls_key_file)
        if transport.tls_enabled
        else ()
    )
    with line_process(
        "-Dslf4j.internal.verbosity=ERROR",  # there is no logger but the API
        *("-cp", f"{jar_path()}:{api}"),
        str(SOURCE),
        address.host,
        str(address.port),
        *map(str, files),
        program=_java(),
    ) as process:
        told = await process.answer()
        uses = "uses the processor's AES" if told["aes"] else "does not use the processor's AES"
        yield JvmLegs(process, {"jdk": f"{told['jdk']}, {uses}"})


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        raise RuntimeError("there is no Java: install a JDK, or set JAVA_HOME to its directory")
    return java


# ---- Python -------------------------------------------------------------------------------------


class PythonLegs:
    """A Python client in this process.

    Args:
        client: A connected client.
        address: Address of the TaskManager.
        transport: Settings of its connections.
    """

    def __init__(self, client: ShuffleClient, address: Address, transport: TransportConfig) -> None:
        self._client = client
        self._address = address
        self._transport = transport
        self._data = os.urandom(_BUFFER_BYTES)
        self._locations: list[PartitionLocation] = []

    async def write(self, shuffle_id: int, map_outputs: int) -> Moved:
        """Write and commit map outputs, one after the other."""
        self._locations.clear()
        started = _Started()
        for number in range(map_outputs):
            async with self._client.open_result_partition(
                shuffle_id,
                number,
                _SUBPARTITIONS,
                partition_type=ResultPartitionType.BLOCKING,
                codec=BlockCodec.NONE,
            ) as partition:
                self._locations.append(partition.location)
                for buffer in range(MAP_OUTPUT_BYTES // _BUFFER_BYTES):
                    await partition.emit_buffer(self._data, buffer % _SUBPARTITIONS)
        return started.moved(map_outputs * MAP_OUTPUT_BYTES)

    async def read(self, shuffle_id: int, map_outputs: int) -> Moved:
        """Read all subpartitions of the map outputs that this client has written."""
        started = _Started()
        total = 0
        for subpartition in range(_SUBPARTITIONS):
            async with self._client.open_gate(self._locations, subpartition) as gate:
                while (taken := await gate.next_buffer_or_event()) is not None:
                    payload, release, data_type = taken.buffer
                    if data_type == DATA:
                        total += len(payload)
                    if release is not None:
                        release()
        return started.moved(total)

    async def release(self, shuffle_id: int) -> None:
        """Release the map outputs."""
        connection = await driver(self._address, _PYTHON_APPLICATION, self._transport)
        connection.send(ReleaseShuffle(shuffle_id))
        await connection.expect(ShuffleReleased)
        await connection.close()


@contextlib.asynccontextmanager
async def python_legs(address: Address, transport: TransportConfig) -> AsyncIterator[PythonLegs]:
    """Connect a Python client."""
    config = ClientConfig(transport=transport)
    async with await ShuffleClient.connect(address, _PYTHON_APPLICATION, config) as client:
        yield PythonLegs(client, address, transport)


class _Started:
    """The clocks when the bytes began to move."""

    def __init__(self) -> None:
        self._cpu = time.process_time()
        self._began = time.perf_counter()

    def moved(self, total_bytes: int) -> Moved:
        """Return the cost so far."""
        seconds = time.perf_counter() - self._began
        return Moved(total_bytes, seconds, time.process_time() - self._cpu)
