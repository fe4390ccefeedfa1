"""Attacks by another user of the host on the paths of a TaskManager's files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.identity import secret_to_text
from tests.attack.rig import ALICE, SECRET, application, commit, read, write_secret
from tests.support.daemon import arguments, run

if TYPE_CHECKING:
    from pathlib import Path

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")
one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])

OTHER = 65534
RECORDS = b"the records of the victim " * 1000
VALUE = "what the victim keeps elsewhere"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory in which every user may make files, like /tmp and /dev/shm."""
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(0o1777)
    return path


@pytest.fixture
def victim_file(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text(VALUE)
    return path


def made_first(path: Path, victim_file: Path) -> Path:
    """Make the directory that the victim will use, with links to a file of the victim."""
    below = path / "below"
    below.mkdir(parents=True)
    for name in ("lock", "taskmanager-id", "health"):
        (below / name).symlink_to(victim_file)
    for each in (path, below):
        each.chmod(0o777)
        os.chown(each, OTHER, OTHER)
    return below


@as_root
@one_loop
@pytest.mark.parametrize("key", ["data_directories", "remote"])
async def test_nothing_is_stored_in_a_directory_that_another_user_made(
    start, secret_file, shared, victim_file, tmp_path, key
):
    theirs = made_first(shared / "sluice", victim_file)
    before = sorted(theirs.iterdir())
    keys = {"cluster_secret_files": secret_file, "min_free_bytes": 0}
    if key == "data_directories":
        refused = run(arguments(tmp_path, **keys, **{key: theirs}))
        assert refused.returncode == 1
        assert f"{shared / 'sluice'} belongs to user {OTHER}" in refused.stderr
        assert "Traceback" not in refused.stderr
    else:
        daemon = start(tmp_path, **keys, **{key: theirs})
        await daemon.logs(f"{shared / 'sluice'} belongs to user {OTHER}", 0)
    assert victim_file.read_text() == VALUE
    assert sorted(theirs.iterdir()) == before
    own = start(tmp_path / "own", **keys, **{key: shared / "own"})
    owner = application(ALICE, "of a directory of its own")
    await commit(own.address, owner, 1, RECORDS)
    assert await read(own.address, owner, [1]) == RECORDS


@as_root
@one_loop
@pytest.mark.parametrize("key", ["memory_directory", "region_areas_directory"])
async def test_no_memory_is_shared_in_a_directory_that_another_user_made(
    start, secret_file, shared, victim_file, tmp_path, key
):
    """The TaskManager works without it, as without a tmpfs."""
    theirs = made_first(shared / "sluice", victim_file)
    before = sorted(theirs.iterdir())
    daemon = start(tmp_path, cluster_secret_files=secret_file, min_free_bytes=0, **{key: theirs})
    await daemon.logs(f"{shared / 'sluice'} belongs to user {OTHER}", 0)
    owner = application(ALICE, "beside a stranger's memory")
    await commit(daemon.address, owner, 1, RECORDS)
    assert await read(daemon.address, owner, [1]) == RECORDS
    assert victim_file.read_text() == VALUE
    assert sorted(theirs.iterdir()) == before
    own = start(tmp_path / "own", cluster_secret_files=secret_file, **{key: shared / "own"})
    assert "belongs to user" not in own.log
    assert any((shared / "own").iterdir())


@as_root
@one_loop
async def test_a_pipe_in_place_of_an_id_does_not_stop_a_start(start, shared, tmp_path):
    """A TaskManager without a memory tier looks for one that an earlier run left."""
    theirs = shared / "sluice"
    theirs.mkdir()
    (theirs / "arena-2-0123456789abcdef.dat").touch()
    os.mkfifo(theirs / "taskmanager-id")
    os.chown(theirs, OTHER, OTHER)
    start(tmp_path, memory_directory=theirs, memory_tier_bytes=0, region_areas_bytes=0)


@as_root
@pytest.mark.parametrize("mode", [0o700, 0o777])
def test_others_cannot_put_a_socket_in_place_of_the_unix_socket(shared, tmp_path, mode):
    directory = shared / "run"
    directory.mkdir()
    directory.chmod(mode)
    os.chown(directory, OTHER if mode == 0o700 else os.geteuid(), OTHER)
    refused = run(arguments(tmp_path, socket_path=directory / "socket"))
    assert refused.returncode == 1
    assert f"{directory}" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not list(directory.iterdir())


@as_root
@one_loop
@pytest.mark.parametrize("by", ["owner", "directory", "link"])
async def test_a_secret_that_another_user_could_give_is_refused(start, shared, tmp_path, by):
    """Whoever gives a TaskManager its secret can do everything there."""
    directory = shared / "etc"
    directory.mkdir()
    secret = write_secret(directory / "secret")
    given = secret
    if by == "owner":
        os.chown(secret, OTHER, OTHER)
    elif by == "directory":
        directory.chmod(0o777)
    else:
        given = shared / "link"
        given.symlink_to(secret)
        os.lchown(given, OTHER, OTHER)
    refused = run(arguments(tmp_path, cluster_secret_files=given))
    assert refused.returncode == 1
    assert "is open to other users of this host" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert secret_to_text(SECRET)[-20:] not in refused.stderr
    own = write_secret(tmp_path / "secret")
    daemon = start(tmp_path, cluster_secret_files=own)
    owner = application(ALICE, "of its own secret")
    await commit(daemon.address, owner, 1, RECORDS)
