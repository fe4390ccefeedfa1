"""Applications with a good credential of their own that reach for the data of another one."""

from __future__ import annotations

import asyncio
import secrets
import signal

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.identity import Credential
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    ROLE_COPIER,
    ROLE_PEER,
    AbortPartition,
    AttachRegionArea,
    BufferResponse,
    FinishPartition,
    HelloAck,
    OpenPartition,
    PartitionAborted,
    PartitionFinished,
    PartitionOpened,
    PartitionRequest,
    PartitionResumed,
    Proof,
    RegionAreaAttached,
    RegionSecured,
    ResumePartition,
    SecureRegion,
    SharedRegion,
)
from tests.attack.hostile import Hostile
from tests.attack.rig import (
    ALICE,
    BOB,
    SECRETS,
    SHUFFLE,
    Application,
    another_salt,
    application,
    commit,
    hello_of,
    producer,
    read,
    release_application,
    release_shuffle,
)
from tests.support import wire_clients
from tests.support.pipelined_clients import PipelinedWriter
from tests.support.wire_clients import (
    SEGMENT_SIZE_BYTES,
    Client,
    read_gate,
    write_map_output,
    write_region,
)

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])

RECORDS = b"the records of the victim " * 1000
FORGED = b"forged " * 500
AREA_BYTES = 4096

FORGERS = {
    "another user under the same name": lambda victim: application(BOB, victim.name),
    "the same user and name with another salt": lambda victim: application(
        ALICE, victim.name, another_salt()
    ),
    "another user with the same salt": lambda victim: application(
        BOB, victim.name, victim.driver.claim.salt
    ),
    "the same user under another name": lambda victim: application(ALICE, f"not {victim.name}"),
    "a user who names the namespace": lambda victim: application(BOB, victim.scoped),
    "the same user who names the namespace": lambda victim: application(ALICE, victim.scoped),
}


@pytest.fixture(params=FORGERS)
def forger(request: pytest.FixtureRequest, victim: Application) -> Application:
    made: Application = FORGERS[request.param](victim)
    assert made.scoped != victim.scoped
    return made


async def not_found(address, forger: Application, attempts: list[int], source=None) -> None:
    with pytest.raises(RemoteError) as caught:
        await read(address, forger, attempts, source)
    assert caught.value.code is ErrorCode.PARTITION_NOT_FOUND


@one_loop
async def test_forged_map_outputs_reach_no_reader_of_the_victim(cluster, victim, forger):
    """The forger is first, and so the victim's commit is the second one of that name."""
    address = cluster.first.address
    await commit(address, forger, 1, FORGED)
    await not_found(address, victim, [1])
    source = await commit(address, victim, 1, RECORDS)
    assert await read(address, victim, [1]) == RECORDS
    assert await read(address, forger, [1]) == FORGED
    # Through another TaskManager too, where the peer leg tells them apart.
    assert await read(cluster.second.address, victim, [1], source) == RECORDS
    assert await read(cluster.second.address, forger, [1], source) == FORGED
    assert await release_application(address, forger) >= len(FORGED)
    assert await read(address, victim, [1]) == RECORDS
    assert await release_shuffle(address, victim) >= len(RECORDS)


@one_loop
async def test_an_application_reads_and_releases_nothing_of_another(cluster, victim, forger):
    address = cluster.first.address
    ack = await commit(address, victim, 1, RECORDS)
    await not_found(address, forger, [1])
    await not_found(cluster.second.address, forger, [1], ack)
    assert await release_shuffle(address, forger) == 0
    assert await release_application(address, forger) == 0
    assert await read(cluster.second.address, victim, [1], ack) == RECORDS
    assert await release_application(address, victim) >= len(RECORDS)
    await not_found(address, victim, [1])


