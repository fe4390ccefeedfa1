"""Attacks on a host: its addresses, Unix socket, files and HTTP port; and expired tokens."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.access_token import SCOPE_ADMIN, SCOPE_STATUS, make_access_token
from sluice.protocol.errors import AuthenticationFailed, ErrorCode, SluiceError
from sluice.protocol.identity import SubmitToken, secret_to_text
from sluice.protocol.schema import ROLE_DRIVER, HelloAck, Ping, Pong
from tests.attack.hostile import Hostile
from tests.attack.rig import (
    ALICE,
    BOB,
    SECRET,
    SHUFFLE,
    application,
    commit,
    driver,
    hello_of,
    read,
    release_application,
    texts_of,
    write_secret,
)
from tests.support.daemon import TIMEOUT_SECONDS, arguments, run
from tests.support.wire_clients import producer as anonymous_producer
from tests.support.wire_clients import write_map_output

if TYPE_CHECKING:
    from sluice.transport.address import Address
    from tests.attack.rig import AttackedDaemon

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")

RECORDS = b"the records of the victim " * 1000
NOBODY = 65534
LIFETIMES_SECONDS = (3, 15, 60)
"""How long a token counts that is to expire; the next one if this machine was too slow."""


# ---- without a secret ------------------------------------------------------------------------


@one_loop
async def test_without_a_secret_only_the_loopback_is_served(start, tmp_path):
    daemon = start(tmp_path)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(own_address(), daemon.data_port)
    assert "only this host is served" in await daemon.logs("no cluster secret", 0)
    here = await anonymous_producer(daemon.address)
    await write_map_output(here, SHUFFLE, 1, [[RECORDS]])
    await here.close()


def own_address() -> str:
    """Return an address of this host that is not the one that daemons listen on."""
    try:
        found = socket.gethostbyname(socket.gethostname())
    except OSError:
        found = "127.0.0.2"
    return "127.0.0.2" if found == "127.0.0.1" else found


@pytest.mark.parametrize("key", ["bind_host", "http_host"])
@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_without_a_secret_no_other_host_is_served(tmp_path, key, host):
    refused = run(arguments(tmp_path, **{key: host}))
    assert refused.returncode != 0
    assert f"{key} = {host} is open to other hosts" in refused.stderr
    assert "sluice secret create" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("mode", "text", "told"),
    [
        (0o644, secret_to_text(SECRET), "is open to other users of this host"),
        (0o660, secret_to_text(SECRET), "is open to other users of this host"),
        (0o601, secret_to_text(SECRET), "is open to other users of this host"),
        (0o600, secret_to_text(SECRET)[:-3], "does not contain a secret"),
        (0o600, "", "does not contain a secret"),
    ],
)
def test_a_secret_that_others_can_read_or_that_is_none_is_refused(tmp_path, mode, text, told):
    path = write_secret(tmp_path / "secret")
    path.write_text(text, encoding="ascii")
    path.chmod(mode)
    refused = run(arguments(tmp_path, cluster_secret_files=path))
    assert refused.returncode == 1
    assert told in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not [form for form in texts_of(SECRET) if form in refused.stderr]
    path.unlink()
    missing = run(arguments(tmp_path, cluster_secret_files=path))
    assert missing.returncode == 1
    assert "cannot be read" in missing.stderr


# ---- the Unix socket -------------------------------------------------------------------------


@pytest.fixture
def open_directory():
    """Give a directory that every user can enter; pytest's own are their owner's alone."""
    directory = Path(tempfile.mkdtemp(prefix="sluice-attack-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def as_nobody(path: Path | str, credential: str = "", *what: str) -> str:
    """Connect as another user; return the answer to a Hello or to ``what``, or the error."""
    script = Path(__file__).with_name("other_user.py")
    done = subprocess.run(
        [sys.executable, "-m", "tests.attack.other_user", str(path), str(NOBODY), *what],
        input=credential,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
        cwd=script.parents[2],
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@as_root
@one_loop
@pytest.mark.parametrize("has_secret", [False, True])
async def test_the_socket_serves_other_users_with_a_credential_only(
    start, secret_file, open_directory, has_secret
):
    """Its path and its permissions let them reach it."""
    owner = application(ALICE, "of another user")
    keys = {"cluster_secret_files": secret_file} if has_secret else {}
    daemon = start(open_directory, socket_mode="0666", **keys)
    since = len(daemon.lines)
    answer = await asyncio.to_thread(as_nobody, daemon.socket.host)
    assert answer.startswith("AUTHENTICATION_REQUIRED ")
    assert ("serves the user and the group" in answer) == (not has_secret)
    line = await daemon.logs("AUTHENTICATION_REQUIRED", since)
    assert "closing connection unix:" in line
    answer = await asyncio.to_thread(as_nobody, daemon.socket.host, owner.driver.to_text())
    assert answer == ("HelloAck" if has_secret else answer)
    if has_secret:
        assert await release_application(daemon.socket, owner) == 0
    else:
        assert answer.startswith("AUTHENTICATION_REQUIRED ")
        here = await Hostile.at(daemon, daemon.socket)
        assert isinstance(await here.greet(ROLE_DRIVER), HelloAck)
        here.send_message(Ping(7))
        assert await here.expect(Pong) == Pong(7)
        await here.close()


# ---- the HTTP port ---------------------------------------------------------------------------


def drain(daemon: AttackedDaemon, scope: str | None) -> int:
    """Ask it to drain, with an access token of that scope; return the status of the answer."""
    asked = urllib.request.Request(f"{daemon.url}/api/v1/drain", method="POST")
    if scope is not None:
        expires_at = int(time.time()) + 3600
        token = make_access_token(SECRET, scope, expires_at).to_text()
        asked.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(asked, timeout=TIMEOUT_SECONDS) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


@one_loop
async def test_nobody_drains_a_taskmanager_without_a_proof(start, secret_file, tmp_path):
    daemon = start(tmp_path, cluster_secret_files=secret_file)
    owner = application(ALICE, "of the drained one")
    assert await asyncio.to_thread(drain, daemon, None) == 401
    assert await asyncio.to_thread(drain, daemon, SCOPE_STATUS) == 403
    await commit(daemon.address, owner, 1, RECORDS)
    assert " drains" not in daemon.log
    assert await asyncio.to_thread(drain, daemon, SCOPE_ADMIN) == 200
    await daemon.logs(" drains", 0)


@one_loop
async def test_without_a_secret_the_loopback_does_not_drain(start, tmp_path):
    """Any user of the host reaches it; the Unix socket is the user's own."""
    daemon = start(tmp_path)
    assert await asyncio.to_thread(drain, daemon, None) == 403
    assert " drains" not in daemon.log
    await asyncio.to_thread(daemon.drain)
    await daemon.logs(" drains", 0)


