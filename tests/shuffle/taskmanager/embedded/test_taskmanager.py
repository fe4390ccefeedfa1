"""`TaskManager.embedded`: its defaults, its end, and the credential of its clients."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from sluice import (
    BytesSerializer,
    ClientConfig,
    ResultPartitionType,
    ShuffleClient,
    TaskManager,
    TaskManagerConfig,
)
from sluice.protocol.errors import AuthenticationFailed, ErrorCode, SluiceError
from sluice.protocol.identity import SALT_BYTES, TOKEN_ID_BYTES, SubmitToken, secret_to_text
from sluice.shuffle.taskmanager.embedded.temporary_config import temporary_config
from tests.support.api_clients import emitted
from tests.support.mini_cluster import taskmanager_config
from tests.support.raises_code import raises_code

SECRET = bytes(range(32))


def settings(directory, **keys) -> TaskManagerConfig:
    return taskmanager_config(directory, **keys)


def test_the_default_settings_leave_nothing_behind():
    with temporary_config() as config:
        directories = [*config.storage.data_directories, config.storage.memory_directory]
        assert all(each is None or each.is_dir() for each in directories)
        assert config.transport.data_port == config.http.http_port == 0
    assert not any(each is not None and each.exists() for each in directories)


async def test_it_needs_no_settings_and_serves_others_too():
    async with TaskManager.embedded() as taskmanager:
        assert taskmanager.http_port > 0
        with pytest.raises(SluiceError):
            async with taskmanager.client("app").open_gate([], 0):
                pytest.fail("opened")
        async with (
            taskmanager.client("app") as inside,
            await ShuffleClient.connect(inside.address, "app") as beside,
        ):
            for kind in ResultPartitionType:
                async with inside.open_result_partition(
                    1, int(kind), 1, partition_type=kind
                ) as partition:
                    await emitted(partition.record_writer(BytesSerializer()).emit(b"record"))
                async with beside.open_gate([partition.location], 0) as gate:
                    assert [each async for each in gate.records(BytesSerializer())] == [b"record"]
    assert taskmanager.state == "stopped"


async def test_a_task_that_never_ends_is_cut_off_after_the_time_to_drain(tmp_path):
    async def write_for_ever():
        async with client.open_result_partition(1, 7, 1) as partition:
            opened.set()
            while True:
                await partition.emit_buffer(bytes(100), 0)

    opened = asyncio.Event()
    config = settings(tmp_path).model_copy(update={"drain_timeout_seconds": 0.3})
    async with TaskManager.embedded(config) as taskmanager:
        client = taskmanager.client("app")
        writing = asyncio.create_task(write_for_ever())
        await opened.wait()
    with pytest.raises(SluiceError):
        await writing


async def test_tasks_inside_and_beside_share_the_data_of_one_credential(tmp_path):
    secret_file = tmp_path / "secret"
    secret_file.write_text(secret_to_text(SECRET))
    secret_file.chmod(0o600)
    token = SubmitToken.make(SECRET, "tests", 0, bytes(TOKEN_ID_BYTES))
    mine, other = (token.application(bytes([n]) * SALT_BYTES).to_text() for n in (1, 2))
    config = settings(tmp_path, partition_request_timeout_seconds=0.05)
    config = config.model_copy(
        update={"auth": config.auth.model_copy(update={"cluster_secret_files": (secret_file,)})}
    )
    async with TaskManager.embedded(config) as taskmanager:
        with raises_code(ErrorCode.AUTHENTICATION_REQUIRED, kind=AuthenticationFailed):
            taskmanager.client("app")
        async with (
            taskmanager.client("app", credential=mine) as inside,
            taskmanager.client("app", credential=other) as stranger,
            await ShuffleClient.connect(
                inside.address, "app", ClientConfig(), credential=mine
            ) as beside,
        ):
            ways = itertools.product(
                ((beside, inside), (inside, beside)),
                (ResultPartitionType.BLOCKING, ResultPartitionType.PIPELINED),
            )
            for attempt, ((writer, reader), kind) in enumerate(ways):
                async with writer.open_result_partition(
                    1, attempt, 1, partition_type=kind
                ) as partition:
                    await emitted(partition.record_writer(BytesSerializer()).emit(b"secret"))
                async with stranger.open_gate([partition.location], 0) as gate:
                    with pytest.raises(SluiceError, match="is not here"):
                        await gate.next_buffer_or_event()
                async with reader.open_gate([partition.location], 0) as gate:
                    assert [each async for each in gate.records(BytesSerializer())] == [b"secret"]
            scopes = {each.application_id for each in taskmanager.status().applications}
            assert len([name for name in scopes if name.startswith("app@")]) == 2
            assert "app" not in scopes


async def test_a_credential_for_other_taskmanagers_does_not_shut_its_own_tasks_out(
    tmp_path, monkeypatch
):
    """It is in the environment of the process for the clients of a cluster."""
    token = SubmitToken.make(SECRET, "tests", 0, bytes(TOKEN_ID_BYTES))
    text = token.application(bytes(SALT_BYTES)).to_text()
    monkeypatch.setenv("SLUICE_CREDENTIAL", text)
    async with TaskManager.embedded(settings(tmp_path)) as taskmanager:
        async with taskmanager.client("app") as client:
            assert client.address
        with pytest.raises(AuthenticationFailed):
            taskmanager.client("app", credential=text)
