"""bench-tls: what TLS costs between TaskManagers, and between clients and a TaskManager.

One process serves with TLS, one without, and all others come to both in turn. TLS is mutual,
version 1.3, with the suite that OpenSSL and the JDK prefer; its cost depends on the processor's AES
instructions. Three legs are measured, each by itself:

* the exchange of bench-exchange, through a network environment of each kind;
* a JVM client without Spark that writes map outputs and reads them back, one task at a time;
* a Python client that does the same.

What OpenSSL alone takes, in one thread without a socket, is ``openssl_PART_seconds_per_gb``: to
encrypt, to decrypt, and to copy encrypted bytes into and out of its memory.

Both kinds alternate after a warm-up each, which is longer for the JVMs: they compile AES-GCM only
after some seconds. A figure is the median of the pairwise ratios of rates. Client and TaskManager
run at the same time, so on two idle cores the slower side decides; with other load on the machine
the figures say nothing. ``tls_rate_ratio_jvm`` is of the time to write and to read together.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import ssl
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import trustme
import uvloop
from cryptography.hazmat.primitives import serialization

from benchmarks.bare_pair import SEGMENT_SIZE_BYTES
from benchmarks.client_legs import MAP_OUTPUT_BYTES, Legs, jvm_legs, python_legs
from benchmarks.exchange import (
    CHANNELS,
    MAP_OUTPUTS,
    child,
    environment,
    read_partitions,
    store_outputs,
)
from benchmarks.report import Report, median_and_spread, open_console
from sluice.shuffle.gate.channel_opener import ChannelSource
from sluice.transport.address import Address
from sluice.transport.config import TransportConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from sluice.shuffle.taskmanager.wiring import NetworkEnvironment

SERVING_HOST = "127.0.0.1"
READING_HOST = "127.0.0.2"
PLAIN, SECURED = "plain", "tls"
KINDS = (PLAIN, SECURED)
JVM, PYTHON = "jvm", "python"
CLIENTS: Final = (JVM, PYTHON)
RATIOS: Final = {
    "tls_rate_ratio": "exchange",
    "tls_rate_ratio_jvm": "jvm",
    "jvm_write_tls_rate_ratio": "jvm_write",
    "jvm_read_tls_rate_ratio": "jvm_read",
    "python_write_tls_rate_ratio": "python_write",
    "python_read_tls_rate_ratio": "python_read",
}
"""Each figure, and the leg that it is the ratio of."""
AIM: Final = "≥ 0.7"
MESSAGE_BYTES: Final = 256 * 1024
OPENSSL_PARTS: Final = ("encrypt", "copy", "decrypt")
AES_FLAGS: Final = ("aes", "pclmulqdq", "vaes", "vpclmulqdq", "pmull")
"""Flags of a processor that encrypts AES-GCM in hardware; the last of them is of ARM."""
_JVM_LEGS: Final = ("jvm_write", "jvm_read")


@dataclass(frozen=True, slots=True)
class Effort:
    """The bytes and the repetitions of a measurement.

    Attributes:
        pairs: Pairs that count, of a measurement with TLS and one without.
        rounds: Times that the 160 MiB of the exchange are read.
        map_outputs: Map outputs of 32 MiB that each client writes and reads.
        jvm_warm_up: Pairs of the JVM clients before those that count.
        openssl_messages: Messages of 256 KiB that OpenSSL encrypts and decrypts.
    """

    pairs: int
    rounds: int
    map_outputs: int
    jvm_warm_up: int
    openssl_messages: int = 1000


@dataclass(frozen=True, slots=True)
class Side:
    """One process that serves, and all that comes to it."""

    reading: NetworkEnvironment
    sources: Sequence[Sequence[ChannelSource]]
    clients: Mapping[str, Legs]


def make_certificates(directory: Path) -> None:
    """Make an authority, and one certificate with its key that all sides show."""
    authority = trustme.CA()
    issued = authority.issue_cert(SERVING_HOST, READING_HOST)
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    issued.cert_chain_pems[0].write_to_path(str(directory / "both.pem"))
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    (directory / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,  # the JVM reads no other
            serialization.NoEncryption(),
        )
    )


def settings(directory: Path, kind: str) -> dict[str, Any]:
    """Return the transport settings of a kind of environment."""
    if kind == PLAIN:
        return {}
    return {
        "tls_enabled": True,
        "tls_ca_file": directory / "ca.pem",
        "tls_certificate_file": directory / "both.pem",
        "tls_key_file": directory / "key.pem",
    }


async def serve_partitions(directory: Path, kind: str) -> None:
    """Run a process with partitions; it prints its id and port and ends with its input."""
    async with environment(directory / kind, SERVING_HOST, **settings(directory, kind)) as running:
        await store_outputs(running)
        print(running.taskmanager_id, running.address.port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


@contextlib.asynccontextmanager
async def side_of(directory: Path, kind: str) -> AsyncIterator[tuple[Side, dict[str, str]]]:
    """Run all processes of a kind; give the JVM's versions too."""
    transport = settings(directory, kind)
    config = TransportConfig(**transport)
    with child(kind, "--directory", str(directory), module="benchmarks.tls") as (name, port):
        address = Address(SERVING_HOST, port)
        sources = [
            [ChannelSource(name, address, range(first, MAP_OUTPUTS, CHANNELS))]
            for first in range(CHANNELS)
        ]
        async with (
            environment(directory / kind, READING_HOST, **transport) as reading,
            jvm_legs(address, config) as jvm,
            python_legs(address, config) as python,
        ):
            yield Side(reading, sources, {JVM: jvm, PYTHON: python}), jvm.versions


