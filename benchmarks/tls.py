"""bench-tls: the exchange of bench-exchange with TLS, over the same exchange without TLS.

One process serves with TLS, one without, and one reads from both in turn, through a network
environment of each kind. TLS is mutual, version 1.3, with the suite that OpenSSL prefers; its cost
depends on the processor's AES instructions. Both alternate after a warm-up each; the figure is the
median of the pairwise ratios of rates.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ssl
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trustme
import uvloop

from benchmarks.bare_pair import SEGMENT_SIZE_BYTES
from benchmarks.exchange import (
    CHANNELS,
    MAP_OUTPUTS,
    child,
    environment,
    read_partitions,
    store_outputs,
)
from benchmarks.report import Report, open_console
from sluice.shuffle.gate.channel_opener import ChannelSource
from sluice.transport.connector import Address

if TYPE_CHECKING:
    from sluice.shuffle.taskmanager.environment import NetworkEnvironment

SERVING_HOST = "127.0.0.1"
READING_HOST = "127.0.0.2"
PLAIN, SECURED = "plain", "tls"
KINDS = (PLAIN, SECURED)


def make_certificates(directory: Path) -> None:
    """Make an authority and one certificate that both sides show."""
    authority = trustme.CA()
    issued = authority.issue_cert(SERVING_HOST, READING_HOST)
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    issued.private_key_and_cert_chain_pem.write_to_path(str(directory / "both.pem"))


def settings(directory: Path, kind: str) -> dict[str, Any]:
    """Return the transport settings of a kind of environment."""
    if kind == PLAIN:
        return {}
    return {
        "tls_enabled": True,
        "tls_ca_file": directory / "ca.pem",
        "tls_certificate_file": directory / "both.pem",
        "tls_key_file": directory / "both.pem",
    }


async def serve_partitions(directory: Path, kind: str) -> None:
    """Run a process with partitions; it prints its id and port and ends with its input."""
    async with environment(
        directory / kind, SERVING_HOST, None, **settings(directory, kind)
    ) as running:
        await store_outputs(running)
        print(running.taskmanager_id, running.address.port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def measure(directory: Path, pairs: int, rounds: int) -> list[dict[str, float]]:
    """Alternate both kinds; return the figures of each pair."""
    async with contextlib.AsyncExitStack() as stack:
        sides: dict[str, tuple[NetworkEnvironment, list[list[ChannelSource]]]] = {}
        for kind in KINDS:
            serving = child(kind, "--directory", str(directory), module="benchmarks.tls")
            taskmanager_id, port = stack.enter_context(serving)
            reading = await stack.enter_async_context(
                environment(directory / kind, READING_HOST, None, **settings(directory, kind))
            )
            address = Address(SERVING_HOST, port)
            sources = [
                [ChannelSource(taskmanager_id, address, range(first, MAP_OUTPUTS, CHANNELS))]
                for first in range(CHANNELS)
            ]
            sides[kind] = (reading, sources)
        runs: list[dict[str, float]] = []
        for pair in range(pairs + 1):
            run: dict[str, float] = {}
            for kind in KINDS if pair % 2 else reversed(KINDS):
                reading, sources = sides[kind]
                cpu = time.process_time()
                total, seconds = await read_partitions(reading, sources, rounds, checksum=True)
                cpu = time.process_time() - cpu
                run["bytes"] = total
                run[f"{kind}_bytes_per_second"] = total / seconds
                run[f"{kind}_receiver_cpu_us_per_buffer"] = cpu / total * SEGMENT_SIZE_BYTES * 1e6
            if pair:  # the first one warms up
                runs.append(run)
        return runs


def main() -> None:
    """Run the benchmark, or one of its child processes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--role", choices=("main", *KINDS), default="main")
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=6, help="times 160 MiB a measurement")
    arguments = parser.parse_args()
    if arguments.role != "main":
        uvloop.run(serve_partitions(arguments.directory, arguments.role))
        return
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name:
        directory = Path(name)
        make_certificates(directory)
        runs = uvloop.run(measure(directory, arguments.pairs, arguments.rounds))
    ratios = [run["tls_bytes_per_second"] / run["plain_bytes_per_second"] for run in runs]
    cpu_ratios = [
        run["tls_receiver_cpu_us_per_buffer"] / run["plain_receiver_cpu_us_per_buffer"]
        for run in runs
    ]
    gigabytes = {
        f"{kind}_gb_per_second": statistics.median(run[f"{kind}_bytes_per_second"] for run in runs)
        / 1e9
        for kind in KINDS
    }
    report = Report(
        name="tls",
        figures={
            "tls_rate_ratio": statistics.median(ratios),
            "tls_receiver_cpu_ratio": statistics.median(cpu_ratios),
            **gigabytes,
        },
        runs=runs,
        spread={
            "tls_rate_ratio": (min(ratios), max(ratios)),
            "tls_receiver_cpu_ratio": (min(cpu_ratios), max(cpu_ratios)),
        },
        versions={"openssl": ssl.OPENSSL_VERSION},
    )
    report.write()
    report.show(open_console(), {"tls_rate_ratio": "reported"})


if __name__ == "__main__":
    main()
