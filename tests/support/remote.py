"""The places of a remote tier in tests: a directory, or a bucket of a real S3 server."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from tests.support.s3 import SERVER

if TYPE_CHECKING:
    from pathlib import Path

    from sluice.shuffle.taskmanager.bounds.accounts import Accounts
    from sluice.shuffle.taskmanager.config.storage_config import StorageConfig
    from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput, Region
    from tests.support.s3 import S3Server

REMOTE_ONLY = {"memory_tier_bytes": 0, "disk_quota_bytes": 0}
"""Settings of a store whose regions all go to the remote tier."""

both_places = pytest.mark.parametrize(
    "place",
    [
        "directory",
        pytest.param("s3", marks=pytest.mark.skipif(not SERVER.exists(), reason="make s3-server")),
    ],
    indirect=True,
)


def open_store(settings: StorageConfig, accounts: Accounts | None = None) -> Any:
    """Open a store."""
    return ShuffleStore.open(settings, accounts)


def extent_of(output: MapOutput) -> Any:
    """Return the extent of the first region of a map output."""
    return output.regions[0].extent


def extent_of_region(region: Region) -> Any:
    """Return the extent of a region that is not empty."""
    return region.extent


def tier_of(store: ShuffleStore) -> Any:
    """Return the remote tier of a store that has one."""
    return store._tiers.remote


def moved_of(store: ShuffleStore) -> Any:
    """Return the moved map outputs of a store with a remote tier."""
    return store.remote


@dataclass
class Place:
    """Where the remote tier lies.

    Attributes:
        settings: Of the TaskManager.
        top: Directory below which all objects are files.
    """

    settings: dict[str, Any]
    top: Path

    def names(self) -> list[str]:
        """Return the names of all objects."""
        return sorted(
            os.path.relpath(os.path.join(top, name), self.top)
            for top, _, names in os.walk(self.top)  # empty directories go meanwhile
            for name in names
        )

    def data(self) -> list[str]:
        """Return the names of all objects but the marks."""
        return [name for name in self.names() if name.startswith(("regions/", "moved/"))]


def directory_place(directory: Path) -> Place:
    top = directory / "remote"
    return Place({"remote": str(top)}, top)


def s3_place(server: S3Server) -> Place:
    bucket = server.bucket()
    settings = {"remote": f"s3://{bucket}/some/prefix", "remote_endpoint": server.endpoint}
    return Place(settings, server.root / bucket / "some/prefix")