@one_loop
async def test_forged_buffers_reach_no_reader_of_a_pipelined_partition(cluster, victim, forger):
    address = cluster.first.address

    async def publish(owner: Application, data: bytes) -> PipelinedWriter:
        writer = await PipelinedWriter.open(await producer(address, owner), 1, 1)
        await writer.send(0, data)
        return writer

    async def read_while_it_finishes(owner: Application, writer: PipelinedWriter) -> bytes:
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(read(address, owner, [1]))
            await writer.finish()
        return reading.result()

    forging = await publish(forger, b"forged")
    writing = await publish(victim, b"true")
    assert await read_while_it_finishes(victim, writing) == b"true"
    assert await read_while_it_finishes(forger, forging) == b"forged"
    for client in (writing.client, forging.client):
        await client.close()


async def resume(client: Client, regions: int, length: int) -> None:
    client.send(ResumePartition(0, SHUFFLE, 1, 1))
    assert await client.expect(PartitionResumed) == PartitionResumed(0, regions, length, False)


@one_loop
@pytest.mark.parametrize("away", [False, True])
async def test_a_map_output_is_resumed_by_its_application_only(cluster, victim, forger, away):
    """Neither while its producer is connected, nor while it is away."""
    address = cluster.first.address
    writer = await producer(address, victim)
    await resume(writer, 0, 0)
    await write_region(writer, 0, 0, [RECORDS])
    writer.send(SecureRegion(0, 0))
    await writer.expect(RegionSecured)
    if away:
        writer.vanish()
        await writer.until_lost()
    thief = await producer(address, forger)
    await resume(thief, 0, 0)
    await write_region(thief, 0, 0, [FORGED])
    thief.send(FinishPartition(0, len(FORGED), 1))
    await thief.expect(PartitionFinished)
    await thief.close()
    if away:
        writer = await producer(address, victim)
        await resume(writer, 1, len(RECORDS))
    writer.send(FinishPartition(0, len(RECORDS), 1))
    await writer.expect(PartitionFinished)
    await writer.close()
    assert await read(address, victim, [1]) == RECORDS


async def attach(client: Client, token: str, size_bytes: int = 0) -> RegionAreaAttached:
    client.send(AttachRegionArea(token, size_bytes))
    answer = await client.expect(RegionAreaAttached)
    assert isinstance(answer, RegionAreaAttached)
    return answer


@one_loop
async def test_other_applications_cannot_attach_a_region_area(cluster, victim, forger):
    """Its token is of use to the connections of one application only; a guess is of none."""
    address = cluster.first.socket
    writer = await producer(address, victim)
    area = await attach(writer, "", AREA_BYTES)
    assert (len(area.token), area.size_bytes) == (32, AREA_BYTES)
    thief = await producer(address, forger)
    nothing = RegionAreaAttached("", "", 0)
    guesses = [area.token, area.path, f"../areas/{area.token}", area.token.upper(), "0" * 32]
    for guess in (*guesses, *(secrets.token_hex(16) for _ in range(20))):
        assert await attach(thief, guess) == nothing
        assert await attach(thief, guess, AREA_BYTES) == nothing
    thief.send(OpenPartition(0, SHUFFLE, 1, 1))
    await thief.expect(PartitionOpened)
    thief.send(SharedRegion(0, 0, 0, [AREA_BYTES], 0, 0))
    with pytest.raises(RemoteError) as caught:
        await thief.expect(PartitionFinished)
    assert caught.value.code is ErrorCode.REGION_MISMATCH
    await thief.close()
    second = await producer(address, victim)
    assert await attach(second, area.token) == area
    await second.close()
    await writer.close()


