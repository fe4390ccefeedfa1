"""The status of the storage: its tiers, the map outputs in it, the remote tier, region areas."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeAlias

import msgspec

from ...histogram_status import HistogramStatus
from ...metric import Combined, gauge, histogram, total
from ...names import ShuffleKey, utf8_text

TierKind: TypeAlias = Literal["memory", "disk", "remote"]

_OUTPUTS = gauge("Map outputs held.", "map_outputs")


class TierStatus(msgspec.Struct, frozen=True, gc=False):
    """One directory of the storage, or the remote tier."""

    metric_prefix: ClassVar[str] = "storage_"
    key_fields: ClassVar[tuple[str, ...]] = ("tier", "directory")

    tier: str = ""
    """``"memory"``, ``"disk"`` or ``"remote"``."""
    directory: str = ""
    """The URL of the remote tier."""
    capacity_bytes: Annotated[
        int | None, gauge("Maximum bytes that may be used.", by="tier directory")
    ] = None
    """None means as many bytes as the disk, or the remote store, allows."""
    used_bytes: Annotated[int, gauge("Bytes in extents that are in use.", by="tier directory")] = 0
    healthy: Annotated[bool, gauge("1 if the directory accepts data.", by="tier directory")] = False
    free_bytes: Annotated[int, gauge("Bytes that new extents can get.", by="tier directory")] = 0
    reason: str = ""
    """Why it gets no new map outputs; else empty."""
    largest_free_bytes: Annotated[int, Combined("max")] = 0
    """The longest region that it can take now."""
    extents: int = 0
    """Regions in it, including those being written."""
    unread: bool = False
    """Whether it has not answered since the start, so that its map outputs are unknown."""
    journal_full: Annotated[
        bool, gauge("1 while its journal has no room for new map outputs.", by="tier directory")
    ] = False

    @classmethod
    def left_out(
        cls, kind: TierKind, directory: Path | str, reason: str, *, unread: bool = False
    ) -> "TierStatus":
        """Return the status of a directory that could not be used at the start."""
        return cls(kind, utf8_text(directory), 0, reason=utf8_text(reason), unread=unread)


class RegionReadsStatus(msgspec.Struct, frozen=True, gc=False):
    """Reads of one directory, or of the remote tier."""

    key_fields: ClassVar[tuple[str, ...]] = ("tier", "directory")

    tier: str = ""
    """``"disk"`` or ``"remote"``."""
    directory: str = ""
    """The URL of the remote tier."""
    read: Annotated[
        HistogramStatus,
        histogram(
            "Reads of stored regions for readers, from the request to the last byte; reads from "
            "memory and the page cache are not counted.",
            "region_read_seconds",
            by="tier directory",
        ),
    ] = HistogramStatus()


class ShuffleStatus(msgspec.Struct, frozen=True, gc=False):
    """The map outputs of one shuffle on this TaskManager."""

    key_fields: ClassVar[tuple[str, ...]] = ("application_id", "shuffle_id")

    application_id: str = ""
    shuffle_id: int = 0
    committed_map_outputs: Annotated[int, _OUTPUTS.at(state="committed")] = 0
    open_map_outputs: Annotated[int, _OUTPUTS.at(state="open")] = 0
    stored_bytes: Annotated[int, gauge("Bytes of regions held.")] = 0
    regions: Annotated[int, gauge("Regions held.")] = 0

    @property
    def key(self) -> ShuffleKey:
        """The shuffle."""
        return ShuffleKey(self.application_id, self.shuffle_id)


class RemoteStatus(msgspec.Struct, frozen=True, gc=False):
    """The work of the remote tier; all zero without one. Totals start with the process."""

    metric_prefix: ClassVar[str] = "remote_"

    upload_bytes: Annotated[int, gauge("Memory of upload parts being filled or sent.")] = 0
    waiting_uploads: Annotated[int, gauge("Uploads that wait for memory.")] = 0
    waiting_deletes: Annotated[int, gauge("Objects of the remote tier queued for deletion.")] = 0
    requests: Annotated[int, total("Requests to the remote tier.")] = 0
    errors: Annotated[int, total("Failed requests to the remote tier, retries included.")] = 0
    read_bytes: Annotated[int, total("Bytes read from the remote tier.")] = 0
    written_bytes: Annotated[int, total("Bytes written to the remote tier.")] = 0
    moved_map_outputs: Annotated[int, total("Map outputs moved to the remote tier.")] = 0
    found_map_outputs: Annotated[
        int, total("Map outputs of other TaskManagers found in the remote tier.")
    ] = 0
    removed_orphans: Annotated[int, total("Orphans removed from the remote tier.")] = 0


class RegionAreasStatus(msgspec.Struct, frozen=True, gc=False):
    """The memory that producers on this host share with the TaskManager."""

    metric_prefix: ClassVar[str] = "region_areas_"

    areas: Annotated[
        int,
        gauge(
            "Memory areas shared with producers on this host.",
            "region_areas",
        ),
    ] = 0
    used_bytes: Annotated[int, gauge("Bytes of region areas.")] = 0