def openssl_seconds(directory: Path, messages: int) -> dict[str, float]:
    """Encrypt and decrypt messages of 256 KiB in memory; return CPU seconds of each part for a GB.

    Raises:
        RuntimeError: Other bytes came out than went in.
    """
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    accepting.load_cert_chain(directory / "both.pem", directory / "key.pem")
    connecting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    connecting.load_verify_locations(directory / "ca.pem")
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sender = connecting.wrap_bio(back, there, server_hostname=SERVING_HOST)
    receiver = accepting.wrap_bio(there, back, server_side=True)
    for side in (sender, receiver, sender, receiver):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    data = os.urandom(MESSAGE_BYTES)
    received = memoryview(bytearray(MESSAGE_BYTES))
    spent = dict.fromkeys(OPENSSL_PARTS, 0.0)
    for _ in range(messages):
        marks = [time.thread_time()]
        sender.write(data)
        marks.append(time.thread_time())
        there.write(there.read())
        marks.append(time.thread_time())
        filled = 0
        while filled < MESSAGE_BYTES:
            # With a buffer ``read`` returns the number of bytes.
            rest = cast("bytearray", received[filled:])
            filled += cast("int", receiver.read(MESSAGE_BYTES - filled, rest))
        marks.append(time.thread_time())
        for part, (begin, end) in zip(OPENSSL_PARTS, pairwise(marks), strict=True):
            spent[part] += end - begin
    if received != data:
        raise RuntimeError("the decrypted bytes are not those that were encrypted")
    gb = messages * MESSAGE_BYTES / 1e9
    return {f"openssl_{part}_seconds_per_gb": seconds / gb for part, seconds in spent.items()}


async def measure_exchange(side: Side, rounds: int) -> dict[str, float]:
    """Read what the other TaskManager stores; return the rate and the CPU of the reading one."""
    cpu = time.process_time()
    total, seconds = await read_partitions(side.reading, side.sources, rounds, checksum=True)
    cpu = time.process_time() - cpu
    return {
        "exchange_bytes_per_second": total / seconds,
        "exchange_cpu_us_per_buffer": cpu / total * SEGMENT_SIZE_BYTES * 1e6,
    }


async def measure_client(client: str, legs: Legs, map_outputs: int) -> dict[str, float]:
    """Write map outputs, read and release them; return rates, and the CPU of the client.

    Raises:
        RuntimeError: Not every byte came back.
    """
    written = await legs.write(0, map_outputs)
    read = await legs.read(0, map_outputs)
    await legs.release(0)
    expected = map_outputs * MAP_OUTPUT_BYTES
    if written.total_bytes != expected or read.total_bytes != expected:
        raise RuntimeError(
            f"{client}: {written.total_bytes} written, {read.total_bytes} read, not {expected}"
        )
    both = written.seconds + read.seconds
    found = {f"{client}_bytes_per_second": expected / both}
    for leg, moved in (("write", written), ("read", read)):
        found[f"{client}_{leg}_bytes_per_second"] = expected / moved.seconds
        found[f"{client}_{leg}_cpu_us_per_buffer"] = (
            moved.cpu_seconds / expected * SEGMENT_SIZE_BYTES * 1e6
        )
    return found


