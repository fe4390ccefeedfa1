"""Gathering what a request for stored map outputs reads, in several turns of the event loop.

A request may name hundreds of thousands of map outputs, of many regions each. Their slices are
gathered in pieces, so that other connections have their turns between; and they are charged to the
application that reads before they are kept.
"""

import asyncio
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ....protocol.errors import ErrorCode, SluiceError
from ....protocol.limits import MAX_GATE_ATTEMPTS
from ....protocol.schema import EVERY_SUBPARTITION
from ...errors import InvalidRequest, LimitExceeded
from ...names import ShuffleKey, SubpartitionRange
from ..bounds.accounts import Account, Resource
from ..store.stored_outputs import MapOutput
from .stored_partition_view import Slice

ATTEMPT_BYTES: Final = 8
"""Memory of a map attempt in :func:`distinct_attempts`."""

SLICE_BYTES: Final = 160
"""Memory of a slice and its numbers."""

SLICES_A_TURN: Final = 2048
"""Map outputs or slices after which the event loop gets a turn: a millisecond of work."""


def distinct_attempts(map_attempt_ids: Sequence[int]) -> "array[int]":
    """Return the map attempts of a channel, in ATTEMPT_BYTES each.

    Raises:
        LimitExceeded: They are more than a gate may have.
        InvalidRequest: One is named twice.
    """
    require_attempts(len(map_attempt_ids))
    if len(set(map_attempt_ids)) < len(map_attempt_ids):
        raise InvalidRequest(
            "A channel names a map attempt twice",
            value=f"{len(map_attempt_ids)} map attempts",
            limit=f"{len(set(map_attempt_ids))} different ones",
        )
    return array("q", map_attempt_ids)


def require_attempts(number: int) -> None:
    """Check that a gate or request may name so many map attempts.

    Raises:
        LimitExceeded: They are too many.
    """
    if number > MAX_GATE_ATTEMPTS:
        raise LimitExceeded(
            "A gate names too many map attempts",
            value=number,
            limit=MAX_GATE_ATTEMPTS,
            remedy="Read them through several gates",
        )


class StoredSlices:
    """The slices of one request so far, charged and with references to their extents.

    Args:
        wanted: The subpartitions to read.
        account: The application that reads.
    """

    def __init__(self, wanted: SubpartitionRange, account: Account) -> None:
        self._wanted = wanted
        self._account = account
        self._slices: list[Slice] = []
        self._gathered = 0
        """Map attempts whose slices are here."""

    async def gather(
        self, outputs: Callable[[], Mapping[int, MapOutput]], map_attempt_ids: Sequence[int]
    ) -> int | None:
        """Gather the slices of map outputs, after those gathered before.

        Args:
            outputs: Returns the committed map outputs of the shuffle.
            map_attempt_ids: All map attempts of the request.

        Returns:
            The first map attempt that is not committed; None when all slices are here.

        Raises:
            InvalidRequest: The range is empty or beyond the subpartitions of a map output.
            QuotaExceeded: The application is at its quota of metadata.

        Cancellation: safe; call :meth:`release`.
        """
        while True:
            missing = self._gather_some(outputs(), map_attempt_ids)
            if missing is not None or self._gathered == len(map_attempt_ids):
                return missing
            await asyncio.sleep(0)  # other work has a turn of the loop

    def take(self) -> list[Slice]:
        """Return the slices; their references and :func:`charge_of` them are the caller's now."""
        slices, self._slices = self._slices, []
        return slices

    def release(self) -> None:
        """Release the slices that were not taken. Idempotent."""
        slices = self.take()
        for each in slices:
            each.extent.release()
        self._account.give_back(Resource.METADATA_BYTES, charge_of(slices))

    def _gather_some(
        self, outputs: Mapping[int, MapOutput], map_attempt_ids: Sequence[int]
    ) -> int | None:
        _, start, end = self._wanted
        missing: int | None = None
        found: list[Slice] = []
        gathered = self._gathered
        for map_attempt_id in map_attempt_ids[gathered : gathered + SLICES_A_TURN]:
            output = outputs.get(map_attempt_id)
            if output is None:
                missing = map_attempt_id
                break
            if not 0 <= start < end <= output.num_subpartitions:
                raise bad_range(self._wanted, output.num_subpartitions)
            append_slices(found, output, start, end)
            gathered += 1
            if len(found) >= SLICES_A_TURN:
                break
        self._account.take(Resource.METADATA_BYTES, charge_of(found))
        for each in found:
            each.extent.retain()
        self._slices += found
        self._gathered = gathered
        return missing


def charge_of(slices: Sequence[Slice]) -> int:
    """Return what an application is charged for slices."""
    return SLICE_BYTES * len(slices)


def append_slices(slices: list[Slice], output: MapOutput, start: int, end: int) -> None:
    """Append the slices of the regions of a map output, in their order."""
    for region in output.regions:
        extent = region.extent
        first = region.first_subpartition
        if extent is None:
            continue
        if first != EVERY_SUBPARTITION and (
            first >= end or (region.numbers is None and first + len(region.offsets) <= start + 1)
        ):
            continue  # as most regions of a large map output: without a call for each
        offset, length = region.slice(start, end)
        if length:
            slices.append(Slice(extent, offset, length, region.repeats(start, end)))


def lost_output(key: ShuffleKey, map_attempt_id: int, why: str) -> SluiceError:
    """Make the error about a map output that was here and is lost."""
    return SluiceError(
        f"Map attempt {map_attempt_id} of shuffle {key.shuffle_id} is no longer here: it {why}",
        code=ErrorCode.STORAGE_UNAVAILABLE,
        value=map_attempt_id,
        remedy="Its task has to run again",
        map_attempt_id=map_attempt_id,
    )


def bad_range(wanted: SubpartitionRange, most: int) -> InvalidRequest:
    """Return the error about a range that is not one of a partition's subpartitions."""
    return InvalidRequest(
        "Range of subpartitions is empty or too large",
        value=f"{wanted.start} to {wanted.end}",
        limit=most,
    )
