"""Tokens that were revoked and secrets that were removed, while a TaskManager runs."""

from __future__ import annotations

import asyncio
import json
import signal
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.access_token import SCOPE_STATUS, make_access_token
from sluice.protocol.errors import ErrorCode
from sluice.protocol.handshake import ConnectingHandshake
from sluice.protocol.identity import SubmitToken
from sluice.protocol.limits import NONCE_BYTES
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import ROLE_DRIVER, Challenge, Proof, ReleaseShuffle, ShuffleReleased
from tests.attack.hostile import Hostile
from tests.attack.rig import (
    ABROAD,
    ALICE,
    BOB,
    OTHER_SECRET,
    SECRET,
    application,
    commit,
    consumer,
    driver,
    hello_of,
    producer,
    read,
    write_secret,
)
from tests.support.daemon import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.attack.rig import AttackedDaemon
    from tests.support.wire_clients import Client

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])

RECORDS = b"the records of a rightful user " * 1000
SECOND = SubmitToken.make(SECRET, ALICE.subject, 0, bytes(range(100, 116)))
"""Alice's other token."""
NO_ID = bytes(16)
UNUSED = 99
"""A shuffle that nobody writes."""


class Settings:
    """The configuration file of TaskManagers, with its secrets and its revoked tokens."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.file = directory / "sluice.toml"
        self._revoked = directory / "revoked"
        self._files = {
            SECRET: write_secret(directory / "old.secret"),
            OTHER_SECRET: write_secret(directory / "new.secret", OTHER_SECRET),
        }
        self.secrets = [SECRET]
        self.write()

    def write(self, *revoked: bytes) -> None:
        lines = ["# revoked", *(f"{token_id.hex()}  # stolen" for token_id in revoked)]
        self._revoked.write_text("\n".join(lines), encoding="ascii")
        files = [str(self._files[secret]) for secret in self.secrets]
        self.file.write_text(
            f"[auth]\ncluster_secret_files = {json.dumps(files)}\n"
            f"revoked_tokens_file = {json.dumps(str(self._revoked))}\n",
            encoding="utf-8",
        )


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path)


async def reload(daemon: AttackedDaemon) -> None:
    since = len(daemon.lines)
    daemon.process.send_signal(signal.SIGHUP)
    await daemon.logs("are accepted now", since)


async def answers(client: Client) -> None:
    """Check that a driver is still served."""
    client.send(ReleaseShuffle(UNUSED))
    assert await client.expect(ShuffleReleased) == ShuffleReleased(UNUSED, 0)


async def refused(daemon: AttackedDaemon, token: SubmitToken, reason: str) -> None:
    since = len(daemon.lines)
    with pytest.raises(RemoteError) as caught:
        await driver(daemon.address, application(token, "of anybody"))
    assert caught.value.code is ErrorCode.AUTHENTICATION_FAILED
    assert reason in await daemon.logs("closing connection", since)


@one_loop
async def test_a_revoked_token_is_cut_off_and_no_other(start, settings, tmp_path):
    daemon = start(tmp_path, config=settings.file)
    thief, owner, other = (application(t, "an application") for t in (ALICE, SECOND, BOB))
    stolen = [await enter(daemon.address, thief) for enter in (driver, producer, consumer)]
    kept = [await driver(daemon.address, each) for each in (owner, other)]
    await commit(daemon.address, owner, 1, RECORDS)
    settings.write(ALICE.token_id, NO_ID)
    await reload(daemon)
    for client in stolen:
        lost = await client.until_lost()
        assert lost.code is ErrorCode.AUTHENTICATION_FAILED
        assert ALICE.token_id.hex() in str(lost)
    await refused(daemon, ALICE, "revoked")
    for client in kept:
        await answers(client)
        await client.close()
    assert await read(daemon.address, owner, [1]) == RECORDS
    settings.write()
    await reload(daemon)
    await (await driver(daemon.address, thief)).close()


@one_loop
async def test_a_handshake_that_began_before_a_revocation_does_not_end_well(
    start, settings, tmp_path
):
    daemon = start(tmp_path, config=settings.file)
    thief = application(ALICE, "an application")
    early = await Hostile.at(daemon)
    handshake = ConnectingHandshake(
        hello_of(ROLE_DRIVER, thief.name), thief.driver, bytes(NONCE_BYTES)
    )
    early.send_message(handshake.hello)
    challenge, _ = await early.receive()
    assert isinstance(challenge, Challenge)
    settings.write(ALICE.token_id)
    await reload(daemon)
    (proof,) = handshake.receive(challenge, b"", 0).replies
    assert isinstance(proof, Proof)
    early.send_message(proof)
    await early.refused(ErrorCode.AUTHENTICATION_FAILED)


@one_loop
async def test_a_secret_is_replaced_while_jobs_run(start, settings, tmp_path):
    """Each step reads between TaskManagers that have made it and one that has not."""
    first, second = (start(tmp_path / name, config=settings.file) for name in ("1", "2"))
    old, new = application(ALICE, "of the old secret"), application(ABROAD, "of the new secret")
    source = await commit(first.address, old, 1, RECORDS)

    async def step(*secrets: bytes) -> None:
        settings.secrets = list(secrets)
        settings.write()
        for daemon in (second, first):
            await reload(daemon)
            assert await read(second.address, old, [1], source) == RECORDS

    await refused(first, ABROAD, "unknown secret")
    await step(SECRET, OTHER_SECRET)
    source_of_new = await commit(first.address, new, 1, RECORDS)
    await step(OTHER_SECRET, SECRET)
    running = await driver(first.address, old)
    settings.secrets = [OTHER_SECRET]
    settings.write()
    await reload(second)
    assert await read(second.address, new, [1], source_of_new) == RECORDS
    await answers(running)
    await reload(first)
    assert (await running.until_lost()).code is ErrorCode.AUTHENTICATION_FAILED
    await refused(first, ALICE, "unknown secret")
    assert await read(second.address, new, [1], source_of_new) == RECORDS


@one_loop
@pytest.mark.parametrize("damage", ["no id", "missing", "open to others"])
async def test_a_list_that_cannot_be_used_revokes_what_the_last_one_did(
    start, settings, tmp_path, damage
):
    daemon = start(tmp_path, config=settings.file)
    settings.write(ALICE.token_id)
    await reload(daemon)
    revoked = tmp_path / "revoked"
    if damage == "missing":
        revoked.unlink()
    elif damage == "no id":
        revoked.write_text(SECOND.to_text())
    else:
        revoked.write_text("")
        revoked.chmod(0o666)
    since = len(daemon.lines)
    daemon.process.send_signal(signal.SIGHUP)
    line = await daemon.logs("the secrets and the revoked tokens stay as they are", since)
    assert SECOND.to_text()[-20:] not in line
    await refused(daemon, ALICE, "revoked")
    await (await driver(daemon.address, application(BOB, "of a rightful user"))).close()


@one_loop
async def test_a_revoked_access_token_reads_no_status(start, settings, tmp_path):
    daemon = start(tmp_path, config=settings.file)
    now = int(time.time())
    stolen, kept = (make_access_token(SECRET, SCOPE_STATUS, now + s) for s in (7200, 7300))

    def status(token: str) -> int:
        asked = urllib.request.Request(
            f"{daemon.url}/api/v1/status", headers={"Authorization": f"Bearer {token}"}
        )
        try:
            with urllib.request.urlopen(asked, timeout=TIMEOUT_SECONDS) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    assert await asyncio.to_thread(status, stolen.to_text()) == 200
    settings.write(stolen.token_id)
    await reload(daemon)
    assert await asyncio.to_thread(status, stolen.to_text()) == 401
    assert await asyncio.to_thread(status, kept.to_text()) == 200
