"""Paths where another user can put a file in place of this user's are refused."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

import pytest

from sluice.transport.trusted_path import UntrustedPath, require_trusted

if TYPE_CHECKING:
    from pathlib import Path

STRANGER = 12345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def directory(path: Path, mode: int = 0o700, uid: int = -1, gid: int = -1) -> Path:
    path.mkdir()
    if (uid, gid) != (-1, -1):
        os.chown(path, uid, gid)
    path.chmod(mode)
    return path


def refused(path: Path, culprit: Path, words: str, *, private: bool = False) -> None:
    with pytest.raises(UntrustedPath, match=words) as caught:
        require_trusted(path, 0o700, private=private)
    assert caught.value.filename == str(culprit)
    assert str(culprit) in caught.value.reason
    assert str(culprit) in caught.value.remedy


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o711, 0o2750])
def test_a_path_of_this_user_is_trusted(tmp_path: Path, mode: int) -> None:
    require_trusted(directory(tmp_path / "own", mode), private=True)


@as_root
@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("parent_mode", [0o755, 0o1777])
def test_a_component_of_another_user_is_refused(
    tmp_path: Path, depth: int, parent_mode: int
) -> None:
    path = theirs = directory(directory(tmp_path / "parent", parent_mode) / "a", uid=STRANGER)
    for _ in range(depth):
        path = directory(path / "b")
    refused(path, theirs, f"belongs to user {STRANGER}, not to root")


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o2777])
def test_a_directory_in_which_others_replace_names_is_refused(tmp_path: Path, mode: int) -> None:
    shared = directory(tmp_path / "shared", mode)
    refused(shared, shared, f"mode {mode:04o}")
    refused(shared / "below", shared, f"mode {mode:04o}")


def test_the_sticky_bit_protects_names_but_no_new_files(tmp_path: Path) -> None:
    shared = directory(tmp_path / "shared", 0o1777)
    require_trusted(shared)
    require_trusted(shared / "below", 0o700, private=True)
    refused(shared, shared, "mode 1777", private=True)


@as_root
def test_a_group_of_this_process_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = directory(tmp_path / "shared", 0o770, 0, STRANGER)
    refused(shared, shared, "mode 0770")
    monkeypatch.setattr(os, "getgroups", lambda: [STRANGER])
    require_trusted(shared, private=True)


@as_root
def test_in_a_container_the_directories_of_group_0_are_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenShift runs a container as any user of group 0."""
    private = directory(tmp_path / "private", 0o755)
    image = directory(private / "image", 0o770, STRANGER, 0)
    refused(image, image, "belongs to user")  # root needs no group
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER + 1)
    require_trusted(image, private=True)
    image.chmod(0o750)
    refused(image, image, "belongs to user")
    image.chmod(0o770)
    private.chmod(0o1777)  # where a stranger could have made it
    refused(image, image, "belongs to user")
    private.chmod(0o755)
    monkeypatch.setattr(os, "getgroups", lambda: [STRANGER])
    monkeypatch.setattr(os, "getegid", lambda: STRANGER)
    refused(image, image, "belongs to user")


def test_links_are_followed_to_their_ends(tmp_path: Path) -> None:
    end = directory(directory(tmp_path / "real") / "end")
    (tmp_path / "absolute").symlink_to(end)
    (tmp_path / "relative").symlink_to("real/../absolute")
    require_trusted(tmp_path / "relative", private=True)
    require_trusted(tmp_path / "relative" / ".." / "new", 0o700)
    assert (tmp_path / "real" / "new").is_dir()
    end.chmod(0o777)
    refused(tmp_path / "relative", end, "mode 0777")


@as_root
def test_a_link_of_another_user_is_refused(tmp_path: Path) -> None:
    shared = directory(tmp_path / "shared", 0o1777)
    link = shared / "link"
    link.symlink_to(directory(tmp_path / "end"))
    require_trusted(link)
    os.lchown(link, STRANGER, STRANGER)
    refused(link, link, f"belongs to user {STRANGER}")


def test_a_circle_of_links_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="levels of symbolic links") as caught:
        require_trusted(tmp_path / "a")
    assert caught.value.errno == errno.ELOOP


def test_a_missing_directory_is_made_below_those_that_others_can_pass(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c"
    with pytest.raises(FileNotFoundError):
        require_trusted(path)
    require_trusted(path, 0o700)
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (path, *path.parents[:2])]
    assert modes == [0o700, 0o711, 0o711]
