"""The status of the storage: its tiers, the map outputs in it, the remote tier, region areas."""

from typing import Annotated

import msgspec

from ...metric import gauge, total
from ...names import ShuffleKey

_OUTPUTS = gauge("map_outputs", "Map outputs held.")


class TierStatus(msgspec.Struct, frozen=True, gc=False):
    """One directory of the storage, or the remote tier."""

    tier: str = ""
    """``"memory"``, ``"disk"`` or ``"remote"``."""
    directory: str = ""
    """The URL of the remote tier."""
    capacity_bytes: Annotated[
        int | None,
        gauge("storage_capacity_bytes", "Most bytes that may be used.", "tier", "directory"),
    ] = None
    """None means as many bytes as the disk, or the remote store, allows."""
    used_bytes: Annotated[
        int, gauge("storage_used_bytes", "Bytes in extents that are in use.", "tier", "directory")
    ] = 0
    healthy: Annotated[
        bool, gauge("storage_healthy", "1 if the directory takes data.", "tier", "directory")
    ] = False
    free_bytes: Annotated[
        int, gauge("storage_free_bytes", "Bytes that new extents can get.", "tier", "directory")
    ] = 0
    reason: str = ""
    """Why it is not healthy, or takes no new map outputs although it is; else empty."""


class ShuffleStatus(msgspec.Struct, frozen=True, gc=False):
    """The map outputs of one shuffle on this TaskManager."""

    application_id: str = ""
    shuffle_id: int = 0
    committed_map_outputs: Annotated[int, _OUTPUTS.at(state="committed")] = 0
    open_map_outputs: Annotated[int, _OUTPUTS.at(state="open")] = 0
    stored_bytes: Annotated[int, gauge("stored_bytes", "Bytes of regions held.")] = 0
    regions: Annotated[int, gauge("regions", "Regions held.")] = 0

    @property
    def key(self) -> ShuffleKey:
        """The shuffle."""
        return ShuffleKey(self.application_id, self.shuffle_id)


class RemoteStatus(msgspec.Struct, frozen=True, gc=False):
    """The work of the remote tier; all zero without one. Totals begin with the process."""

    upload_bytes: Annotated[
        int, gauge("remote_upload_bytes", "Memory of parts that are filled or sent.")
    ] = 0
    waiting_uploads: Annotated[
        int,
        gauge(
            "remote_waiting_uploads",
            "Uploads that wait for that memory; their producers get no credit.",
        ),
    ] = 0
    waiting_deletes: Annotated[
        int,
        gauge("remote_waiting_deletes", "Objects of the remote tier that wait to be deleted."),
    ] = 0
    requests: Annotated[int, total("remote_requests", "Requests to the remote tier.")] = 0
    errors: Annotated[
        int, total("remote_errors", "Requests that failed, repetitions included.")
    ] = 0
    read_bytes: Annotated[int, total("remote_read_bytes", "Bytes read from the remote tier.")] = 0
    written_bytes: Annotated[
        int, total("remote_written_bytes", "Bytes written to the remote tier.")
    ] = 0
    moved_map_outputs: Annotated[
        int,
        total("remote_moved_map_outputs", "Map outputs that were moved to the remote tier."),
    ] = 0
    found_map_outputs: Annotated[
        int,
        total(
            "remote_found_map_outputs",
            "Map outputs of others that were found in the remote tier.",
        ),
    ] = 0
    removed_orphans: Annotated[
        int, total("remote_removed_orphans", "Orphans that sweeps removed there.")
    ] = 0


class RegionAreasStatus(msgspec.Struct, frozen=True, gc=False):
    """The memory that producers on this host share with the TaskManager."""

    areas: Annotated[
        int,
        gauge(
            "region_areas",
            "Areas of memory that producers on this host share with the TaskManager.",
        ),
    ] = 0
    used_bytes: Annotated[int, gauge("region_areas_used_bytes", "Bytes of region areas.")] = 0