async def measure_pair(sides: Mapping[str, Side], number: int, effort: Effort) -> dict[str, float]:
    """Measure each leg with and without TLS, one right after the other."""
    order = KINDS if number % 2 else KINDS[::-1]
    run: dict[str, float] = {}
    for kind in order:
        run |= of_kind(kind, await measure_exchange(sides[kind], effort.rounds))
    for client in CLIENTS:
        for kind in order:
            run |= of_kind(
                kind, await measure_client(client, sides[kind].clients[client], effort.map_outputs)
            )
    return run


def of_kind(kind: str, found: Mapping[str, float]) -> dict[str, float]:
    """Return the figures under the name of their kind."""
    return {f"{kind}_{key}": value for key, value in found.items()}


async def measure(directory: Path, effort: Effort) -> tuple[list[dict[str, float]], dict[str, str]]:
    """Alternate both kinds; return the figures of each pair, and the JVM's versions."""
    async with contextlib.AsyncExitStack() as stack:
        sides: dict[str, Side] = {}
        versions: dict[str, str] = {}
        for kind in KINDS:
            sides[kind], versions = await stack.enter_async_context(side_of(directory, kind))
        for _ in range(effort.jvm_warm_up):
            for side in sides.values():
                await measure_client(JVM, side.clients[JVM], effort.map_outputs)
        runs = [
            await measure_pair(sides, number, effort)
            | openssl_seconds(directory, effort.openssl_messages)
            for number in range(effort.pairs + 1)
        ]
        return runs[1:], versions  # the first one warms up


def processor_aes() -> str:
    """Return the processor's flags for AES-GCM, or "unknown"."""
    try:
        words = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return "unknown"
    return " ".join(flag for flag in AES_FLAGS if flag in words) or "none"


def report_of(runs: Sequence[Mapping[str, float]], versions: Mapping[str, str]) -> Report:
    """Make the report.

    Args:
        runs: The figures of each pair.
        versions: The JVM's versions.
    """
    figures: dict[str, float] = {}
    spread: dict[str, tuple[float, float]] = {}

    def add(figure: str, key: str) -> None:
        ratios = [run[f"{SECURED}_{key}"] / run[f"{PLAIN}_{key}"] for run in runs]
        figures[figure], spread[figure] = median_and_spread(ratios)

    for figure, leg in RATIOS.items():
        add(figure, f"{leg}_bytes_per_second")
    add("tls_receiver_cpu_ratio", "exchange_cpu_us_per_buffer")
    for leg in _JVM_LEGS:
        add(f"{leg}_tls_cpu_ratio", f"{leg}_cpu_us_per_buffer")
    for leg in RATIOS.values():
        for kind in KINDS:
            rates = [run[f"{kind}_{leg}_bytes_per_second"] / 1e9 for run in runs]
            key = f"{kind}_gb_per_second" if leg == "exchange" else f"{leg}_{kind}_gb_per_second"
            figures[key], spread[key] = median_and_spread(rates)
    for part in OPENSSL_PARTS:
        key = f"openssl_{part}_seconds_per_gb"
        figures[key], spread[key] = median_and_spread([run[key] for run in runs])
    return Report(
        name="tls",
        figures=figures,
        runs=runs,
        spread=spread,
        versions={"openssl": ssl.OPENSSL_VERSION, "aes": processor_aes()} | dict(versions),
    )


def main() -> None:
    """Run the benchmark, or one of its child processes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--role", choices=("main", *KINDS), default="main")
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=6, help="times 160 MiB an exchange")
    parser.add_argument(
        "--map-outputs", type=int, default=12, help="of 32 MiB, of each client, at most 14"
    )
    parser.add_argument("--jvm-warm-up", type=int, default=4, help="pairs of the JVM clients")
    arguments = parser.parse_args()
    if arguments.role != "main":
        uvloop.run(serve_partitions(arguments.directory, arguments.role))
        return
    effort = Effort(arguments.pairs, arguments.rounds, arguments.map_outputs, arguments.jvm_warm_up)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name:
        directory = Path(name)
        make_certificates(directory)
        runs, versions = uvloop.run(measure(directory, effort))
    report = report_of(runs, versions)
    report.write()
    console = open_console()
    report.show(console, dict.fromkeys(RATIOS, AIM))
    for name, version in report.versions.items():
        console.print(f"{name}: {version}")


if __name__ == "__main__":
    main()
