"""The upgrade promise of docs/operate/upgrading.md: this release works with the previous one.

The wheel in this folder is the previous release. Each test takes both directions: what is new
beside what is old.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.releases.rig import JOB_SECONDS, Mixed, Release
from tests.support.wire_clients import consumer, producer, read_gate, write_map_output

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.daemon import Daemon

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("previous_release"),  # one worker unpacks it
]

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])

ORDERS = [("previous", "this"), ("this", "previous")]
LARGE = b"larger than the memory tier, and so on disk" * 500_000
SMALL = b"in the memory tier"
KEYS = "import json; from sluice.shuffle.taskmanager.config.taskmanager_config import keys;"
OPTIONS = """
import json

import click

from sluice.cli.main import main

def walk(command, words):
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from walk(command.get_command(context, name), [*words, name])
    else:
        options = [each for each in command.params if isinstance(each, click.Option)]
        yield " ".join(words), [name for each in options for name in each.opts]

print(json.dumps(dict(walk(main, []))))
"""
CLIENT = """
import asyncio, sys
from sluice import HashSelector, ShuffleClient, StringSerializer

async def main(endpoint):
    async with await ShuffleClient.connect(endpoint, "words") as client:
        async with client.open_result_partition(1, 0, 2) as partition:
            writer = partition.record_writer(StringSerializer(), HashSelector(str.encode))
            for word in ("to", "be", "or", "not"):
                if (pending := writer.emit(word)) is not None:
                    await pending
        words = []
        for subpartition in range(2):
            async with client.open_gate([partition.location], subpartition) as gate:
                words += [word async for word in gate.records(StringSerializer())]
        print(*sorted(words))

asyncio.run(main(sys.argv[1]))
"""
JOB = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
rows = spark.sparkContext.parallelize(range(1000), 4).map(lambda n: (n % 7, 1))
print("counts", sorted(rows.reduceByKey(lambda a, b: a + b, 3).collect()))
print("manager", spark.sparkContext._jsc.sc().conf().get("spark.shuffle.manager"))
"""


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Release]:
    directory = tmp_path_factory.mktemp("previous")
    return {"this": Release.this(), "previous": Release.previous(directory)}


@pytest.fixture
def running(releases: dict[str, Release], tmp_path: Path, request: pytest.FixtureRequest):
    """A TaskManager with a secret that the other release has made, and the other release."""
    name, other = request.param
    secret = tmp_path / "secret"
    releases[other].run(["secret", "create", str(secret)], tmp_path)
    with releases[name].daemon(tmp_path / "tm", cluster_secret_files=secret) as daemon:
        yield daemon, releases[other], secret


def settings_of(release: Release, directory: Path) -> dict[str, str]:
    text = f"{KEYS} print(json.dumps({{name: key.section for name, key in keys().items()}}))"
    found: dict[str, str] = json.loads(release.program(text, [], directory))
    return found


def options_of(release: Release, directory: Path) -> dict[str, list[str]]:
    """Return the options of each command."""
    found: dict[str, list[str]] = json.loads(release.program(OPTIONS, [], directory))
    return found


def test_the_wheel_is_another_release_than_this_tree(releases, tmp_path: Path):
    text = "import sluice; print(sluice.__file__)"
    places = {each.program(text, [], tmp_path) for each in releases.values()}
    assert len(places) == 2


def test_every_setting_of_the_previous_release_is_still_one(releases, tmp_path: Path):
    before = settings_of(releases["previous"], tmp_path)
    now = settings_of(releases["this"], tmp_path)
    assert len(before) > 50
    assert before.items() <= now.items()


def test_every_command_and_option_of_the_previous_release_is_still_one(releases, tmp_path: Path):
    before = options_of(releases["previous"], tmp_path)
    now = options_of(releases["this"], tmp_path)
    assert {"drain", "status", "submit", "taskmanager", "token create"} <= before.keys()
    for command, options in before.items():
        assert set(options) <= set(now[command]), command


