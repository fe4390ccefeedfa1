"""A client finds its credential in several places, and reaches its own data with it."""

from __future__ import annotations

import asyncio
import contextlib
import traceback

import pytest

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.protocol.identity import (
    KIND_TASK,
    ClusterSecrets,
    InvalidCredential,
    SubmitToken,
    parse_credential,
    secret_to_text,
)
from sluice.protocol.remote_error import RemoteError
from sluice.shuffle.client.client import ShuffleClient
from sluice.shuffle.client.credentials import (
    CREDENTIAL_FILE_VARIABLE,
    CREDENTIAL_VARIABLE,
    client_credential,
    read_credential_file,
)
from sluice.shuffle.dataflow.sync import SyncShuffleClient
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.shuffle.records.selectors import HashSelector
from sluice.shuffle.records.serializers import BytesSerializer
from sluice.shuffle.taskmanager.wiring import NetworkEnvironment
from tests.protocol.identity_vectors import OTHER_SECRET, SALT, SECRET, TOKEN_ID
from tests.support.mini_cluster import (
    network_leftovers,
    segments_out,
    taskmanager_config,
    until_clean,
)

DEADLINE_SECONDS = 30
NOT_FOUND_SECONDS = 0.2
"""How long the TaskManager waits for a partition; a reader of what is not there waits for it."""

TOKEN = SubmitToken.make(SECRET, "alice", 0, TOKEN_ID)
BOB = SubmitToken.make(SECRET, "bob", 0, TOKEN_ID)
DRIVER = TOKEN.application(SALT)
OF_TOKEN = TOKEN.application(TOKEN.salt_of("app")).for_tasks()
OWNER = SubmitToken.make(SECRET)
OF_SECRET = OWNER.application(OWNER.salt_of("app")).for_tasks()
RECORDS = [b"%d" % number * (1 + number % 50) for number in range(2000)]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in (CREDENTIAL_VARIABLE, CREDENTIAL_FILE_VARIABLE):
        monkeypatch.delenv(name, raising=False)


def in_file(path, text):
    path.write_text(text)
    return {CREDENTIAL_FILE_VARIABLE: str(path)}


# ---- where it is found -----------------------------------------------------------------------


FORMS = pytest.mark.parametrize(
    ("text", "found"),
    [
        (TOKEN.to_text(), OF_TOKEN),
        (secret_to_text(SECRET), OF_SECRET),
        (DRIVER.to_text(), DRIVER.for_tasks()),
        (DRIVER.for_tasks().to_text(), DRIVER.for_tasks()),
    ],
    ids=["token", "secret", "driver", "task"],
)


@FORMS
@pytest.mark.parametrize("ending", ["", "\n", " \r\n"], ids=["bare", "line", "blanks"])
def test_every_form_gives_the_credential_of_a_task_from_everywhere(tmp_path, text, found, ending):
    text += ending
    assert client_credential(text, "app", {}) == found
    assert client_credential(None, "app", {CREDENTIAL_VARIABLE: text}) == found
    assert client_credential(None, "app", in_file(tmp_path / "credential", text)) == found
    assert found.claim.kind == KIND_TASK


@pytest.mark.parametrize("given", [DRIVER, DRIVER.for_tasks()], ids=["driver", "task"])
def test_a_credential_is_taken_as_it_is_but_for_tasks_only(given):
    assert client_credential(given, "any", {}) == DRIVER.for_tasks()


def test_the_credential_of_a_peer_is_none_of_a_client():
    with pytest.raises(InvalidCredential, match="Only a driver"):
        client_credential(ClusterSecrets([SECRET]).peer("a:1"), "app", {})


@FORMS
def test_only_tokens_and_secrets_give_each_application_its_own(text, found):
    other = client_credential(text, "other", {})
    assert (other != found) == (found in (OF_TOKEN, OF_SECRET))


def test_an_argument_comes_before_the_variable_and_that_before_the_file(tmp_path):
    variable = {CREDENTIAL_VARIABLE: TOKEN.to_text()}
    file = in_file(tmp_path / "credential", secret_to_text(SECRET))
    given = DRIVER.to_text()
    assert client_credential(given, "app", variable | file) == DRIVER.for_tasks()
    assert client_credential(DRIVER, "app", variable | file) == DRIVER.for_tasks()
    assert client_credential(None, "app", variable | file) == OF_TOKEN
    assert client_credential(None, "app", file) == OF_SECRET


