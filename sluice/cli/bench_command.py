"""``sluice bench disk`` and ``sluice bench network``: can this host carry a TaskManager?"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import click

from ..transport.address import Address, InvalidAddress
from ..transport.settings import approximate_size
from . import disk_bench, network_bench
from .finite_range import FiniteRange
from .latencies import milliseconds
from .printing import one_line, print_json

MIB = 1024 * 1024


@click.group(short_help="Measure a disk or a network.")
def bench() -> None:
    """Measure a disk or a network by itself, without a TaskManager.

    The numbers are what Sluice can reach at most. Measure while nothing else runs.
    """


@bench.command("disk")
@click.argument(
    "directory", default=".", type=click.Path(path_type=Path, exists=True, file_okay=False)
)
@click.option(
    "--size",
    "size_mib",
    type=click.IntRange(1, 1024 * 1024),
    default=512,
    show_default=True,
    help="MiB to write; more than the memory of a disk's cache.",
)
@click.option(
    "--block",
    "block_kib",
    type=click.IntRange(4, 64 * 1024),
    default=1024,
    show_default=True,
    help="KiB of each write and read.",
)
@click.option(
    "--seconds",
    type=FiniteRange(min=0.1, max=600),
    default=20.0,
    show_default=True,
    help="Longest time for writes, for reads and for syncs each.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def disk(directory: Path, size_mib: int, block_kib: int, seconds: float, as_json: bool) -> None:
    """Measure writes, random reads and syncs in DIRECTORY, with a file that is removed.

    DIRECTORY should be one of data_directories, or on the same disk.
    """
    size_bytes = max(size_mib * MIB, block_kib * 1024)
    try:
        found = disk_bench.measure(directory, size_bytes, block_kib * 1024, seconds)
    except disk_bench.NoSpace as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{directory} cannot be used: {error.strerror}") from None
    if as_json:
        print_json(found)
        return
    click.echo(f"directory  {found.directory}")
    click.echo(
        f"written    {approximate_size(found.size_bytes)} in blocks of "
        f"{approximate_size(found.block_bytes)}"
    )
    click.echo(f"write      {_rate(found.write_bytes_per_second)}, synced at the end")
    click.echo(f"read       {_rate(found.read_bytes_per_second)}, in random order")
    click.echo(f"sync       {milliseconds(found.sync)}")


@bench.command("network")
@click.argument("peer", required=False, metavar="[HOST:PORT]")
@click.option("--serve", metavar="HOST:PORT", help="Answer measurements at this address instead.")
@click.option(
    "--streams",
    type=click.IntRange(1, network_bench.MAX_STREAMS),
    default=1,
    show_default=True,
    help="Connections at a time.",
)
@click.option(
    "--seconds",
    type=FiniteRange(min=0.1, max=network_bench.MAX_SECONDS),
    default=5.0,
    show_default=True,
    help="Time of each direction.",
)
@click.option(
    "--minutes",
    type=FiniteRange(min=0.01, max=60),
    default=10.0,
    show_default=True,
    help="Time after which --serve ends.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def network(
    peer: str | None,
    serve: str | None,
    streams: int,
    seconds: float,
    minutes: float,
    as_json: bool,
) -> None:
    """Measure throughput and round trips between this host and HOST:PORT.

    \b
    On one host:      sluice bench network --serve 10.0.0.1:7399
    On the other one: sluice bench network 10.0.0.1:7399

    Without HOST:PORT it measures the loopback of this host. --serve answers everyone who reaches
    the port, without a credential: name an address that only your hosts reach. It discards what it
    receives.
    """  # noqa: D301 - click keeps the lines that follow a backspace
    if serve is not None:
        _serve(_address(serve, "--serve"), minutes * 60)
        return
    server = thread = None
    if peer is None:
        server = _server(Address("127.0.0.1", 0))
        # A minute more than all measurements take.
        lifetime = (4 * seconds + 60,)
        thread = threading.Thread(target=server.serve, args=lifetime, daemon=True)
        thread.start()
        address = Address("127.0.0.1", server.port)
    else:
        address = _address(peer, "HOST:PORT")
    try:
        found = network_bench.measure(address.host, address.port, streams, seconds)
    except network_bench.BadAnswer as error:
        raise click.ClickException(
            f"{address} is not a sluice bench network --serve: {error}"
        ) from None
    except OSError as error:
        raise click.ClickException(
            f"{address} cannot be measured: {error.strerror or error}. Run there: sluice bench "
            f"network --serve {address}"
        ) from None
    finally:
        if server is not None and thread is not None:
            server.close()
            thread.join()
    if as_json:
        print_json(found)
        return
    click.echo(f"peer        {found.peer}, {found.streams} connections")
    click.echo(f"send        {_rate(found.send_bytes_per_second)}")
    click.echo(f"receive     {_rate(found.receive_bytes_per_second)}")
    click.echo(f"connect     {1000 * found.connect_seconds:.3g} ms")
    click.echo(f"round trip  {milliseconds(found.round_trip)}")


def _serve(address: Address, seconds: float) -> None:
    server = _server(address)
    click.echo(f"answering at {address} for {seconds / 60:g} minutes; Ctrl-C ends it", err=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve(seconds)


def _server(address: Address) -> network_bench.BenchServer:
    try:
        return network_bench.BenchServer(address.host, address.port)
    except OSError as error:
        raise click.ClickException(
            f"cannot listen at {address}: {error.strerror or error}. Name an address of this host "
            "and a free port"
        ) from None


def _address(text: str, name: str) -> Address:
    try:
        address = Address.parse(text)
    except InvalidAddress:
        address = None
    if address is None or not address.port:
        raise click.BadParameter(
            f'"{one_line(text)}" is not an address: write HOST:PORT', param_hint=name
        )
    return address


def _rate(bytes_per_second: float) -> str:
    return f"{approximate_size(round(bytes_per_second))}/s"
