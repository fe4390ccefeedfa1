"""``sluice inspect``: a shuffle down to its map attempts and regions, live or on a disk."""

from __future__ import annotations

import logging
import urllib.parse
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from ..protocol.access_token import SCOPE_STATUS
from ..protocol.errors import SluiceError
from ..protocol.identity import plain_name
from ..shuffle.names import ShuffleKey
from ..shuffle.taskmanager.status.status import InvalidStatus
from ..shuffle.taskmanager.status.table import Table
from ..shuffle.taskmanager.store.shuffle_page import (
    DEFAULT_OUTPUTS,
    MAX_OUTPUTS,
    OutputDetail,
    ShufflePage,
    resolve,
)
from ..shuffle.taskmanager.store.store_status import ShuffleStatus
from ..shuffle.taskmanager.store.stored_directories import read_directories
from ..transport.settings import approximate_size
from .endpoints import fetch_status
from .http_client import Given, default_url, fetch_json, http_url, proof_options
from .printing import one_line, print_json, print_tables
from .reports import InspectReport

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..shuffle.taskmanager.store.stored_directories import StoredDirectories

_STORE_LOGGER: Final = logging.getLogger("sluice.shuffle.taskmanager.store")


@click.command("inspect", short_help="Show the map outputs of a shuffle.")
@click.argument("shuffle", required=False, metavar="[APPLICATION/SHUFFLE]")
@click.option("--url", metavar="URL", help="HTTP port of a TaskManager; as for sluice status.")
@click.option(
    "--directory",
    "directories",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A storage directory to read instead; give it once for each directory.",
)
@click.option(
    "--verify/--no-verify",
    default=True,
    help="Compare the checksums of the regions in directories.  [default: verify]",
)
@click.option("--first", type=click.IntRange(min=0), default=0, help="Begin at this map attempt.")
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_OUTPUTS),
    default=DEFAULT_OUTPUTS,
    show_default=True,
    help="Maximum number of map outputs to show.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@proof_options
def inspect(  # noqa: PLR0913 - one parameter for each option
    shuffle: str | None,
    url: str | None,
    directories: tuple[Path, ...],
    verify: bool,
    first: int,
    limit: int,
    as_json: bool,
    secret_file: Path | None,
    token_file: Path | None,
) -> None:
    """Show each map output of SHUFFLE, a number, of APPLICATION, and the regions of each.

    Without APPLICATION/SHUFFLE all shuffles are listed. A TaskManager that runs is asked at its
    HTTP port. With --directory the journals and arenas on this host are read, without changing
    anything: the TaskManager may run or not. Name all its directories, since a map output may have
    regions in several. The checksums of all shuffles, or of the named one, are verified then.

    Exit code 1 if a journal is damaged, or a region does not have its checksum.
    """
    if directories and url:
        raise click.UsageError("--url asks a TaskManager, --directory reads a disk: leave one out")
    key = None if shuffle is None else _key(shuffle)
    if directories:
        report = _on_disk(directories, key, first, limit, verify=verify)
    else:
        token = Given(secret_file, token_file).token(SCOPE_STATUS)
        report = _live(http_url(url or default_url()), token, key, first, limit)
    if as_json:
        print_json(report)
    else:
        _show(report)
    if report.problems:
        click.get_current_context().exit(1)


def _key(text: str) -> ShuffleKey:
    application, _, number = text.rpartition("/")
    if not application or not (number.isascii() and number.isdecimal()) or len(number) > 18:
        raise click.BadParameter(
            f'"{one_line(text)}" is not APPLICATION/SHUFFLE, such as app-20261129-0001/3; '
            "sluice inspect alone lists all",
            param_hint="APPLICATION/SHUFFLE",
        )
    return ShuffleKey(application, int(number))


def _live(url: str, token: str, key: ShuffleKey | None, first: int, limit: int) -> InspectReport:
    if key is None:
        _, status = fetch_status(url, token)
        return InspectReport((url,), status.partitions, None, ())
    name = urllib.parse.quote(key.application_id, safe="")
    path = f"/api/v1/shuffles/{name}/{key.shuffle_id}?first={first}&limit={limit}"
    try:
        page = msgspec.convert(fetch_json(url, path, token=token), ShufflePage)
    except InvalidStatus as error:
        raise click.ClickException(
            f"{url} does not show {one_line(str(key))}: {error}. See what it has: sluice inspect "
            f"--url {url}"
        ) from None
    except msgspec.ValidationError as error:
        raise click.ClickException(f"{url} answered something else: {error}") from None
    return InspectReport((url,), (), page, ())


