"""TLS tells which hosts to trust; the credential goes on to tell which application is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.protocol.schema import (
    ROLE_CONSUMER,
    ROLE_DRIVER,
    ROLE_PEER,
    ROLE_PRODUCER,
    ApplicationReleased,
    Challenge,
    Proof,
    ReleaseApplication,
)
from sluice.transport.config import TransportConfig
from tests.attack.hostile import NONCE, Hostile, Relay
from tests.attack.rig import BOB, SHUFFLE, Application, AttackedDaemon, application, enter, hello_of
from tests.support.certificates import Authority
from tests.support.wire_clients import read_gate, write_map_output

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])

RECORDS = b"the records of the victim " * 1000


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def encrypting(
    tmp_path_factory: pytest.TempPathFactory, secret_file: Path, authority: Authority
) -> Iterator[AttackedDaemon]:
    with AttackedDaemon(
        tmp_path_factory.mktemp("tls"), cluster_secret_files=secret_file, **authority.settings()
    ) as daemon:
        yield daemon
        daemon.end()
        daemon.check_log()


@pytest.fixture
def config(authority: Authority) -> TransportConfig:
    """Give the settings of a client with a certificate of its own."""
    return TransportConfig(connect_timeout_seconds=30, **authority.settings())


async def works(daemon: AttackedDaemon, victim: Application, config: TransportConfig) -> None:
    """Check that the victim writes, reads and releases over TLS."""
    writer = await enter(daemon.address, ROLE_PRODUCER, victim.name, victim.task, config)
    await write_map_output(writer, SHUFFLE, 1, [[RECORDS]])
    await writer.close()
    reader = await enter(daemon.address, ROLE_CONSUMER, victim.name, victim.task, config)
    assert await read_gate(reader, SHUFFLE, [(reader.ack, [1])], 0, 1) == [RECORDS]
    await reader.close()
    releasing = await enter(daemon.address, ROLE_DRIVER, victim.name, victim.driver, config)
    releasing.send(ReleaseApplication())
    answer = await releasing.expect(ApplicationReleased)
    assert isinstance(answer, ApplicationReleased)
    assert answer.freed_bytes >= len(RECORDS)
    await releasing.close()


@one_loop
async def test_a_good_certificate_is_no_credential(clients, encrypting, authority, config, victim):
    """Any host of the authority reaches the port; without a credential it does nothing there."""
    for role in (ROLE_PRODUCER, ROLE_CONSUMER, ROLE_DRIVER, ROLE_PEER):
        stranger = await Hostile.at(encrypting, tls=authority.client_context())
        hello = hello_of(role, "" if role == ROLE_PEER else victim.name)
        stranger.send_message(
            replace(hello, segment_size_bytes=32768) if role == ROLE_PEER else hello
        )
        await stranger.refused(ErrorCode.AUTHENTICATION_REQUIRED)
    await works(encrypting, victim, config)


@one_loop
async def test_a_certificate_of_another_application_reads_nothing(
    clients, encrypting, config, victim
):
    writer = await enter(encrypting.address, ROLE_PRODUCER, victim.name, victim.task, config)
    await write_map_output(writer, SHUFFLE, 2, [[RECORDS]])
    await writer.close()
    other = application(BOB, victim.name)
    reader = await enter(encrypting.address, ROLE_CONSUMER, other.name, other.task, config)
    with pytest.raises(SluiceError) as caught:
        await read_gate(reader, SHUFFLE, [(reader.ack, [2])], 0, 1)
    assert caught.value.code is ErrorCode.PARTITION_NOT_FOUND
    await reader.close()
    releasing = await enter(encrypting.address, ROLE_DRIVER, other.name, other.driver, config)
    releasing.send(ReleaseApplication())
    assert await releasing.expect(ApplicationReleased) == ApplicationReleased(0)
    await releasing.close()
    await works(encrypting, victim, config)


@one_loop
async def test_a_client_without_tls_is_refused_with_a_good_credential(
    clients, encrypting, authority, config, victim
):
    hello = hello_of(ROLE_DRIVER, victim.name)
    over_tls = await Hostile.at(encrypting, tls=authority.client_context())
    over_tls.send_message(replace(hello, token=NONCE + victim.driver.claim.pack()))
    await over_tls.expect(Challenge)  # the control: the credential is one
    plain = await Hostile.at(encrypting)
    answer = await plain.prove(hello, victim.driver)
    assert not isinstance(answer, Challenge | Proof), "it was asked who it is"
    await plain.refused(ErrorCode.CONFIGURATION, answer)
    await over_tls.close()
    await works(encrypting, victim, config)


@one_loop
async def test_no_proof_is_passed_on_from_one_tls_connection_to_another(
    clients, encrypting, authority, config, victim
):
    """A host in between has a certificate that the client trusts; proofs name the certificate."""
    since = len(encrypting.lines)
    async with Relay(
        encrypting.address, authority.server_context(), authority.client_context()
    ) as relay:
        with pytest.raises(SluiceError) as caught:
            await enter(relay.address, ROLE_DRIVER, victim.name, victim.driver, config)
        assert relay.connections == 1
    assert caught.value.code is ErrorCode.AUTHENTICATION_FAILED
    await encrypting.logs("AUTHENTICATION_FAILED", since)
    await works(encrypting, victim, config)
