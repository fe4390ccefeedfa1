"""TaskManagers and clients that speak TLS: the same data, and typed errors where trust ends."""

from __future__ import annotations

import asyncio
import random
import ssl

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from sluice.transport.address import Address
from sluice.transport.errors import TlsRefused
from tests.support.certificates import Authority
from tests.support.mini_cluster import DISK_ONLY, MEMORY_TIER, mini_cluster, taskmanager_config
from tests.support.tls_files import TlsFiles, der, replace
from tests.support.wire_clients import consumer, open_gate, producer, read_gate, write_map_output


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def regions(seed: int) -> list[list[bytes]]:
    chance = random.Random(seed)
    return [[chance.randbytes(length) for length in (70_000, 0, 1, 4096, 500_000)] for _ in "ab"]


def wanted(seed: int, start: int, end: int) -> bytes:
    return b"".join(b"".join(parts[start:end]) for parts in regions(seed))


@pytest.mark.parametrize("minimum", ["1.2", "1.3"])
@pytest.mark.parametrize("memory_tier_bytes", [MEMORY_TIER, DISK_ONLY], ids=["memory", "disk"])
async def test_data_of_three_taskmanagers_over_tls(tmp_path, authority, memory_tier_bytes, minimum):
    settings = authority.settings(tls_minimum_version=minimum)
    async with mini_cluster(
        tmp_path, 3, memory_tier_bytes=memory_tier_bytes, **settings
    ) as cluster:
        acks = [await cluster.write(index, index, regions(index)) for index in range(3)]
        sources = [(ack, [index]) for index, ack in enumerate(acks)]
        for start, end in ((0, 5), (1, 4), (4, 5)):
            client = await cluster.consumer(0)
            got = await read_gate(client, 1, sources, start, end)
            assert got == [wanted(index, start, end) for index in range(3)]
        assert cluster[0].counters.consumer_bytes_out_remote > 1_000_000


async def test_clients_on_the_unix_socket_need_no_certificate(tmp_path, authority):
    path = tmp_path / "s"
    settings = authority.settings(socket_path=path)
    async with mini_cluster(tmp_path, 1, **settings) as cluster:
        cluster.client_config = None
        with pytest.raises(RemoteError, match="speaks TLS only"):
            await cluster.producer(0)
        address = Address(str(path), 0)
        writer = await producer(address)
        await write_map_output(writer, 1, 1, regions(1))
        reader = await consumer(address)
        assert await read_gate(reader, 1, [(writer.ack, [1])], 0, 5) == [wanted(1, 0, 5)]
        await writer.close()
        await reader.close()


async def test_a_taskmanager_that_is_not_trusted_costs_its_channel_only(tmp_path, authority):
    """The reading side gets the reason, at once and without further attempts."""
    stranger = Authority(tmp_path / "stranger")
    async with mini_cluster(tmp_path, 2, **authority.settings()) as cluster:
        good = await cluster.write(1, 1, regions(1))
        async with mini_cluster(tmp_path / "other", 1, **stranger.settings()) as others:
            bad = await others.write(0, 2, regions(2))
            client = await cluster.consumer(0)
            with pytest.raises(RemoteError) as caught:
                await read_gate(client, 1, [(bad, [2])], 0, 5)
            assert caught.value.code is ErrorCode.CONFIGURATION
            assert "is not accepted" in str(caught.value)
            assert others[0].listener.accepted_total == 2  # the writer and one attempt
            client = await cluster.consumer(0)
            assert await read_gate(client, 1, [(good, [1])], 0, 5) == [wanted(1, 0, 5)]


async def test_a_client_with_an_untrusted_certificate_is_refused(tmp_path, authority):
    stranger = Authority(tmp_path / "stranger")
    both = tmp_path / "both.pem"
    both.write_text(authority.ca_file.read_text() + stranger.ca_file.read_text())
    async with mini_cluster(tmp_path, 1, **authority.settings()) as cluster:
        settings = stranger.settings(tls_ca_file=both)
        cluster.client_config = taskmanager_config(tmp_path / "client", **settings).transport
        for connect in (cluster.producer, cluster.consumer, cluster.driver):
            with pytest.raises(TlsRefused, match="unknown ca"):
                await connect(0)
        assert not cluster[0].handlers


async def shown_by(address: Address, authority: Authority) -> bytes:
    """Return the certificate that a new connection is shown, to a client that is not ours."""
    context = authority.client_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    _, writer = await asyncio.open_connection(*address, ssl=context)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return shown


async def test_files_of_another_authority_are_taken_up_while_data_flows(tmp_path, authority):
    """The exchange that runs goes on; the next one has the new certificates on both sides."""
    successor = Authority(tmp_path / "successor")
    files = TlsFiles(tmp_path / "files", authority)
    async with mini_cluster(tmp_path, 2, **files.settings) as cluster:
        tls = cluster[0].listener.tls
        assert tls is not None
        source = (await cluster.write(0, 1, regions(1)), [1])
        client = await cluster.consumer(1)
        gate = open_gate(client, 1, [source], 0, 5, credit=1)
        while not await gate.read_one(give_credit=0):
            pass
        begun = list(cluster[0].listener.connections)
        old = files.shown
        assert await shown_by(cluster[0].address, authority) == old
        reloads, failures = tls.reloads, tls.failures  # contexts outlive a test, by their paths

        replace(files.ca, files.ca.read_bytes() + successor.ca_file.read_bytes())
        files.renew(successor)
        assert await shown_by(cluster[0].address, authority) == files.shown != old
        assert (tls.reloads, tls.failures) == (reloads + 1, failures)

        gate.add_credit(0, 4)
        await gate.read_all()
        assert bytes(gate.content[0]) == wanted(1, 0, 5)
        assert any(connection in cluster[0].listener.connections for connection in begun)
        await gate.close()
        # No connection between the two is kept: this exchange shakes hands anew.
        again = await cluster.consumer(1)
        assert await read_gate(again, 1, [source], 0, 5) == [wanted(1, 0, 5)]

        new = files.shown
        files.certificate.write_bytes(files.certificate.read_bytes()[:100])
        again = await cluster.consumer(1)
        assert await read_gate(again, 1, [source], 0, 5) == [wanted(1, 0, 5)]
        assert await shown_by(cluster[0].address, authority) == new != der(authority.issue()[0])
        assert (tls.reloads, tls.failures) == (reloads + 1, failures + 1)


async def test_a_certificate_must_have_the_resolved_name(tmp_path, authority):
    async with mini_cluster(tmp_path, 2, **authority.settings("sluice.test")) as cluster:
        connector, address = cluster[0].connector, cluster[1].address
        leg = await connector.watch(address, "sluice.test")
        assert leg.place.taskmanager_id == cluster[1].taskmanager_id
        leg.close()
        for name in (None, "127.0.0.1", "other.test"):
            with pytest.raises(TlsRefused, match=name or "127"):
                await connector.watch(address, name)
