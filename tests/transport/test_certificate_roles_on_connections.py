"""Certificates that do not allow a role are refused when the Hello has come."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import ROLE_CONSUMER, ROLE_DRIVER, ROLE_PEER, ROLE_PRODUCER
from sluice.transport.address import Address
from tests.support.certificates import Authority
from tests.support.peers import a_config, a_service, end, open_client, until

RULES = ("peer = DNS:tm*.example", "driver, producer of etl-* = DNS:etl.example")
PEER: dict[str, Any] = {"role": ROLE_PEER, "application_id": ""}
DRIVER: dict[str, Any] = {"role": ROLE_DRIVER, "application_id": "etl-1"}
STRANGE: dict[str, Any] = {"role": ROLE_DRIVER, "application_id": "other"}
PRODUCER: dict[str, Any] = {"role": ROLE_PRODUCER, "application_id": "etl-1"}
CONSUMER: dict[str, Any] = {"role": ROLE_CONSUMER, "application_id": "etl-1"}


@pytest.mark.parametrize(
    ("name", "hello", "allowed"),
    [
        ("tm1.example", PEER, True),
        ("tm1.example", DRIVER, False),
        ("etl.example", DRIVER, True),
        ("etl.example", PRODUCER, True),
        ("etl.example", CONSUMER, False),
        ("etl.example", STRANGE, False),
        ("etl.example", PEER, False),
    ],
)
async def test_a_rule_decides_on_each_connection(
    tmp_path: Any, caplog: pytest.LogCaptureFixture, name: str, hello: dict[str, Any], allowed: bool
) -> None:
    authority = Authority(tmp_path)
    path = tmp_path / "s"
    config = a_config(**authority.settings(tls_certificate_roles=RULES, socket_path=path))
    client = a_config(**authority.settings(name))
    async with a_service(config) as service:
        if allowed:
            await end(await open_client(service.address, client, **hello))
        else:
            with pytest.raises(RemoteError, match="certificate is not for a") as caught:
                await open_client(service.address, client, **hello)
            assert caught.value.code is ErrorCode.NOT_PERMITTED
            assert name in str(caught.value)
            assert name in caplog.text
            assert not service.handlers
            await until(lambda: service.listener.outcomes.refused["certificate"] == 1)
        await end(await open_client(Address(str(path), 0), client, **hello))


async def test_a_certificate_for_clients_is_no_peers(tmp_path: Any) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue_for_clients()
    client = a_config(**authority.settings(tls_certificate_file=certificate, tls_key_file=key))
    async with a_service(a_config(**authority.settings())) as service:
        with pytest.raises(RemoteError, match="for clients only"):
            await open_client(service.address, client, **PEER)
        await end(await open_client(service.address, client, **DRIVER))
