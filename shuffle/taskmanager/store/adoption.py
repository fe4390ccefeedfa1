"""Occupies the extents of the map outputs that a previous run committed."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from ...names import MapAttemptKey
from ..accounts import Accounts
from .extent_reader import checksum_of
from .journal import Entry
from .output_index import OutputIndex
from .outputs import MapOutput, Region
from .replay import Committed, Copies, Order, Secured
from .rows import CommitRow, RegionRow, SecureRow
from .tier import Extent, Tier, is_arena

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Candidate:
    """A map output that its rows say is there.

    Attributes:
        order: Place of its newest row: of two that claim the same bytes, the newer one has them.
        copies: Its rows.
        rows: The same, unpacked.
        places: The regions that have bytes.
        extents: Those of the places, as far as they are occupied.
        lost: Why it is not there; empty if it is.
    """

    order: Order
    copies: list[Copies]
    rows: Sequence[CommitRow | SecureRow]
    places: list[RegionRow]
    extents: list[Extent | None]
    lost: str = ""


class Adoption:
    """Adopts map outputs into an index.

    Args:
        tiers: The tiers of this start, by the ids of their arenas.
        accounts: Applications pay here.
        index: Gets the map outputs.

    Attributes:
        forgotten: Committed map outputs that are not there any more.
    """

    def __init__(self, tiers: Mapping[bytes, Tier], accounts: Accounts, index: OutputIndex) -> None:
        self._tiers = tiers
        self._accounts = accounts
        self._index = index
        self.forgotten = 0
        self._rows: list[tuple[Copies, Sequence[RegionRow]]] = []

    def adopt(
        self,
        commits: Iterable[Committed],
        secured: Iterable[Sequence[Secured]],
        doubted: set[bytes],
    ) -> None:
        """Adopt what can be adopted, all regions of a map output or none.

        Args:
            commits: The committed ones.
            secured: The rows of those that are not committed.
            doubted: Arenas whose bytes are compared with their checksums.
        """
        candidates = [_candidate([each.copies], [each.row]) for each in commits]
        candidates += [
            _candidate([each.copies for each in rows], [each.row for each in rows])
            for rows in secured
        ]
        self._occupy(candidates)
        for each in candidates:
            if not each.lost and doubted:
                _verify(each, doubted)
            if each.lost:
                self._forget(each)
            else:
                self._add(each)

    def rows_in(self, arena: bytes) -> list[Entry]:
        """Return the rows that the journal of an arena needs, in the places that they have."""
        return [
            Entry(*copies.order, copies.data)
            for copies, regions in self._rows
            if any(region.tier_id == arena for region in regions)
            or not any(is_arena(region.tier_id) for region in regions)
        ]

    def _occupy(self, candidates: Iterable[_Candidate]) -> None:
        """Occupy the extents of each arena in their order, which costs the allocator least."""
        claims: dict[bytes, list[tuple[int, int, int, _Candidate]]] = {
            arena: [] for arena in self._tiers
        }
        for each in candidates:
            for number, region in enumerate(each.places):
                claimed = claims.get(region.tier_id)
                if claimed is None:
                    local = is_arena(region.tier_id)
                    each.lost = "its arena is gone" if local else "it lies in another remote tier"
                else:
                    claimed.append((region.offset, region.offsets[-1], number, each))
        for arena, claimed in claims.items():
            if is_arena(arena):  # an object belongs to one row, whatever its number
                claimed.sort(key=itemgetter(0))
                _settle(claimed)
        for arena, claimed in claims.items():
            tier = self._tiers[arena]
            for offset, length, number, each in claimed:
                if not each.lost:
                    try:
                        application_id = each.rows[0].key.application_id
                        each.extents[number] = tier.adopt(offset, length, application_id)
                    except ValueError as error:
                        each.lost = str(error)

    def _add(self, candidate: _Candidate) -> None:
        key = candidate.rows[0].key
        account = self._accounts.of(key.application_id)
        occupied = [extent for extent in candidate.extents if extent is not None]
        for extent in occupied:
            extent.charge_to(account)
        extents = iter(occupied)
        for copies, row in zip(candidate.copies, candidate.rows, strict=True):
            self._rows.append((copies, row.regions))
            regions = [
                Region(
                    next(extents) if region.tier_id else None,
                    region.first_subpartition,
                    region.offsets,
                    region.crc32c,
                )
                for region in row.regions
            ]
            if isinstance(row, CommitRow):
                self._index.add(
                    MapOutput(
                        key,
                        row.map_attempt_id,
                        row.num_subpartitions,
                        tuple(regions),
                        row.origin,
                        row.replicas,
                    )
                )
            else:
                attempt = MapAttemptKey(key, row.map_attempt_id)
                self._index.secure(attempt, row.num_subpartitions, regions)

    def _forget(self, candidate: _Candidate) -> None:
        row = candidate.rows[0]
        logger.warning(
            "map attempt %d of %s is forgotten: %s", row.map_attempt_id, row.key, candidate.lost
        )
        for extent in candidate.extents:
            if extent is not None:
                extent.release()
        self.forgotten += isinstance(row, CommitRow)


def _candidate(copies: list[Copies], rows: Sequence[CommitRow | SecureRow]) -> _Candidate:
    places = [region for row in rows for region in row.regions if region.tier_id]
    return _Candidate(copies[-1].order, copies, rows, places, [None] * len(places))


def _settle(claims: Iterable[tuple[int, int, int, _Candidate]]) -> None:
    """Decide about claims to the same bytes, which only damage leaves; they come by offset."""
    end, holder = 0, None
    for offset, length, _, each in claims:
        if each.lost:
            continue
        if holder is not None and offset < end:
            older = min(holder, each, key=lambda candidate: candidate.order)
            older.lost = "it overlaps a newer one"
            if older is each:
                continue
        end, holder = offset + length, each


def _verify(candidate: _Candidate, doubted: set[bytes]) -> None:
    for region, extent in zip(candidate.places, candidate.extents, strict=True):
        if region.tier_id in doubted and extent is not None:
            try:
                found = checksum_of(extent)
            except OSError as error:
                candidate.lost = str(error)
                return
            if found != region.crc32c:
                candidate.lost = "its bytes do not have their checksum"
                return