def test_a_file_that_is_not_needed_is_not_read(tmp_path):
    missing = {CREDENTIAL_FILE_VARIABLE: str(tmp_path / "missing")}
    assert client_credential(DRIVER, "app", missing) == DRIVER.for_tasks()
    assert client_credential(None, "app", {CREDENTIAL_VARIABLE: TOKEN.to_text()} | missing)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {CREDENTIAL_VARIABLE: ""},
        {CREDENTIAL_FILE_VARIABLE: ""},
        {CREDENTIAL_VARIABLE: "", CREDENTIAL_FILE_VARIABLE: ""},
        {"SLUICE_CREDENTIALS": "sluice-token-1-x"},
    ],
    ids=["none", "empty", "empty file", "both empty", "other"],
)
def test_without_any_there_is_none(environment):
    assert client_credential(None, "app", environment) is None


def test_an_empty_variable_lets_the_file_count(tmp_path):
    file = in_file(tmp_path / "credential", TOKEN.to_text())
    assert client_credential(None, "app", {CREDENTIAL_VARIABLE: ""} | file) == OF_TOKEN


@pytest.mark.parametrize("kind", ["missing", "directory"])
def test_a_file_that_cannot_be_read_is_named_with_the_variable(tmp_path, kind):
    path = tmp_path / "credential"
    if kind == "directory":
        path.mkdir()
    with pytest.raises(InvalidCredential, match="cannot be read") as caught:
        read_credential_file(path)
    assert caught.value.code is ErrorCode.CONFIGURATION
    assert str(path) in str(caught.value)
    assert CREDENTIAL_FILE_VARIABLE in caught.value.remedy
    with pytest.raises(InvalidCredential):
        client_credential(None, "app", {CREDENTIAL_FILE_VARIABLE: str(path)})


DAMAGED = pytest.mark.parametrize(
    "text",
    [
        "hunter2-" * 20,
        TOKEN.to_text()[:60],
        DRIVER.to_text()[:-60],
        TOKEN.to_text().replace("sluice-token-1-", "sluice-token-2-"),
        TOKEN.to_text().replace("sluice-token-1-", "sluice-task-1-"),
        TOKEN.to_text() + " é" + TOKEN.to_text(),
        secret_to_text(SECRET)[:-4],
        "x" + secret_to_text(SECRET),
        TOKEN.to_text()[:40] + "\udcff" + TOKEN.to_text()[40:],
    ],
    ids=[
        "password",
        "cut token",
        "cut driver",
        "version",
        "kind",
        "two",
        "cut secret",
        "prefix",
        "bytes",
    ],
)


@DAMAGED
def test_a_damaged_text_is_refused_and_repeated_nowhere(tmp_path, text):
    file = tmp_path / "credential"
    file.write_bytes(text.encode(errors="surrogateescape"))
    for given, environment in (
        (text, {}),
        (None, {CREDENTIAL_VARIABLE: text}),
        (None, {CREDENTIAL_FILE_VARIABLE: str(file)}),
    ):
        with pytest.raises(InvalidCredential) as caught:
            client_credential(given, "app", environment)
        assert caught.value.remedy
        error = caught.value
        shown = "".join(traceback.format_exception_only(error)) + str(error.__cause__)
        body = text[16:]  # behind every prefix
        assert not [at for at in range(len(body) - 7) if body[at : at + 8] in shown]


def test_an_empty_argument_is_no_credential_and_not_a_lack_of_one():
    with pytest.raises(InvalidCredential):
        client_credential("", "app", {CREDENTIAL_VARIABLE: TOKEN.to_text()})


def test_an_empty_file_is_no_credential(tmp_path):
    with pytest.raises(InvalidCredential):
        client_credential(None, "app", in_file(tmp_path / "credential", "\n"))


# ---- at a TaskManager ------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def a_taskmanager(directory, secret=SECRET):
    """Run a TaskManager; check at the end that no connection has left anything.

    Without a secret it serves whoever reaches it.
    """
    auth: dict[str, object] = {"allow_anonymous": True}
    if secret is not None:
        file = directory / "secret"
        file.write_text(secret_to_text(secret))
        file.chmod(0o600)
        auth = {"cluster_secret_files": (file,)}
    environment = await NetworkEnvironment.build(
        taskmanager_config(directory, partition_request_timeout_seconds=NOT_FOUND_SECONDS, **auth)
    )
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            yield environment
        await until_clean(environment, network_leftovers)
    finally:
        await environment.close()
        await until_clean(environment, segments_out)


async def write(client):
    """Write the records, and return the location of the partition."""
    kind = ResultPartitionType.BLOCKING
    async with client.open_result_partition(1, 7, 1, partition_type=kind) as partition:
        writer = partition.record_writer(BytesSerializer(), HashSelector[bytes]())
        if (pending := writer.emit_batch(RECORDS)) is not None:
            await pending
    return partition.location


async def read(client, location):
    async with client.open_gate([location], 0) as gate:
        return [record async for record in gate.records(BytesSerializer())]


