"""Each of two releases in one directory finds its own files and does not change the others."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

import pytest

from sluice.shuffle.taskmanager.store.errors import StorageUnavailable
from sluice.shuffle.taskmanager.store.files.file_format import (
    FORMAT,
    arenas_in,
    files_of_other_formats,
)
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from tests.support.store import config, put

if TYPE_CHECKING:
    from pathlib import Path

ARENA_OF_FORMAT_1 = "arena-00112233445566aa.dat"
JOURNAL_OF_FORMAT_1 = "journal-00000012"


def leave_format_1(directory: Path, *, journal: bool = True) -> dict[str, bytes]:
    """Write what a release of format 1 leaves in a directory; return names and contents.

    Its journal stood in the first data directory only, so others have an arena alone.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files = {ARENA_OF_FORMAT_1: b"stored" * 5000}
    if journal:
        files[JOURNAL_OF_FORMAT_1] = f"sluice journal 1 {sys.byteorder}\n".encode() + b"rows"
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return files


def kept(directory: Path, files: dict[str, bytes]) -> bool:
    return all((directory / name).read_bytes() == content for name, content in files.items())


@pytest.mark.parametrize("journal", [True, False])
@pytest.mark.parametrize("name", ["data", "memory"])
async def test_files_of_an_older_format_stay_beside_those_of_this_one(
    tmp_path, caplog, name, journal
):
    directory = tmp_path / name
    files = leave_format_1(directory, journal=journal)
    for attempt in range(3):
        store = ShuffleStore.open(config(tmp_path))
        assert all(tier.healthy for tier in store.tiers())
        assert store.statistics().adopted_map_outputs == attempt
        await put(store, attempt, 40_000)
        await store.close()
    assert kept(directory, files)
    assert [path.name for path in files_of_other_formats(directory)] == sorted(files)
    assert "data of another release" in caplog.text
    assert JOURNAL_OF_FORMAT_1 in caplog.text or not journal
    assert "rm " not in caplog.text


async def test_an_arena_with_the_first_name_of_this_format_is_renamed(tmp_path):
    store = ShuffleStore.open(config(tmp_path))
    await put(store, 1, 40_000)
    await put(store, 2, 2_000_000)
    await store.close()
    for directory in (tmp_path / "data", tmp_path / "memory"):
        (arena,) = arenas_in(directory)
        arena.rename(arena.with_name(arena.name.replace(f"-{FORMAT}-", "-")))
    again = ShuffleStore.open(config(tmp_path))
    assert again.statistics().adopted_map_outputs == 2
    await again.close()
    for directory in (tmp_path / "data", tmp_path / "memory"):
        assert arenas_in(directory)[0].name.startswith(f"arena-{FORMAT}-")
        assert files_of_other_formats(directory) == []


async def with_format_of_the_future(directory: Path) -> dict[str, bytes]:
    """Store something and raise the number in the header; return names and contents."""
    store = ShuffleStore.open(config(directory.parent, data_directories=(directory,)))
    await put(store, 1, 2_000_000)
    await store.close()
    return rewrite_header(directory)


def rewrite_header(directory: Path) -> dict[str, bytes]:
    (journal,) = directory.glob("journal-*")
    journal.write_bytes(journal.read_bytes().replace(b"journal 2", b"journal 3", 1))
    return {path.name: path.read_bytes() for path in directory.glob("[ajr]*-*")}


async def test_a_journal_of_a_newer_release_ends_the_start_and_stays(tmp_path, caplog):
    directory = tmp_path / "data"
    files = await with_format_of_the_future(directory)
    with pytest.raises(StorageUnavailable, match=r"format 3 \(.*\), this release reads format 2"):
        ShuffleStore.open(config(tmp_path))
    assert kept(directory, files)
    assert "rm " not in caplog.text


async def test_a_directory_of_a_newer_release_is_not_used_anew(tmp_path):
    directory = tmp_path / "newer"
    files = await with_format_of_the_future(directory)
    settings = config(tmp_path, data_directories=(tmp_path / "data", directory))
    store = ShuffleStore.open(settings)
    assert [tier.healthy for tier in store.tiers()] == [True, True, False]
    found = []
    for _ in range(3):
        with pytest.raises(StorageUnavailable, match="its journal has format"):
            store._storage.open_anew(directory, settings)
        found.append(len(os.listdir("/proc/self/fd")))
    assert found[1:] == found[:-1], "each time keeps descriptors"
    await store.close()
    assert kept(directory, files)


async def test_the_last_line_of_a_failed_start_names_every_reason_and_remedy(tmp_path):
    newer, blocked = tmp_path / "newer", tmp_path / "file"
    await with_format_of_the_future(newer)
    blocked.write_text("")
    with pytest.raises(StorageUnavailable) as caught:
        ShuffleStore.open(config(tmp_path, data_directories=(newer, blocked)))
    text = str(caught.value)
    assert re.search("format 3.*Not a directory|Not a directory.*format 3", text)
    assert "Start the release of Sluice that wrote it" in text
    assert "is writable" in text