@pytest.mark.parametrize("running", ORDERS, indirect=True, ids="-".join)
def test_the_other_release_commands_a_taskmanager(running, tmp_path: Path):
    daemon, command, secret = running
    proof = ["--secret-file", str(secret)]
    assert daemon.identity in command.run(["status", daemon.url, *proof], tmp_path)
    shown = json.loads(command.run(["status", "--json", daemon.url, *proof], tmp_path))
    assert daemon.identity in json.dumps(shown)
    token = tmp_path / "access"
    make = ["token", "create", "--access", "status", "--out", str(token)]
    command.run([*make, *proof], tmp_path)
    assert command.run(["status", daemon.url, "--token-file", str(token)], tmp_path)
    command.run(["drain", "--wait", "30", daemon.url, *proof], tmp_path)
    assert daemon.status().state == "draining"
    command.run(["undrain", daemon.url, *proof], tmp_path)
    assert daemon.status().state == "ready"


@pytest.mark.parametrize(("server", "client"), ORDERS)
def test_the_other_release_writes_and_reads_records(
    releases, server: str, client: str, tmp_path: Path
):
    with releases[server].daemon(tmp_path / "tm") as daemon:
        assert releases[client].program(CLIENT, [daemon.endpoint], tmp_path) == "be not or to\n"


@pytest.fixture
def mixed(releases, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[list[Daemon]]:
    """Two TaskManagers of one cluster: the first of the one release, the second of the other."""
    with Mixed(tmp_path, [releases[name] for name in request.param]) as cluster:
        yield cluster.daemons


async def write(daemon: Daemon) -> None:
    """Commit a map output on disk and one in memory."""
    writer = await producer(daemon.address)
    await write_map_output(writer, 1, 0, [[LARGE, b""]])
    await write_map_output(writer, 1, 1, [[SMALL, b""]])
    await writer.close()


async def read(daemon: Daemon, source: Daemon) -> list[bytes]:
    """Read both map outputs of a TaskManager through another one, or itself."""
    holder = await consumer(source.address)
    reader = await consumer(daemon.address)
    found = [await read_gate(reader, 1, [(holder.ack, [each])], 0, 2) for each in (0, 1)]
    await reader.close()
    await holder.close()
    return [data for (data,) in found]


@one_loop
@pytest.mark.parametrize("mixed", ORDERS, indirect=True, ids="-".join)
async def test_taskmanagers_of_both_releases_serve_each_other(mixed):
    first, second = mixed
    await write(first)
    assert await read(second, first) == [LARGE, SMALL]
    await asyncio.to_thread(first.drain, migrate=True)
    assert await read(second, second) == [LARGE, SMALL]


@one_loop
@pytest.mark.parametrize(("before", "after"), ORDERS)
async def test_map_outputs_stay_when_the_release_changes(
    releases, before: str, after: str, tmp_path: Path
):
    """An upgrade and a downgrade of one TaskManager, between releases of one journal format."""
    with releases[before].daemon(tmp_path / "tm") as older:
        await write(older)
        assert await asyncio.to_thread(older.end) == 0
    with releases[after].daemon(tmp_path / "tm") as newer:
        assert "2 map outputs adopted" in newer.log
        assert await read(newer, newer) == [LARGE, SMALL]


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.parametrize(("server", "plugin"), ORDERS)
def test_a_job_with_the_plugin_of_the_other_release(
    releases, server: str, plugin: str, tmp_path: Path
):
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    (tmp_path / "job.py").write_text(JOB, encoding="utf-8")
    options = ["--master", "local[2]", "--conf", "spark.ui.enabled=false", "job.py"]
    with releases[server].daemon(tmp_path / "tm") as daemon:
        submit = ["submit", "--endpoints", daemon.endpoint, "--", *options]
        output = releases[plugin].run(submit, tmp_path, JOB_SECONDS)
    counts = dict(re.findall(r"\((\d), (\d+)\)", output))
    assert sum(map(int, counts.values())) == 1000
    assert "manager io.sluice.spark.SluiceShuffleManager" in output
