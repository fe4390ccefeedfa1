"""The file of a Unix socket is made again after it was removed."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
from typing import TYPE_CHECKING

import pytest

from sluice.transport import unix_socket
from sluice.transport.address import Address
from tests.support.peers import Service, a_config, a_service, end, open_client

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SOON_SECONDS = 0.01
PATIENCE_SECONDS = 20


@pytest.fixture(autouse=True)
def _looked_at_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_socket, "CHECK_SECONDS", SOON_SECONDS)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(SOON_SECONDS)


def restorations(service: Service) -> int:
    assert service.listener.unix_socket is not None
    return service.listener.unix_socket.restorations


def unlink(path: Path) -> None:
    path.unlink()


def remove_the_directory(path: Path) -> None:
    shutil.rmtree(path.parent)


def leave_a_dead_one(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


@pytest.mark.parametrize("remove", [unlink, remove_the_directory, leave_a_dead_one])
async def test_a_file_that_is_removed_is_made_again(
    tmp_path: Path, remove: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run" / "s"
    async with a_service(a_config(socket_path=path, socket_mode=0o600)) as service:
        before = await open_client(Address(str(path), 0))
        for times in (1, 2):
            with caplog.at_level(logging.WARNING):
                remove(path)
                await until(lambda times=times: restorations(service) == times)  # type: ignore[misc]
            assert f"the socket file {path} was removed" in caplog.text
            assert path.stat().st_mode & 0o777 == 0o600
            await end(await open_client(Address(str(path), 0)))
        await end(before)  # it was not disturbed
        assert service.listener.unix_socket is not None
        assert len(service.listener.unix_socket._acceptors) == 1, "replaced ones are not kept"
    assert not path.exists()


async def test_a_file_that_cannot_be_made_is_logged_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s"
    async with a_service(a_config(socket_path=path)) as service:
        path.unlink()
        path.mkdir()
        looks = count_looks(service)
        await until(lambda: looks() > 3)
        assert caplog.text.count("a file that is not a socket is in the way") == 1
        path.rmdir()
        await until(lambda: restorations(service) == 1)
        await end(await open_client(Address(str(path), 0)))


async def test_the_file_of_a_living_process_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s"
    async with a_service(a_config(socket_path=path)) as service:
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
            other.listen(0)
            theirs = path.lstat().st_ino
            looks = count_looks(service)
            await until(lambda: looks() > 3)  # its backlog is full by then
            assert path.lstat().st_ino == theirs
            assert caplog.text.count("another TaskManager answers there") == 1
    assert path.lstat().st_ino == theirs


async def test_a_file_that_cannot_get_its_mode_is_not_taken_for_a_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    async with a_service(a_config(socket_path=path)) as service:
        with monkeypatch.context() as patch:

            def refuse(*_: object) -> None:
                raise PermissionError(1, "not permitted")

            patch.setattr(os, "chmod", refuse)
            looks = count_looks(service)
            path.unlink()
            await until(lambda: looks() > 3)
            assert restorations(service) == 0
        await until(lambda: restorations(service) == 1)
        await end(await open_client(Address(str(path), 0)))


def count_looks(service: Service) -> Callable[[], int]:
    """Count the looks at the file from now on."""
    watched = service.listener.unix_socket
    assert watched is not None
    count = 0
    look = watched._look

    def counted() -> None:
        nonlocal count
        count += 1
        look()

    watched._look = counted  # type: ignore[method-assign]
    return lambda: count
