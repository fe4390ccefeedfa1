"""The index of map outputs: plain dictionaries, owned by the event-loop thread.

Its statistics are immutable snapshots for status pages and metrics.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from ...names import MapAttemptKey, ShuffleKey
from ..bounds.accounts import Account, Accounts, Resource
from .journal.rows import pack_released, pack_secure
from .releases import Releases
from .stored_outputs import MapOutput, OpenOutput, Region, arenas_of, kept_bytes

Lost = Mapping[ShuffleKey, Sequence[int]]
"""Lost map attempts, by shuffle."""

_ROW_BYTES: Final = 40
"""Size of a row's record without its regions and the name of its application."""

_REGION_BYTES: Final = 32
"""Size of a region in a row without its offsets."""

ANYWHERE: Final = b""
"""Key for rows of map outputs without bytes in any arena, instead of an arena's id."""

WITH_DIRECTORY: Final = "was lost with its storage directory"
DAMAGED: Final = "was damaged in storage, and has been dropped"
REPLACED: Final = "was a copy of bytes that its origin has replaced"

_NOTHING: Mapping[int, MapOutput] = MappingProxyType({})


class ShuffleEntry:
    """The committed map outputs of one shuffle.

    Args:
        account: The account of its application.

    Attributes:
        outputs: Map outputs by map attempt id.
        stored_bytes: Bytes of all map outputs.
        journal_bytes: Bytes of their rows in the journal of each arena, by its id.
        kept_bytes: Bytes charged for their indexes and rows.
        regions: Number of regions of all map outputs.
    """

    __slots__ = ("account", "journal_bytes", "kept_bytes", "outputs", "regions", "stored_bytes")

    def __init__(self, account: Account) -> None:
        self.account = account
        self.outputs: dict[int, MapOutput] = {}
        self.stored_bytes = 0
        self.journal_bytes: Counter[bytes] = Counter()
        self.kept_bytes = 0
        self.regions = 0


