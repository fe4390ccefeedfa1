"""The map outputs of one shuffle, region by region: a page of them at a time.

A shuffle may have a million map outputs, so a page has at most ``MAX_OUTPUTS`` of them and
``MAX_REGIONS`` regions. Fields are only ever added.
"""

import asyncio
import heapq
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from ....protocol.errors import ErrorCode, SluiceError
from ....protocol.identity import plain_name
from ....protocol.schema import EVERY_SUBPARTITION
from ...names import MapAttemptKey, ShuffleKey, utf8_text
from .shuffle_store import ShuffleStore
from .stored_outputs import MapOutput, OpenOutput, Region

MAX_OUTPUTS: Final = 1000
"""Map outputs of a page."""

MAX_REGIONS: Final = 4000
"""Regions of a page."""

OUTPUTS_A_TURN: Final = 64
"""Map outputs described before the data path gets a turn."""

MAX_NAMED: Final = 10
"""Applications of one name that an error names."""

ATTEMPTS_A_TURN: Final = 4096
"""Map attempts put in order before the data path gets a turn."""

DEFAULT_OUTPUTS: Final = 100
"""Map outputs of a page whose length is not given."""


class UnknownShuffle(SluiceError):
    """No application of the name is known, or several are."""

    code = ErrorCode.PARTITION_NOT_FOUND
    found: tuple[str, ...] = ()
    """The applications of the name: none or several, at most ``MAX_NAMED``."""


class ShuffleQuery(NamedTuple):
    """Which map outputs a page has.

    Attributes:
        application: Name of the application, with or without the namespace that a TaskManager adds.
        shuffle_id: The shuffle.
        first: The least map attempt.
        limit: Most map outputs, from 1 to ``MAX_OUTPUTS``.
    """

    application: str
    shuffle_id: int
    first: int = 0
    limit: int = DEFAULT_OUTPUTS


class RegionDetail(msgspec.Struct, frozen=True, gc=False):
    """One region of a map output."""

    tier: str = ""
    """`memory`, `disk` or `remote`; `arena` if it was read in a directory; empty if the region
    is."""
    directory: str = ""
    """Of its tier; the URL of the remote tier."""
    offset: int = 0
    """Position in the arena, in bytes; number of the object in the remote tier."""
    length_bytes: int = 0
    """Bytes of the region."""
    first_subpartition: int = 0
    """Number of its first subpartition; 0 in a broadcast region."""
    subpartitions: int = 0
    """Subpartitions in its index; those left out are empty."""
    is_broadcast: bool = False
    """Whether every subpartition has these bytes."""
    crc32c: int = 0
    """Checksum over its bytes."""
    problem: str = ""
    """Why its bytes cannot be used, if they were verified; else empty."""


class OutputDetail(msgspec.Struct, frozen=True, gc=False):
    """One map output."""

    map_attempt_id: int = 0
    """The attempt, unique in the application."""
    state: Literal["committed", "secured"] = "committed"
    """`secured`: it is not committed yet, and these regions survive the process."""
    subpartitions: int = 0
    """Subpartitions of the shuffle."""
    length_bytes: int = 0
    """Bytes of all its regions."""
    origin: str = ""
    """The TaskManager that sent this copy; empty: its producer wrote it here."""
    replicas: int = 1
    """TaskManagers that should keep it, this one included."""
    to_remote: bool = False
    """Whether it should have a copy in the remote tier."""
    regions: tuple[RegionDetail, ...] = ()
    """In the order in which they were written."""
    regions_left_out: int = 0
    """Further regions, which the page has no room for."""


class ShufflePage(msgspec.Struct, frozen=True):
    """Map outputs of one shuffle on one TaskManager."""

    application_id: str = ""
    """The application, with its namespace."""
    shuffle_id: int = 0
    """The shuffle."""
    map_outputs: int = 0
    """Committed map outputs of the whole shuffle."""
    stored_bytes: int = 0
    """Bytes of all of them."""
    outputs: tuple[OutputDetail, ...] = ()
    """Those of this page, by map attempt."""
    next: int | None = None
    """The first map attempt of the next page; null: this is the last one."""

    def encode(self) -> bytes:
        """Return the JSON form."""
        return msgspec.json.encode(self)


