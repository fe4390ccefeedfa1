"""Whether the storage has room: the rule and its hysteresis, and the page that tells it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sluice.shuffle.taskmanager.status.room import REGION_BYTES, ROOM_BYTES, StorageRoom
from sluice.shuffle.taskmanager.store.store_status import TierStatus

GIB = 1 << 30
MEMORY, DISK = "/dev/shm/m", "/data/1"


def a_tier(
    largest_free_bytes: int,
    capacity_bytes: int | None = GIB,
    *,
    healthy: bool = True,
    directory: str = MEMORY,
) -> TierStatus:
    return TierStatus(
        "memory" if directory == MEMORY else "disk",
        directory,
        capacity_bytes,
        healthy=healthy,
        reason="" if healthy else "Input/output error",
        largest_free_bytes=largest_free_bytes if healthy else 0,
    )


def has_room(room: StorageRoom, *tiers: TierStatus) -> bool:
    return room.none_because(tiers) is None


def test_one_tier_with_room_is_enough():
    full, roomy = a_tier(0), a_tier(REGION_BYTES, None, directory=DISK)
    assert has_room(StorageRoom(), full, roomy)
    assert has_room(StorageRoom(), roomy, full)


def test_the_reason_names_every_tier_and_what_it_has():
    room = StorageRoom()
    reason = room.none_because(
        [a_tier(REGION_BYTES - 1), a_tier(0, None, healthy=False, directory=DISK)]
    )
    assert reason == (
        f"no storage has room for a region in one piece: memory {MEMORY} has 2 MiB, disk {DISK} is "
        "out of use"
    )


def test_a_tier_out_of_use_gives_no_room():
    assert not has_room(StorageRoom(), a_tier(GIB, healthy=False))
    assert not has_room(StorageRoom())


@pytest.mark.parametrize(
    "free", [REGION_BYTES - 4096, REGION_BYTES, ROOM_BYTES // 2, ROOM_BYTES - 4096]
)
def test_a_full_store_stays_full_until_there_is_room_for_several_regions(free):
    room = StorageRoom()
    assert has_room(room, a_tier(REGION_BYTES))
    assert not has_room(room, a_tier(REGION_BYTES - 4096))
    for _ in range(3):
        assert not has_room(room, a_tier(free))
    assert has_room(room, a_tier(ROOM_BYTES))
    assert has_room(room, a_tier(REGION_BYTES))  # and from there it may be used up again


def test_a_store_at_its_brim_does_not_flap():
    """Each map output that is dropped makes room for a region, which takes it at once."""
    room = StorageRoom()
    seen = [has_room(room, a_tier(free)) for free in [REGION_BYTES, 0] * 50]
    assert seen == [True] + [False] * 99


@pytest.mark.parametrize("capacity", [16 * 4096, 1 << 20, 4 << 20])
def test_a_small_store_is_full_with_less_and_empty_it_has_room(capacity):
    room = StorageRoom()
    assert has_room(room, a_tier(capacity, capacity))
    assert has_room(room, a_tier(capacity // 16, capacity))
    assert not has_room(room, a_tier(capacity // 16 - 1, capacity))
    assert not has_room(room, a_tier(capacity // 2 - 1, capacity))
    assert has_room(room, a_tier(capacity // 2, capacity))


def test_a_disk_that_takes_nothing_leaves_the_room_to_the_remote_tier():
    off = a_tier(0, 0, directory=DISK)
    remote = replace(a_tier(GIB, None), tier="remote", directory="s3://bucket/prefix")
    assert has_room(StorageRoom(), off, remote)
    out = replace(remote, healthy=False, largest_free_bytes=0)
    reason = StorageRoom().none_because([off, out])
    assert reason is not None
    assert "remote s3://bucket/prefix is out of use" in reason