@one_loop
async def test_a_namespace_is_no_name_for_those_without_a_credential(start, secret_file, tmp_path):
    """``allow_anonymous`` serves anonymous applications beside those with a credential."""
    daemon = start(tmp_path, cluster_secret_files=secret_file, allow_anonymous="true")
    owner = application(ALICE, "victim")
    await commit(daemon.address, owner, 1, RECORDS)
    for connect in (wire_clients.producer, wire_clients.consumer, wire_clients.driver):
        with pytest.raises(RemoteError) as caught:
            await connect(daemon.address, owner.scoped)
        assert caught.value.code is ErrorCode.NOT_PERMITTED
    # Under the plain name is another application, without a credential.
    writer = await wire_clients.producer(daemon.address, owner.name)
    await write_map_output(writer, SHUFFLE, 1, [[FORGED]])
    await writer.close()
    reader = await wire_clients.consumer(daemon.address, owner.name)
    assert await read_gate(reader, SHUFFLE, [(reader.ack, [1])], 0, 1) == [FORGED]
    await reader.close()
    assert await read(daemon.address, owner, [1]) == RECORDS


@one_loop
async def test_no_executor_takes_over_the_map_output_of_another(start, secret_file, tmp_path):
    """They have one credential; the map output is being written, left behind, or adopted."""
    daemon = start(tmp_path, cluster_secret_files=secret_file)
    owner = application(ALICE, "victim")
    mine, other = (of_process(owner, name) for name in ("a", "b"))

    async def try_to_take(thief: Application) -> None:
        client = await producer(daemon.address, thief)
        client.send(ResumePartition(0, SHUFFLE, 1, 1))
        with pytest.raises(RemoteError) as caught:
            await client.expect(PartitionResumed)
        assert caught.value.code is ErrorCode.NOT_PERMITTED
        client.send(AbortPartition(0))
        await client.expect(PartitionAborted)
        await client.close()

    writer = await producer(daemon.address, mine)
    writer.send(OpenPartition(0, SHUFFLE, 1, 1))
    await writer.expect(PartitionOpened)
    await write_region(writer, 0, 0, [RECORDS])
    writer.send(SecureRegion(0, 0))
    await writer.expect(RegionSecured)
    for thief in (other, owner):
        await try_to_take(thief)
    writer.vanish()
    await writer.until_lost()
    await try_to_take(other)
    daemon.end(signal.SIGKILL)
    daemon.start()
    await try_to_take(other)
    writer = await producer(daemon.address, mine)
    writer.send(ResumePartition(0, SHUFFLE, 1, 1))
    assert await writer.expect(PartitionResumed) == PartitionResumed(0, 1, len(RECORDS), False)
    await try_to_take(other)
    writer.send(FinishPartition(0, len(RECORDS), 1))
    await writer.expect(PartitionFinished)
    await writer.close()
    assert await read(daemon.address, owner, [1]) == RECORDS


def of_process(owner: Application, process: str) -> Application:
    """Return an application as one of its executors has it."""
    credential = owner.driver
    return owner._replace(
        driver=Credential(credential.claim._replace(process=process), credential.key)
    )


@one_loop
async def test_a_taskmanager_without_the_secret_is_no_peer_beside_anonymous_clients(
    start, secret_file, tmp_path
):
    """A peer and a copier name the namespace of any application."""
    daemon = start(tmp_path, cluster_secret_files=secret_file, allow_anonymous="true")
    owner = application(ALICE, "victim")
    await commit(daemon.address, owner, 1, RECORDS)
    request = PartitionRequest(0, owner.scoped, SHUFFLE, [1], 0, 1, 8)
    peer = hello_of(ROLE_PEER, "", segment_size_bytes=SEGMENT_SIZE_BYTES)
    for hello in (peer, hello_of(ROLE_COPIER, owner.scoped), hello_of(ROLE_COPIER, "")):
        stranger = await Hostile.at(daemon)
        stranger.send_message(hello)
        await stranger.refused(ErrorCode.AUTHENTICATION_REQUIRED)
    member = await Hostile.at(daemon)
    assert isinstance(await member.prove(peer, SECRETS.peer(str(daemon.address))), Proof)
    await member.expect(HelloAck)
    member.send_message(request)
    assert isinstance((await member.receive())[0], BufferResponse)
    await member.close()