@one_loop
@as_root
async def test_another_user_does_not_drain_through_the_unix_socket(start, open_directory):
    """Neither as it is, nor when its permissions let them reach it."""
    daemon = start(open_directory)
    path = open_directory / "h"
    for mode, error in ((None, "Permission denied"), (0o666, "user and the group")):
        if mode is not None:
            path.chmod(mode)
        assert error in await asyncio.to_thread(as_nobody, path, "", "drain")
    assert " drains" not in daemon.log
    await asyncio.to_thread(daemon.drain)
    await daemon.logs(" drains", 0)


@one_loop
async def test_a_rebound_name_reads_no_application_names(start, tmp_path):
    """A web page gives its name the loopback's address, and its script asks in its own name."""
    daemon = start(tmp_path)
    client = await anonymous_producer(daemon.address, "of the victim")

    def ask(host: str) -> tuple[int, str]:
        asked = urllib.request.Request(f"{daemon.url}/api/v1/status", headers={"Host": host})
        try:
            with urllib.request.urlopen(asked, timeout=TIMEOUT_SECONDS) as answer:
                return int(answer.status), answer.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()

    status, page = await asyncio.to_thread(ask, f"rebound.example:{daemon.http_port}")
    assert status == 403
    assert "of the victim" not in page
    status, page = await asyncio.to_thread(ask, f"127.0.0.1:{daemon.http_port}")
    assert status == 200
    assert "of the victim" in page
    await client.close()


# ---- expiry ----------------------------------------------------------------------------------


@one_loop
async def test_an_expired_token_begins_nothing_new_and_goes_on_with_what_is_known(
    start, secret_file, tmp_path
):
    """Also when the TaskManager was killed and adopted the data."""
    daemon = start(tmp_path, cluster_secret_files=secret_file)
    for lifetime in LIFETIMES_SECONDS:
        expires_at = int(time.time()) + lifetime
        token = SubmitToken.make(SECRET, "carol", expires_at, ALICE.token_id)
        owner, new = application(token, "known"), application(token, "new")
        try:
            ack = await commit(daemon.address, owner, 1, RECORDS)
            break
        except AuthenticationFailed as error:
            if error.code is not ErrorCode.CREDENTIAL_EXPIRED:
                raise
    else:
        pytest.fail(f"a token of {lifetime} s expired before it was used")
    await asyncio.sleep(max(0, expires_at + 1.5 - time.time()))  # an instant of the clock

    async def check(address: Address) -> None:
        with pytest.raises(SluiceError) as caught:
            await driver(address, new)
        assert caught.value.code is ErrorCode.CREDENTIAL_EXPIRED
        # The skew of two clocks can be read off the error.
        assert re.fullmatch(r"\d+ s ago, by this TaskManager's clock", str(caught.value.value))
        assert "set the clocks right" in caught.value.message
        assert await read(address, owner, [1]) == RECORDS
        with pytest.raises(SluiceError) as unknown:
            await read(address, application(BOB, owner.name), [1])
        assert unknown.value.code is ErrorCode.PARTITION_NOT_FOUND

    await check(daemon.address)
    daemon.end(signal.SIGKILL)
    again = start(tmp_path, cluster_secret_files=secret_file)
    assert "1 map outputs adopted" in again.log
    assert again.identity == ack.taskmanager_id
    stranger = await Hostile.at(again)
    stranger.send_message(hello_of(ROLE_DRIVER, owner.scoped))
    await stranger.refused(ErrorCode.AUTHENTICATION_REQUIRED)
    await check(again.address)
    assert await release_application(again.address, owner) >= len(RECORDS)