class OutputIndex:
    """Finds committed map outputs by application, shuffle and map attempt.

    Secured regions of uncommitted map outputs are kept beside them, by map attempt.

    Args:
        accounts: Accounts to charge for committed map outputs, and for indexes and rows.

    Attributes:
        journal_bytes: Approximate bytes of the valid rows in the journal of each arena, by the
            arena's id; ``ANYWHERE`` has the rows of map outputs without bytes in any arena.
        releases: The releases of shuffles, to refuse later commits and copies.
        repaired: Damaged map outputs that were dropped and have come back.
    """

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._applications: dict[str, dict[int, ShuffleEntry]] = {}
        self._open: dict[MapAttemptKey, OpenOutput] = {}
        self._lost: dict[ShuffleKey, dict[int, str]] = {}
        """Why map attempts are lost, by shuffle."""
        self.repaired = 0
        self.releases: Final = Releases(accounts)
        self.map_outputs = 0
        self.stored_bytes = 0
        self.journal_bytes: Counter[bytes] = Counter()

    def secure(
        self,
        attempt: MapAttemptKey,
        num_subpartitions: int,
        regions: Sequence[Region],
        process: str,
    ) -> None:
        """Add secured regions to a map output that is not committed."""
        output = self._open.get(attempt)
        if output is None:
            output = OpenOutput(
                attempt.shuffle, attempt.map_attempt_id, num_subpartitions, [], process
            )
            self._open[attempt] = output
        output.secured.append(len(output.regions))
        output.regions += regions
        self.journal_bytes.update(row_bytes_of(attempt.shuffle, regions))
        account = self._accounts.of(attempt.shuffle.application_id)
        account.hold(Resource.METADATA_BYTES, kept_bytes_of(regions))

    def open_output(self, attempt: MapAttemptKey) -> OpenOutput | None:
        """Return the secured part of a map output that is not committed, or None."""
        return self._open.get(attempt)

    def open_outputs(self) -> list[OpenOutput]:
        """Return all uncommitted map outputs with secured regions."""
        return list(self._open.values())

    def pop_open(self, attempt: MapAttemptKey) -> OpenOutput | None:
        """Remove and return the secured part of a map output; the caller releases it."""
        output = self._open.pop(attempt, None)
        if output is not None:
            for _, regions in output.rows():
                self.journal_bytes.subtract(row_bytes_of(output.key, regions))
            account = self._accounts.of(output.key.application_id)
            account.give_back(Resource.METADATA_BYTES, kept_bytes_of(output.regions))
        return output

    def pop_released(self, released: Callable[[MapAttemptKey], bool]) -> list[Region]:
        """Remove the secured parts of released map attempts; return their regions."""
        regions: list[Region] = []
        for output in self.open_outputs():
            attempt = MapAttemptKey(output.key, output.map_attempt_id)
            if released(attempt):
                self.pop_open(attempt)
                regions += output.take()
        return regions

    def add(self, output: MapOutput) -> None:
        """Make a map output visible. The caller has checked that it is new."""
        self.add_all(output.key, (output,))

    def add_all(self, key: ShuffleKey, outputs: Sequence[MapOutput]) -> None:
        """Make map outputs of a shuffle visible, like :meth:`add`."""
        application_id, shuffle_id = key
        shuffles = self._applications.setdefault(application_id, {})
        entry = shuffles.get(shuffle_id)
        if entry is None:
            entry = shuffles[shuffle_id] = ShuffleEntry(self._accounts.of(application_id))
        stored = regions = kept = 0
        journal_bytes: dict[bytes, int] = {}
        for output in outputs:
            entry.outputs[output.map_attempt_id] = output
            regions += len(output.regions)
            for region in output.regions:
                stored += region.offsets[-1]
            kept += kept_bytes_of(output.regions)
            if not output.is_moved:
                for arena, size in row_bytes_of(key, output.regions).items():
                    journal_bytes[arena] = journal_bytes.get(arena, 0) + size
        if self._open:
            for output in outputs:
                self.pop_open(MapAttemptKey(key, output.map_attempt_id))
        if self._lost:
            lost = self._lost.get(key, {})
            for output in outputs:
                self.repaired += lost.pop(output.map_attempt_id, "") == DAMAGED
        entry.stored_bytes += stored
        entry.regions += regions
        entry.journal_bytes.update(journal_bytes)
        entry.kept_bytes += kept
        entry.account.hold(Resource.MAP_OUTPUTS, len(outputs))
        entry.account.hold(Resource.METADATA_BYTES, kept)
        self.journal_bytes.update(journal_bytes)
        self.map_outputs += len(outputs)
        self.stored_bytes += stored

    def get(self, key: ShuffleKey, map_attempt_id: int) -> MapOutput | None:
        """Return a map output, or None if it is not committed."""
        entry = self.entry(key)
        return None if entry is None else entry.outputs.get(map_attempt_id)

    def entry(self, key: ShuffleKey) -> ShuffleEntry | None:
        """Return the committed map outputs of a shuffle, or None."""
        shuffles = self._applications.get(key[0])
        return None if shuffles is None else shuffles.get(key[1])

    def outputs_of(self, key: ShuffleKey) -> Mapping[int, MapOutput]:
        """Return a read-only live view of a shuffle's map outputs by map attempt id."""
        entry = self.entry(key)
        return _NOTHING if entry is None else MappingProxyType(entry.outputs)

    def pop(self, key: ShuffleKey, *, forget: bool = True) -> ShuffleEntry | None:
        """Remove a shuffle and return its map outputs; the caller releases them.

        Args:
            key: The shuffle.
            forget: Whether to forget its lost map outputs, too.
        """
        if forget:
            self._lost.pop(key, None)
        shuffles = self._applications.get(key.application_id)
        entry = None if shuffles is None else shuffles.pop(key.shuffle_id, None)
        if shuffles is None or entry is None:
            return None
        if not shuffles:
            del self._applications[key.application_id]
        self.map_outputs -= len(entry.outputs)
        entry.account.give_back(Resource.MAP_OUTPUTS, len(entry.outputs))
        entry.account.give_back(Resource.METADATA_BYTES, entry.kept_bytes)
        self.stored_bytes -= entry.stored_bytes
        self.journal_bytes.subtract(entry.journal_bytes)
        return entry

    def pop_below(self, key: ShuffleKey, end: int) -> ShuffleEntry | None:
        """Remove the map outputs of a shuffle below ``end``, like :meth:`pop`."""
        lost = {each: why for each, why in self._lost.pop(key, {}).items() if each >= end}
        if lost:
            self._lost[key] = lost
        entry = self.entry(key)
        if entry is None or all(each >= end for each in entry.outputs):
            return None
        self.pop(key, forget=False)
        for map_attempt_id in [each for each in entry.outputs if each >= end]:
            output = entry.outputs.pop(map_attempt_id)
            entry.stored_bytes -= output.total_bytes
            self.add(output)
        return entry

    def live_bytes(self, arena: bytes) -> int:
        """Return the approximate bytes of the valid rows in an arena's journal."""
        rows = self.journal_bytes[arena] + self.journal_bytes[ANYWHERE]
        return rows + self.releases.journal_bytes

    def lose(self, output: MapOutput, why: str) -> None:
        """Remove a map output that is here and whose bytes are gone; the caller releases them.

        Args:
            output: The map output.
            why: Reported to its readers, after the name of the map attempt.

        Raises:
            ValueError: It is not here; another one with its name may be.
        """
        self.remove(output)
        self._lost.setdefault(output.key, {})[output.map_attempt_id] = why

    def remove(self, output: MapOutput) -> None:
        """Remove a map output that another one replaces: unlike :meth:`lose`, it is not lost.

        Raises:
            ValueError: It is not here; another one with its name may be.
        """
        key = output.key
        if self.get(key, output.map_attempt_id) is not output:
            msg = f"map output {output.map_attempt_id} of {key} is not here"
            raise ValueError(msg)
        shuffles = self._applications[key.application_id]
        entry = shuffles[key.shuffle_id]
        del entry.outputs[output.map_attempt_id]
        stored, kept = output.total_bytes, kept_bytes_of(output.regions)
        entry.stored_bytes -= stored
        entry.regions -= len(output.regions)
        entry.kept_bytes -= kept
        entry.account.give_back(Resource.MAP_OUTPUTS)
        entry.account.give_back(Resource.METADATA_BYTES, kept)
        self.map_outputs -= 1
        self.stored_bytes -= stored
        if not output.is_moved:
            journal_bytes = row_bytes_of(key, output.regions)
            entry.journal_bytes.subtract(journal_bytes)
            self.journal_bytes.subtract(journal_bytes)
        if not entry.outputs:
            del shuffles[key.shuffle_id]
        if not shuffles:
            del self._applications[key.application_id]

    def lost_of(self, application_id: str) -> dict[ShuffleKey, list[int]]:
        """Return the lost map attempts of an application's shuffles."""
        return {
            key: sorted(attempts)
            for key, attempts in self._lost.items()
            if key.application_id == application_id
        }

    def why_lost(self, key: ShuffleKey, map_attempt_id: int) -> str:
        """Return why a map output that was here is lost; empty: it is not."""
        return self._lost.get(key, {}).get(map_attempt_id, "")

    def shuffles_of(self, application_id: str) -> list[ShuffleKey]:
        """Return the keys of an application's shuffles."""
        return [ShuffleKey(application_id, s) for s in self._applications.get(application_id, ())]

    def applications(self) -> list[str]:
        """Return the applications with committed map outputs or released shuffles."""
        return list(dict.fromkeys((*self._applications, *self.releases.applications())))

    def entries(
        self, application_id: str | None = None
    ) -> Iterator[tuple[ShuffleKey, ShuffleEntry]]:
        """Iterate over all shuffles, or over those of an application."""
        names: Iterable[str] = self._applications if application_id is None else (application_id,)
        for name in names:
            for shuffle_id, entry in self._applications.get(name, {}).items():
                yield ShuffleKey(name, shuffle_id), entry

    def outputs_in(self, arena: bytes) -> list[MapOutput]:
        """Return the map outputs that have, or may have, rows in an arena's journal."""
        return [
            output
            for output in self.outputs()
            if not output.is_moved
            and (arena in (arenas := arenas_of(output.regions)) or not arenas)
        ]

    def secured_in(self, arena: bytes) -> list[bytes]:
        """Return the rows of secured regions in an arena's journal."""
        return [
            pack_secure(
                output.key,
                output.map_attempt_id,
                output.num_subpartitions,
                first,
                regions,
                output.process,
            )
            for output in self._open.values()
            for first, regions in output.rows()
            if arena in (arenas := arenas_of(regions)) or not arenas
        ]

    def released_rows(self) -> list[bytes]:
        """Return the rows of the releases of all applications, which every journal has."""
        return [pack_released(*each) for each in self.releases.items()]

    def outputs(self) -> list[MapOutput]:
        """Return all map outputs."""
        return [output for _, entry in self.entries() for output in entry.outputs.values()]