@FORMS
async def test_all_clients_with_a_credential_share_the_data(tmp_path, monkeypatch, text, found):
    async with a_taskmanager(tmp_path) as environment:
        async with await ShuffleClient.connect(
            environment.address, "app", credential=text
        ) as producer:
            location = await write(producer)
        async with await ShuffleClient.connect(
            environment.address, "app", credential=found
        ) as consumer:
            assert await read(consumer, location) == RECORDS
        monkeypatch.setenv(CREDENTIAL_VARIABLE, text)
        async with await ShuffleClient.connect(environment.address, "app") as consumer:
            assert await read(consumer, location) == RECORDS
        (application,) = environment.store.applications()
        assert application == ClusterSecrets([SECRET]).scope("app", found.claim)


@pytest.mark.parametrize(
    "other",
    [BOB.to_text(), secret_to_text(SECRET), DRIVER.to_text()],
    ids=["another token", "secret", "another application of the token"],
)
async def test_another_credential_finds_nothing_under_the_same_name(tmp_path, other):
    async with a_taskmanager(tmp_path) as environment:
        address = environment.address
        async with await ShuffleClient.connect(
            address, "app", credential=TOKEN.to_text()
        ) as producer:
            location = await write(producer)
        async with await ShuffleClient.connect(address, "app", credential=other) as stranger:
            with pytest.raises(SluiceError) as caught:
                await read(stranger, location)
            assert caught.value.code is ErrorCode.PARTITION_NOT_FOUND
            assert await write(stranger) == location  # its own, beside the one of that name
        assert len(environment.store.applications()) == 2


async def test_without_a_credential_the_error_has_the_remedy(tmp_path):
    async with a_taskmanager(tmp_path) as environment:
        with pytest.raises(RemoteError) as caught:
            await ShuffleClient.connect(environment.address, "app")
        assert caught.value.code is ErrorCode.AUTHENTICATION_REQUIRED
        assert not caught.value.retryable
        assert CREDENTIAL_FILE_VARIABLE in str(caught.value)
        await until_clean(environment, network_leftovers)
        assert environment.listener.outcomes.refused == {"no credential": 1}
        assert environment.store.applications() == []


async def test_a_credential_of_another_cluster_is_refused(tmp_path):
    text = SubmitToken.make(OTHER_SECRET).to_text()
    async with a_taskmanager(tmp_path) as environment:
        with pytest.raises(RemoteError) as caught:
            await ShuffleClient.connect(environment.address, "app", credential=text)
        assert caught.value.code is ErrorCode.AUTHENTICATION_FAILED
        assert "this cluster's secret" in str(caught.value)


async def test_a_damaged_credential_reaches_no_taskmanager(tmp_path, monkeypatch):
    async with a_taskmanager(tmp_path) as environment:
        monkeypatch.setenv(CREDENTIAL_FILE_VARIABLE, str(tmp_path / "missing"))
        with pytest.raises(InvalidCredential):
            await ShuffleClient.connect(environment.address, "app")
        with pytest.raises(InvalidCredential):
            await ShuffleClient.connect(environment.address, "app", credential="hunter2")
        assert environment.listener.accepted_total == 0


async def test_a_credential_is_of_no_use_at_a_taskmanager_without_a_secret(tmp_path):
    async with a_taskmanager(tmp_path, secret=None) as environment:
        with pytest.raises(RemoteError, match="has no cluster secret") as caught:
            await ShuffleClient.connect(environment.address, "app", credential=TOKEN.to_text())
        assert caught.value.code is ErrorCode.AUTHENTICATION_FAILED
        async with await ShuffleClient.connect(environment.address, "app") as client:
            assert client.address == environment.address


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_the_client_without_asyncio_takes_a_credential_too(tmp_path, monkeypatch):
    def write_and_read(address):
        kind = ResultPartitionType.BLOCKING
        with (
            SyncShuffleClient(address, "app", credential=TOKEN.to_text()) as client,
            client.open_result_partition(1, 7, 1, BytesSerializer(), partition_type=kind) as out,
        ):
            out.emit_batch(RECORDS)
        monkeypatch.setenv(CREDENTIAL_VARIABLE, TOKEN.to_text())
        with (
            SyncShuffleClient(address, "app") as client,
            client.open_gate([out.location], 0) as gate,
        ):
            return list(gate.records(BytesSerializer()))

    async with a_taskmanager(tmp_path) as environment:
        assert await asyncio.to_thread(write_and_read, environment.address) == RECORDS


def test_the_text_of_a_task_gives_nothing_of_its_driver():
    task = parse_credential(DRIVER.for_tasks().to_text(), "app")
    assert task.key != DRIVER.key
    assert task.for_tasks() is task
