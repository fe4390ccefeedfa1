"""Adopts the map outputs of a previous run, by occupying their extents.

There may be hundreds of thousands of them, and the TaskManager serves nothing until all are
adopted. So work such as counting is done once per shuffle, not once per map output.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from crc32c import crc32c

from ....names import MapAttemptKey, ShuffleKey
from ...bounds.accounts import Accounts
from ..errors import DirectoryHangs
from ..files.blocking_calls import MakesCalls, at_once
from ..output_index import OutputIndex
from ..stored_outputs import MapOutput, Region
from ..tiers.arena_tier import ArenaTier
from ..tiers.tier import Extent, Tier, is_arena
from .adoption_progress import with_progress
from .journal import Entry
from .replay import Committed, Secured
from .rows import CommitRow, RegionRow, SecureRow

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Candidate:
    """A map output that the journals name.

    Attributes:
        key: Its shuffle.
        rows: Its rows. If two map outputs claim the same bytes, the one with the newer row gets
            them.
        regions: The regions of all rows.
        extents: The extents of the regions; None for a region without an occupied extent.
        lost: Why it cannot be adopted; empty if it can be.
    """

    key: ShuffleKey
    rows: Sequence[Committed | Secured]
    regions: Sequence[RegionRow]
    extents: list[Extent | None]
    lost: str = ""


class Adoption:
    """Adopts map outputs into an index.

    Args:
        tiers: The tiers of this start, by the ids of their arenas.
        accounts: Accounts to charge.
        index: Index to which the map outputs are added.

    Attributes:
        forgotten: Number of committed map outputs whose bytes are gone.
    """

    def __init__(self, tiers: Mapping[bytes, Tier], accounts: Accounts, index: OutputIndex) -> None:
        self._tiers = tiers
        self._accounts = accounts
        self._index = index
        self.forgotten = 0
        self._adopted: list[_Candidate] = []

    def adopt(
        self,
        commits: Iterable[Committed],
        secured: Iterable[Sequence[Secured]],
        doubted: Mapping[bytes, ArenaTier],
        make: MakesCalls = at_once,
    ) -> None:
        """Adopt map outputs, each with all its regions or not at all.

        Args:
            commits: The committed map outputs.
            secured: The rows of each uncommitted map output.
            doubted: Tiers whose bytes are verified with their checksums.
            make: Makes the calls that read them.
        """
        candidates = [_candidate((each,)) for each in commits]
        committed = len(candidates)
        candidates += [_candidate(rows) for rows in secured]
        self._occupy(candidates)
        for arena, tier in doubted.items():
            _verify([each for each in candidates if not each.lost], arena, tier, make)
        for each in candidates:
            if each.lost:
                self._forget(each)
        self._add(_by_shuffle(candidates[:committed]), is_committed=True)
        self._add(_by_shuffle(candidates[committed:]), is_committed=False)

    def rows_in(self, arena: bytes) -> list[Entry]:
        """Return the rows that the journal of an arena needs, with their numbers."""
        return [
            each.entry
            for candidate in self._adopted
            for each in candidate.rows
            if any(region.tier_id == arena for region in each.row.regions)
            or not any(is_arena(region.tier_id) for region in each.row.regions)
        ]

    def _occupy(self, candidates: Iterable[_Candidate]) -> None:
        """Occupy the extents of each arena in order, which is fastest for the allocator."""
        claims: dict[bytes, list[tuple[int, int, int, _Candidate]]] = {
            arena: [] for arena in self._tiers
        }
        for each in candidates:
            for number, (tier_id, offset, _, offsets, _, _) in enumerate(each.regions):
                claimed = claims.get(tier_id)
                if claimed is not None:
                    claimed.append((offset, offsets[-1], number, each))
                elif tier_id:
                    local = is_arena(tier_id)
                    each.lost = "its arena is gone" if local else "it lies in another remote tier"
        for arena, claimed in claims.items():
            if self._tiers[arena].has_journal:  # objects cannot overlap
                claimed.sort(key=itemgetter(0))
                _settle(claimed)
        for arena, claimed in claims.items():
            tier = self._tiers[arena]
            adopt = tier.adopt
            label = f"adopting regions in {tier.place}"
            for offset, length, number, each in with_progress(claimed, label, len(claimed)):
                if not each.lost:
                    try:
                        each.extents[number] = adopt(offset, length, each.key.application_id)
                    except ValueError as error:
                        each.lost = str(error)

    def _add(self, found: Mapping[ShuffleKey, list[_Candidate]], *, is_committed: bool) -> None:
        total = sum(map(_count, found.items()))
        shuffles = with_progress(found.items(), "adding map outputs to the index", total, _count)
        for key, candidates in shuffles:
            extents = [
                extent for each in candidates for extent in each.extents if extent is not None
            ]
            Extent.charge_all(extents, self._accounts.of(key.application_id))
            if is_committed:
                self._index.add_all(key, [*map(_output, candidates)])
            else:
                for each in candidates:
                    self._secure(each)
            self._adopted += candidates

    def _secure(self, candidate: _Candidate) -> None:
        first = 0
        for _, _, row in candidate.rows:
            end = first + len(row.regions)
            attempt = MapAttemptKey(row.key, row.map_attempt_id)
            regions = _regions(candidate.regions[first:end], candidate.extents[first:end])
            process = row.process if isinstance(row, SecureRow) else ""
            self._index.secure(attempt, row.num_subpartitions, regions, process)
            first = end

    def _forget(self, candidate: _Candidate) -> None:
        row = candidate.rows[0].row
        logger.warning(
            "map attempt %d of %s is forgotten: %s",
            row.map_attempt_id,
            row.key,
            candidate.lost,
            extra=row.key.log_fields | {"map_attempt": row.map_attempt_id},
        )
        for extent in candidate.extents:
            if extent is not None:
                extent.release()
        self.forgotten += isinstance(row, CommitRow)


def _candidate(rows: Sequence[Committed | Secured]) -> _Candidate:
    first = rows[0].row
    regions = first.regions
    if len(rows) > 1:
        regions = tuple([region for each in rows for region in each.row.regions])
    return _Candidate(first.key, rows, regions, [None] * len(regions))


def _by_shuffle(candidates: Iterable[_Candidate]) -> dict[ShuffleKey, list[_Candidate]]:
    """Return the candidates that are not lost, by shuffle."""
    found: defaultdict[ShuffleKey, list[_Candidate]] = defaultdict(list)
    for each in candidates:
        if not each.lost:
            found[each.key].append(each)
    return found


def _count(shuffle: tuple[ShuffleKey, Sequence[_Candidate]]) -> int:
    return len(shuffle[1])


def _output(candidate: _Candidate) -> MapOutput:
    (each,) = candidate.rows
    if not isinstance(each, Committed):
        raise TypeError("secured regions are not a map output")
    key, map_attempt_id, num_subpartitions, regions, origin, replicas, to_remote = each.row
    return MapOutput(
        key,
        map_attempt_id,
        num_subpartitions,
        tuple(_regions(regions, candidate.extents)),
        origin,
        replicas,
        to_remote=to_remote,
    )


def _regions(rows: Iterable[RegionRow], extents: Iterable[Extent | None]) -> list[Region]:
    return [
        Region(extent, first_subpartition, offsets, crc32c, numbers)
        for (_, _, first_subpartition, offsets, crc32c, numbers), extent in zip(
            rows, extents, strict=True
        )
    ]


def _settle(claims: Iterable[tuple[int, int, int, _Candidate]]) -> None:
    """Resolve claims to the same bytes, caused by damage; claims come by offset."""
    end, holder = 0, None
    for offset, length, _, each in claims:
        if each.lost:
            continue
        if holder is not None and offset < end:
            older = min(holder, each, key=lambda candidate: candidate.rows[-1].entry)
            older.lost = "it overlaps a newer one"
            if older is each:
                continue
        end, holder = offset + length, each


def _verify(
    candidates: Sequence[_Candidate], arena: bytes, tier: ArenaTier, make: MakesCalls
) -> None:
    """Give up candidates whose bytes in an arena are damaged, or all if its disk hangs."""
    there = [each for each in candidates if any(row.tier_id == arena for row in each.regions)]
    try:
        label = f"verifying map outputs in {tier.directory}"
        verified = with_progress(there, label, len(there))
        reasons = make(tier.directory, lambda: [_damage(each, arena, tier) for each in verified])
    except DirectoryHangs as error:
        reasons = [str(error)] * len(there)
    for each, reason in zip(there, reasons, strict=True):
        each.lost = reason


def _damage(candidate: _Candidate, arena: bytes, tier: ArenaTier) -> str:
    """Return why the bytes of a candidate in an arena cannot be used; empty if they can be."""
    for region, extent in zip(candidate.regions, candidate.extents, strict=True):
        if region.tier_id == arena and extent is not None:
            found = 0
            try:
                for piece in tier.pieces(extent):
                    found = crc32c(piece, found)
            except OSError as error:
                return str(error)
            if found != region.crc32c:
                return "its bytes do not have their checksum"
    return ""