def row_bytes_of(key: ShuffleKey, regions: Sequence[Region]) -> dict[bytes, int]:
    """Return the approximate bytes of a row of regions in the journal of each arena."""
    size = _ROW_BYTES + len(key.application_id)
    for region in regions:
        size += _REGION_BYTES + region.index_bytes
    return dict.fromkeys(arenas_of(regions) or {ANYWHERE}, size)


def kept_bytes_of(regions: Iterable[Region]) -> int:
    """Return what an application is charged for a row of regions, and for their index."""
    return sum([kept_bytes(region.offsets, region.numbers) for region in regions])


def regions_of(entries: Iterable[ShuffleEntry | None]) -> Iterator[Region]:
    """Yield the regions of all map outputs of some shuffles."""
    for entry in entries:
        if entry is not None:
            for output in entry.outputs.values():
                yield from output.regions


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Totals of a store. Counters start with the process.

    Args:
        map_outputs: Current number of committed map outputs.
        stored_bytes: Their bytes.
        commits: Commits since the start.
        adopted_map_outputs: Map outputs adopted from the previous process.
        forgotten_map_outputs: Map outputs in its journals whose bytes are gone.
        journal_bytes: Length of all journals.
        compactions: Rewrites of journals since the start.
        repaired_map_outputs: Damaged map outputs dropped since the start that have come back.
    """

    map_outputs: int
    stored_bytes: int
    commits: int
    adopted_map_outputs: int
    forgotten_map_outputs: int
    journal_bytes: int
    compactions: int
    repaired_map_outputs: int = 0
