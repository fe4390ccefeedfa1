"""``sluice inspect``, live and on a disk: the same map outputs, and damage by name."""

from __future__ import annotations

import asyncio
import json

import pytest

from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.taskmanager import TaskManager
from tests.cli.rig import NOWHERE, run
from tests.support.http_servers import serving
from tests.support.mini_cluster import taskmanager_config
from tests.support.store import KEY, config, on_disks, put


def stored(make_config, count=3, length=4000):
    async def write():
        store = ShuffleStore.open(make_config)
        for attempt in range(count):
            await put(store, attempt, length)
        await store.close()

    asyncio.run(write())


@pytest.fixture
def live(tmp_path):
    """A TaskManager with three map outputs; yields its URL."""

    async def start():
        taskmanager = TaskManager(taskmanager_config(tmp_path / "tm"))
        await taskmanager.start()
        for attempt in range(3):
            await put(taskmanager.environment.store, attempt, 4000)
        return taskmanager.http_port, taskmanager.stop

    with serving(start) as port:
        yield f"http://127.0.0.1:{port}"


def test_a_running_taskmanager_shows_its_map_outputs(live):
    result = run("inspect", "app-1/0", "--url", live)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("shuffle 0 of app-1: 3 map outputs, 11.7 KiB\n")
    document = json.loads(run("inspect", "app-1/0", "--url", live, "--json").stdout)
    assert document["schema"] == "sluice.inspect/1"
    outputs = document["shuffle"]["outputs"]
    assert [each["map_attempt_id"] for each in outputs] == [0, 1, 2]
    assert [each["regions"][0]["length_bytes"] for each in outputs] == [4000] * 3


def test_the_shuffles_of_a_running_taskmanager_are_listed(live):
    result = run("inspect", "--url", live)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].split()[:3] == ["app-1", "0", "3"]


def test_pages_are_asked_for_by_the_first_map_attempt(live):
    result = run("inspect", "app-1/0", "--url", live, "--limit", "2")
    assert result.stdout.splitlines()[-1] == "more map outputs: --first 2"
    last = run("inspect", "app-1/0", "--url", live, "--limit", "2", "--first", "2")
    assert "more map outputs" not in last.stdout


def test_an_unknown_application_is_one_line_with_the_remedy(live):
    result = run("inspect", "nobody/0", "--url", live)
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "it answered 404 Not Found: No application of this name" in result.stderr
    assert f"sluice inspect --url {live}" in result.stderr


def test_directories_show_the_same_without_a_taskmanager(tmp_path):
    stored(config(tmp_path))
    directories = "--directory", tmp_path / "data", "--directory", tmp_path / "memory"
    listed = run("inspect", *directories)
    assert listed.exit_code == 0, listed.output
    assert listed.stdout.splitlines()[-1].split()[:3] == ["app-1", "0", "3"]
    document = json.loads(run("inspect", "app-1/0", *directories, "--json").stdout)
    assert document["problems"] == []
    outputs = document["shuffle"]["outputs"]
    assert [each["map_attempt_id"] for each in outputs] == [0, 1, 2]
    assert run("inspect", "app-1/0", *directories, "--first", 1, "--limit", 1).stdout.endswith(
        "more map outputs: --first 2\n"
    )


def test_a_damaged_region_is_named_and_fails(tmp_path):
    stored(on_disks(tmp_path, "a"))
    (arena,) = (tmp_path / "a").glob("arena-*")
    data = bytearray(arena.read_bytes())
    data[4096] ^= 1
    arena.write_bytes(data)
    result = run("inspect", "--directory", tmp_path / "a")
    assert result.exit_code == 1
    assert (
        f"problem  map attempt 1 of {KEY}, region 0: its bytes do not have their checksum"
        in result.stdout.splitlines()
    )
    assert run("inspect", "--directory", tmp_path / "a", "--no-verify").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "exit_code", "reason"),
    [
        (("app-1",), 2, "is not APPLICATION/SHUFFLE"),
        (("app-1/x",), 2, "is not APPLICATION/SHUFFLE"),
        (("a/1", "--url", NOWHERE, "--directory", "/tmp"), 2, "leave one out"),
        (("a/1", "--url", NOWHERE), 1, "no TaskManager answers"),
        (("a/1", "--directory", "/no/such"), 1, "/no/such cannot be used"),
    ],
)
def test_a_mistake_is_an_error_without_a_traceback(arguments, exit_code, reason):
    result = run("inspect", *arguments)
    assert result.exit_code == exit_code
    assert reason in result.stderr