def _on_disk(
    directories: Sequence[Path], key: ShuffleKey | None, first: int, limit: int, *, verify: bool
) -> InspectReport:
    with _collected() as messages:
        try:
            stored = read_directories(directories)
            listed = _outputs(stored, key, verify=verify)
        except SluiceError as error:
            raise click.ClickException(str(error)) from None
    found: dict[ShuffleKey, list[OutputDetail]] = {}
    problems = [*stored.problems, *messages]
    for owner, output in listed:
        found.setdefault(owner, []).append(output)
        problems += [
            f"map attempt {output.map_attempt_id} of {owner}, region {number}: {region.problem}"
            for number, region in enumerate(output.regions)
            if region.problem
        ]
    sources = tuple(str(each) for each in directories)
    shown = tuple(one_line(each) for each in dict.fromkeys(problems))
    if key is None:
        return InspectReport(sources, tuple(_summary(*each) for each in found.items()), None, shown)
    try:
        names = dict.fromkeys(owner.application_id for owner in found)
        owner = ShuffleKey(resolve(key.application_id, names), key.shuffle_id)
    except SluiceError as error:
        raise click.ClickException(str(error)) from None
    outputs = sorted(found.get(owner, []), key=lambda each: each.map_attempt_id)
    total = _summary(owner, outputs)
    ahead = [each for each in outputs if each.map_attempt_id >= first]
    page = ShufflePage(
        owner.application_id,
        owner.shuffle_id,
        total.committed_map_outputs,
        total.stored_bytes,
        tuple(ahead[:limit]),
        ahead[limit].map_attempt_id if len(ahead) > limit else None,
    )
    return InspectReport(sources, (), page, shown)


def _outputs(
    stored: StoredDirectories, wanted: ShuffleKey | None, *, verify: bool
) -> list[tuple[ShuffleKey, OutputDetail]]:
    def is_wanted(key: ShuffleKey) -> bool:
        return wanted is None or (
            key.shuffle_id == wanted.shuffle_id
            and wanted.application_id in (key.application_id, plain_name(key.application_id))
        )

    return stored.outputs(is_wanted, verify=verify)


def _summary(key: ShuffleKey, outputs: Sequence[OutputDetail]) -> ShuffleStatus:
    committed = [each for each in outputs if each.state == "committed"]
    return ShuffleStatus(
        *key,
        len(committed),
        len(outputs) - len(committed),
        sum(each.length_bytes for each in committed),
        sum(len(each.regions) for each in committed),
    )


@contextmanager
def _collected() -> Iterator[list[str]]:
    """Collect what the store would log, instead of printing it."""
    messages: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    collector, propagates = Collector(logging.WARNING), _STORE_LOGGER.propagate
    _STORE_LOGGER.addHandler(collector)
    _STORE_LOGGER.propagate = False
    try:
        yield messages
    finally:
        _STORE_LOGGER.removeHandler(collector)
        _STORE_LOGGER.propagate = propagates


def _show(report: InspectReport) -> None:
    page = report.shuffle
    if page is None:
        print_tables([_shuffles(report.shuffles)])
        if not report.shuffles:
            click.echo("no map outputs")
    else:
        name = one_line(f"shuffle {page.shuffle_id} of {page.application_id}")
        size = approximate_size(page.stored_bytes)
        click.echo(f"{name}: {page.map_outputs} map outputs, {size}")
        print_tables([_map_outputs(page), _regions(page)])
        left_out = sum(each.regions_left_out for each in page.outputs)
        if left_out:
            click.echo(f"{left_out} regions are left out: use a smaller --limit")
        if page.next is not None:
            click.echo(f"more map outputs: --first {page.next}")
    for problem in report.problems:
        click.echo(f"{click.style('problem', fg='red')}  {problem}")


def _shuffles(shuffles: Sequence[ShuffleStatus]) -> Table:
    names = "application shuffle committed open regions bytes"
    table = Table("Shuffles", names, "shuffle committed open regions bytes")
    for each in sorted(shuffles, key=lambda each: each.key):
        table.add(
            each.application_id,
            each.shuffle_id,
            each.committed_map_outputs,
            each.open_map_outputs,
            each.regions,
            approximate_size(each.stored_bytes),
        )
    return table


def _map_outputs(page: ShufflePage) -> Table:
    names = "attempt state parts bytes regions replicas origin"
    table = Table("Map outputs", names, "attempt parts bytes regions replicas")
    for each in page.outputs:
        table.add(
            each.map_attempt_id,
            each.state,
            each.subpartitions,
            approximate_size(each.length_bytes),
            len(each.regions) + each.regions_left_out,
            f"{each.replicas}{' + remote' if each.to_remote else ''}",
            each.origin or "here",
        )
    return table


def _regions(page: ShufflePage) -> Table:
    names = "attempt region tier directory offset bytes first parts crc32c state"
    table = Table("Regions", names, "attempt region offset bytes first parts")
    for output in page.outputs:
        for number, each in enumerate(output.regions):
            table.add(
                output.map_attempt_id,
                number,
                each.tier or "empty",
                each.directory or "-",
                each.offset,
                approximate_size(each.length_bytes),
                "all" if each.is_broadcast else each.first_subpartition,
                each.subpartitions,
                f"{each.crc32c:08x}",
                each.problem or "-",
            )
    return table
