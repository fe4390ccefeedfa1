"""Clients are let in or refused, with and without a cluster secret; files of secrets."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.errors import AuthenticationFailed, ErrorCode
from sluice.protocol.identity import KIND_PEER, ClusterSecrets, SubmitToken, secret_to_text
from sluice.protocol.limits import NONCE_BYTES
from sluice.protocol.schema import ROLE_DRIVER, Challenge, ErrorResponse, Proof
from sluice.protocol.states import State
from sluice.transport.access import (
    Accepting,
    Access,
    SecretUnusable,
    SocketUser,
    peer_user,
    read_revoked_tokens,
    read_secret,
)
from sluice.transport.config import AuthConfig
from sluice.transport.greeting import connecting_handshake
from sluice.transport.listener import Listener
from tests.protocol.identity_vectors import OTHER_SECRET, SALT, SECRET
from tests.support.peers import (
    PATIENCE_SECONDS,
    SEGMENT,
    RawPeer,
    RecordingHandler,
    a_config,
    a_hello,
    an_ack,
    turns,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT = secret_to_text(SECRET)
OWN_UID, OWN_GID = os.geteuid(), os.getegid()
STRANGE_ID = 54321
STRANGER = SocketUser(STRANGE_ID, (STRANGE_ID, STRANGE_ID + 1))


def written(path: Path, content: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)
    return path


@pytest.fixture
def unix_socket() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        yield ours


def let_in(monkeypatch: pytest.MonkeyPatch, user: SocketUser | None) -> None:
    """Let every Unix socket be of a user."""
    monkeypatch.setattr("sluice.transport.access.peer_user", lambda sock: user)


# ---- files of secrets ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [TEXT, TEXT + "\n", f"\n  {TEXT}\r\n\n", "\t" + TEXT],
    ids=["bare", "line", "blanks", "tab"],
)
@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440, 0o640], ids=oct)
def test_a_secret_is_read(tmp_path: Path, content: str, mode: int) -> None:
    assert read_secret(written(tmp_path / "secret", content, mode)) == SECRET


@pytest.mark.parametrize("mode", [0o601, 0o602, 0o604, 0o620, 0o644, 0o660, 0o777], ids=oct)
def test_a_secret_that_is_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "secret", TEXT, mode)
    with pytest.raises(SecretUnusable, match="open to other users") as caught:
        read_secret(path)
    assert caught.value.code is ErrorCode.CONFIGURATION
    assert caught.value.value == f"{path} is open to other users: mode {mode:04o}, at most 0640"
    assert caught.value.remedy.startswith(
        f"Run this as the owner of the file, chmod 0600 {path}, and let only its owner and root"
    )


@pytest.mark.skipif(OWN_UID != 0, reason="only root gives files away")
def test_a_secret_that_another_user_could_replace_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "directory"
    directory.mkdir()
    path = written(directory / "secret", TEXT)
    os.chown(path, STRANGE_ID, OWN_GID)
    with pytest.raises(SecretUnusable, match=f"secret belongs to user {STRANGE_ID}"):
        read_secret(path)
    os.chown(path, OWN_UID, OWN_GID)
    directory.chmod(0o777)
    with pytest.raises(SecretUnusable, match=r"other users can write to .*directory"):
        read_secret(path)
    directory.chmod(0o1777)
    assert read_secret(path) == SECRET
    os.chown(directory, STRANGE_ID, OWN_GID)
    with pytest.raises(SecretUnusable, match=f"directory belongs to user {STRANGE_ID}"):
        read_secret(path)


def test_a_pod_mounts_a_secret_behind_links(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    (volume / "..data-1").mkdir(parents=True)
    volume.chmod(0o3777)
    written(volume / "..data-1" / "secret", TEXT, 0o440)
    (volume / "..data").symlink_to("..data-1")
    (volume / "secret").symlink_to("..data/secret")
    assert read_secret(volume / "secret") == SECRET


def test_a_secret_comes_through_a_pipe_of_a_shell() -> None:
    reading, writing = os.pipe()
    with open(writing, "w", encoding="ascii") as pipe:
        pipe.write(TEXT)
    try:
        assert read_secret(Path(f"/dev/fd/{reading}")) == SECRET
    finally:
        os.close(reading)


def test_the_mode_that_counts_is_that_of_the_file_and_not_of_a_link(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(written(tmp_path / "secret", TEXT, 0o644))
    with pytest.raises(SecretUnusable, match="open to other users"):
        read_secret(link)
    (tmp_path / "secret").chmod(0o600)
    assert read_secret(link) == SECRET


@pytest.mark.parametrize("kind", ["missing", "directory", "below a file"])
def test_a_file_that_cannot_be_read_is_named_with_the_remedy(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "secret"
    if kind == "directory":
        path.mkdir()
    elif kind == "below a file":
        path = written(path, TEXT) / "secret"
    with pytest.raises(SecretUnusable, match="cannot be read") as caught:
        read_secret(path)
    assert str(path) in str(caught.value)
    assert "sluice secret create" in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"hunter2",
        TEXT[:-1].encode(),
        f"{TEXT}AAAA".encode(),
        f"{TEXT}\n{TEXT}".encode(),
        b"# the secret\n" + TEXT.encode(),
        TEXT.encode("utf-16"),
        TEXT[:30].encode() + b"\xff" + TEXT[31:].encode(),
        SECRET,
        SubmitToken.make(SECRET).to_text().encode(),
        bytes(100_000),
    ],
    ids=[
        "empty",
        "blank",
        "password",
        "cut",
        "longer",
        "twice",
        "comment",
        "utf-16",
        "no utf-8",
        "raw",
        "token",
        "long",
    ],
)
def test_a_damaged_secret_is_refused_and_not_repeated(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path / "file", content)
    with pytest.raises(SecretUnusable, match="does not contain a secret") as caught:
        read_secret(path)
    assert caught.value.value == path
    error: BaseException | None = caught.value
    while error is not None:  # a traceback shows the causes too
        assert "hunter2" not in str(error)
        assert TEXT[20:40] not in str(error)
        error = error.__cause__


def test_the_first_of_several_secrets_is_proven_and_each_is_accepted(tmp_path: Path) -> None:
    new = written(tmp_path / "new", secret_to_text(OTHER_SECRET))
    old = written(tmp_path / "old", TEXT)
    access = Access.open(AuthConfig(cluster_secret_files=(new, old)))
    assert access.secrets is not None
    assert set(access.secrets.accepted) == {SECRET, OTHER_SECRET}
    assert access.peer_credential("h", 1) == ClusterSecrets([OTHER_SECRET]).peer("h:1")
    only = Access.open(AuthConfig(cluster_secret_files=(old,)))
    assert only.secrets is not None
    assert only.secrets.accepted == (SECRET,)
    assert not only.allows_anonymous


def test_one_unusable_file_of_several_is_enough_to_refuse(tmp_path: Path) -> None:
    good = written(tmp_path / "good", TEXT)
    for bad in (tmp_path / "missing", written(tmp_path / "open", TEXT, 0o644)):
        for files in ((good, bad), (bad, good)):
            with pytest.raises(SecretUnusable, match=str(bad)):
                Access.open(AuthConfig(cluster_secret_files=files))


@pytest.mark.parametrize("anonymous", [False, True])
def test_without_files_there_are_no_secrets(anonymous: bool) -> None:
    access = Access.open(AuthConfig(allow_anonymous=anonymous))
    assert access.secrets is None
    assert access.allows_anonymous is anonymous


# ---- files of revoked tokens -----------------------------------------------------------------

ID, OTHER_ID = "0123456789abcdef" * 2, "FE" * 16


def test_revoked_tokens_are_read(tmp_path: Path) -> None:
    path = written(tmp_path / "revoked", f"# stolen\n{ID}\n\n  {OTHER_ID} # Bob's\r\n", 0o644)
    assert read_revoked_tokens(path) == {bytes.fromhex(ID), bytes.fromhex(OTHER_ID)}
    assert read_revoked_tokens(written(path, "")) == frozenset()


@pytest.mark.parametrize(
    ("content", "line"),
    [(ID[1:], 1), (f"{ID}\n{ID} {ID}", 2), (f"#\n{TEXT}", 2), (f"{ID}0", 1), ("g" * 32, 1)],
)
def test_a_line_that_is_no_id_is_refused_and_not_repeated(
    tmp_path: Path, content: str, line: int
) -> None:
    path = written(tmp_path / "revoked", content)
    with pytest.raises(SecretUnusable, match="is not a list of ids") as caught:
        read_revoked_tokens(path)
    assert caught.value.value == f"{path}, line {line}"


def test_a_list_that_is_too_long_is_not_cut(tmp_path: Path) -> None:
    with pytest.raises(SecretUnusable, match="is not a list of ids"):
        read_revoked_tokens(written(tmp_path / "revoked", f"{ID}\n" * 40_000))


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_list_that_others_can_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "revoked", ID, mode)
    with pytest.raises(SecretUnusable, match=f"mode {mode:04o}, at most 0644"):
        read_revoked_tokens(path)


def test_a_running_taskmanager_keeps_having_secrets_or_none(tmp_path: Path) -> None:
    secrets = ClusterSecrets([SECRET])
    assert not Access().replace_secrets(None)
    with pytest.raises(SecretUnusable, match="first cluster secret"):
        Access().replace_secrets(secrets)
    access = Access(secrets)
    with pytest.raises(SecretUnusable, match="lose its last one"):
        access.replace_secrets(None)
    assert access.replace_secrets(ClusterSecrets([OTHER_SECRET]))
    assert access.secrets is secrets  # which others share
    assert secrets.accepted == (OTHER_SECRET,)


# ---- credentials and rules -------------------------------------------------------------------


def test_a_taskmanager_proves_its_secret_for_the_address_that_it_dials() -> None:
    credential = Access(ClusterSecrets([SECRET])).peer_credential("tm-b.example", 7337)
    assert credential is not None
    assert (credential.claim.kind, credential.claim.subject) == (KIND_PEER, "tm-b.example:7337")
    assert Access().peer_credential("tm-b.example", 7337) is None
    assert Access(allow_anonymous=True).peer_credential("tm-b.example", 7337) is None


@pytest.mark.parametrize("user", [STRANGER, None], ids=["stranger", "unknown"])
@pytest.mark.parametrize("anonymous", [False, True])
def test_with_a_secret_the_rules_are_the_same_on_every_socket(
    monkeypatch: pytest.MonkeyPatch,
    unix_socket: socket.socket,
    user: SocketUser | None,
    anonymous: bool,
) -> None:
    let_in(monkeypatch, user)
    secrets = ClusterSecrets([SECRET])
    access = Access(secrets, allow_anonymous=anonymous)
    for sock in (None, unix_socket):
        admission = access.admission(sock)
        assert admission.secrets is secrets
        assert admission.anonymous is anonymous


def test_anonymous_access_is_for_every_user(
    monkeypatch: pytest.MonkeyPatch, unix_socket: socket.socket
) -> None:
    let_in(monkeypatch, STRANGER)
    assert Access(allow_anonymous=True).admission(unix_socket)[:2] == (None, True)


@pytest.mark.parametrize(
    "user",
    [
        SocketUser(OWN_UID, (STRANGE_ID,)),
        SocketUser(0, (STRANGE_ID,)),
        SocketUser(STRANGE_ID, (OWN_GID,)),
        SocketUser(STRANGE_ID, (STRANGE_ID, STRANGE_ID + 1, OWN_GID)),
        None,
    ],
    ids=["user", "root", "group", "further group", "not told"],
)
def test_without_a_secret_the_socket_serves_its_user_and_its_group(
    monkeypatch: pytest.MonkeyPatch, unix_socket: socket.socket, user: SocketUser | None
) -> None:
    let_in(monkeypatch, user)
    assert Access().admission(unix_socket)[:2] == (None, True)


def test_without_a_secret_the_socket_serves_nobody_else(
    monkeypatch: pytest.MonkeyPatch, unix_socket: socket.socket
) -> None:
    let_in(monkeypatch, STRANGER)
    with pytest.raises(AuthenticationFailed) as caught:
        Access().admission(unix_socket)
    assert caught.value.code is ErrorCode.AUTHENTICATION_REQUIRED
    assert caught.value.reason == "other user"
    assert caught.value.value == f"user {STRANGE_ID}, groups {STRANGE_ID}, {STRANGE_ID + 1}"
    assert caught.value.limit == f"user {OWN_UID} or group {OWN_GID}"
    assert "cluster secret" in caught.value.remedy


def test_the_kernel_tells_the_user_and_the_groups(unix_socket: socket.socket) -> None:
    user = peer_user(unix_socket)
    assert user is not None
    assert user.uid == OWN_UID
    assert user.gids[0] == OWN_GID
    assert set(os.getgroups()) <= set(user.gids)
    assert len(set(user.gids)) == len(user.gids)


def test_the_rules_ask_the_owner_for_the_applications_that_it_knows() -> None:
    knows = {"etl"}.__contains__
    for access in (
        Access(knows_application=knows),
        Access(ClusterSecrets([SECRET]), knows_application=knows),
        Access(allow_anonymous=True, knows_application=knows),
    ):
        assert access.admission(None).knows_application("etl")
        assert not access.admission(None).knows_application("other")


# ---- handshakes ------------------------------------------------------------------------------


def test_both_sides_of_a_handshake_are_made_with_new_nonces() -> None:
    credential = SubmitToken.make(SECRET).application(SALT)
    hello = a_hello(role=ROLE_DRIVER, application_id="etl")
    accepting = Accepting(an_ack(), Access(ClusterSecrets([SECRET])))
    nonces = set()
    for _ in range(3):
        connects = connecting_handshake(hello, credential)
        accepts = accepting.handshake(None)
        step = accepts.receive(connects.hello, b"", 0)
        (challenge,) = step.replies
        assert isinstance(challenge, Challenge)
        (proof,) = connects.receive(challenge, b"", 0).replies
        answer, ack = accepts.receive(proof, b"", 0).replies
        assert isinstance(answer, Proof)
        connects.receive(answer, b"", 0)
        assert connects.receive(ack, b"", 0).state is State.OPEN
        assert accepts.application_id.startswith("etl@")
        nonces |= {connects.hello.token[:NONCE_BYTES], challenge.nonce}
    assert len(nonces) == 6
    assert {len(nonce) for nonce in nonces} == {NONCE_BYTES}


@pytest.mark.parametrize("user", [STRANGER, SocketUser(OWN_UID, ())], ids=["stranger", "own"])
async def test_another_user_reads_the_refusal_when_it_has_said_hello(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, user: SocketUser
) -> None:
    let_in(monkeypatch, user)
    path = tmp_path / "socket"
    listener = Listener(a_config(socket_path=path), SEGMENT, RecordingHandler, an_ack)
    await listener.start()
    try:
        with await RawPeer.connect(path) as peer:
            await until(lambda: listener.connections)
            await turns()
            (connection,) = listener.connections
            assert not connection.closing
            await peer.send_message(a_hello())
            answer, _ = await peer.read_frame()
            if user is not STRANGER:
                assert answer == an_ack()
                return
            assert isinstance(answer, ErrorResponse)
            assert answer.code == ErrorCode.AUTHENTICATION_REQUIRED
            assert "serves the user and the group" in answer.message
            assert await peer.read_to_end() == b""
        await until(lambda: not listener.connections)
        assert listener.outcomes.refused == {"other user": 1}
    finally:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await listener.close()