async def take_page(store: ShuffleStore, query: ShuffleQuery) -> ShufflePage:
    """Return a page. Runs on the event loop, which gets a turn after each part of the work.

    All map attempts are looked at for each page: its caller must rest in proportion.

    Raises:
        UnknownShuffle: No application has the name, or several have it.

    Cancellation: safe.
    """
    key = ShuffleKey(resolve(query.application, store.applications()), query.shuffle_id)
    secured = [each.map_attempt_id for each in store.open_outputs() if each.key == key]
    attempts = [*store.map_outputs(key), *secured]
    chosen = await _chosen(attempts, query.first, query.limit + 1)
    found: list[OutputDetail] = []
    room = MAX_REGIONS
    for number, attempt in enumerate(chosen[: query.limit]):
        if number % OUTPUTS_A_TURN == 0:
            await asyncio.sleep(0)
        output = store.lookup(key, attempt) or store.open_output(MapAttemptKey(key, attempt))
        if output is not None:  # released meanwhile
            found.append(describe(output, room))
            room -= len(found[-1].regions)
    status = next((each for each in store.shuffles(key.application_id) if each.key == key), None)
    return ShufflePage(
        key.application_id,
        key.shuffle_id,
        0 if status is None else status.committed_map_outputs,
        0 if status is None else status.stored_bytes,
        tuple(found),
        chosen[query.limit] if len(chosen) > query.limit else None,
    )


def joined(pages: Sequence[ShufflePage], limit: int) -> ShufflePage:
    """Return the pages of several data processes as one.

    Args:
        pages: At least one, of the same query.
        limit: Most map outputs.
    """
    ends = [page.next for page in pages if page.next is not None]
    every = sorted(
        (each for page in pages for each in page.outputs), key=lambda each: each.map_attempt_id
    )
    shown = [each for each in every if not ends or each.map_attempt_id < min(ends)]
    if len(shown) > limit:
        ends.append(shown[limit].map_attempt_id)
    return ShufflePage(
        pages[0].application_id,
        pages[0].shuffle_id,
        sum(page.map_outputs for page in pages),
        sum(page.stored_bytes for page in pages),
        tuple(shown[:limit]),
        min(ends, default=None),
    )


def describe(output: MapOutput | OpenOutput, room: int = MAX_REGIONS) -> OutputDetail:
    """Return a map output with at most ``room`` of its regions."""
    regions = tuple(_region(each) for each in output.regions[:room])
    left_out = len(output.regions) - len(regions)
    if isinstance(output, OpenOutput):
        return OutputDetail(
            output.map_attempt_id,
            "secured",
            output.num_subpartitions,
            output.total_bytes,
            regions=regions,
            regions_left_out=left_out,
        )
    return OutputDetail(
        output.map_attempt_id,
        "committed",
        output.num_subpartitions,
        output.total_bytes,
        output.origin,
        output.replicas,
        output.to_remote,
        regions,
        left_out,
    )


def _region(region: Region) -> RegionDetail:
    extent = region.extent
    broadcast = region.first_subpartition == EVERY_SUBPARTITION
    return RegionDetail(
        "" if extent is None else extent.tier.kind,
        "" if extent is None else utf8_text(extent.tier.place),
        0 if extent is None else extent.offset,
        region.length,
        0 if broadcast else region.first_subpartition,
        len(region.offsets) - 1,
        broadcast,
        region.crc32c,
    )


async def _chosen(attempts: Sequence[int], first: int, limit: int) -> list[int]:
    """Return the least map attempts from the first one on, each once."""
    least: list[int] = []
    for begin in range(0, len(attempts), ATTEMPTS_A_TURN):
        some = attempts[begin : begin + ATTEMPTS_A_TURN]
        if len(least) == limit:  # only lesser ones are of interest
            found = {each for each in some if first <= each < least[-1]}
        else:
            found = {each for each in some if each >= first}
        if found:
            least = heapq.nsmallest(limit, found.union(least))
        await asyncio.sleep(0)
    return least


def resolve(name: str, known: Iterable[str]) -> str:
    """Return the one known application of a name, with or without its namespace.

    Raises:
        UnknownShuffle: There is none, or there are several.
    """
    found = [each for each in known if name in (each, plain_name(each))]
    if name in found:
        return name
    if len(found) == 1:
        return found[0]
    if found:
        several = UnknownShuffle(
            "Several applications have this name",
            value=name,
            limit=", ".join(sorted(found)[:MAX_NAMED]),
            remedy="Give one of these names",
        )
        several.found = tuple(sorted(found)[:MAX_NAMED])
        raise several
    raise UnknownShuffle(
        "No application of this name has map outputs here",
        value=name,
        remedy="See the names with: sluice status",
    )
