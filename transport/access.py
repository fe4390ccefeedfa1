"""Decides who may connect to a TaskManager, and which credential it proves to others.

Without a cluster secret a TaskManager accepts every connection. So it listens only for its own
host: on the loopback, and on a Unix socket for its own user and group.
"""

import logging
import os
import re
import secrets
import socket
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from ..protocol.admission import AcceptingHandshake, Admission
from ..protocol.control_memory import ControlMemory
from ..protocol.errors import AuthenticationFailed, ErrorCode, SluiceError
from ..protocol.identity import (
    TOKEN_ID_BYTES,
    ClusterSecrets,
    Credential,
    InvalidCredential,
    parse_secret,
)
from ..protocol.limits import NONCE_BYTES
from ..protocol.schema import HelloAck
from . import private_file
from .address import UNIX, host_port
from .config import AuthConfig
from .loop_share import LoopShares
from .trusted_path import UntrustedPath

logger = logging.getLogger(__name__)

_MAX_SECRET_FILE_BYTES: Final = 4096
_MAX_REVOKED_FILE_BYTES: Final = 1024 * 1024
_TOKEN_ID: Final = re.compile(rb"[0-9a-fA-F]{%d}" % (2 * TOKEN_ID_BYTES))

_UCRED = struct.Struct("3i")
_GID = struct.Struct("I")
_SO_PEERGROUPS = 59
_MAX_GROUPS = 4096
"""Maximum number of groups to read of a process; the kernel allows 65536, and fails above it."""


class SecretUnusable(SluiceError):
    """The file of a secret or of revoked tokens is damaged, open to others, or not readable."""

    code = ErrorCode.CONFIGURATION


class Access:
    """The rules by which a TaskManager accepts connections, and its own credential.

    Args:
        secrets: The cluster secrets; None: claims cannot be checked.
        allow_anonymous: Whether to accept connections without a claim, from anywhere.
        knows_application: Returns whether an application has data or connections.
        aliases: Addresses of this TaskManager beside the advertised one.
    """

    def __init__(
        self,
        secrets: ClusterSecrets | None = None,
        *,
        allow_anonymous: bool = False,
        knows_application: Callable[[str], bool] = lambda _: False,
        aliases: Iterable[str] = (),
    ) -> None:
        self.secrets = secrets
        self.allows_anonymous = allow_anonymous
        self._knows_application = knows_application
        self._aliases = frozenset(aliases)

    @classmethod
    def open(
        cls, config: AuthConfig, knows_application: Callable[[str], bool] = lambda _: False
    ) -> "Access":
        """Read the secrets of a configuration.

        Args:
            config: Names their files.
            knows_application: As for the class.

        Raises:
            SecretUnusable: A file cannot be read, has no secret, or is open to other users.
        """
        return cls(
            read_secrets(config),
            allow_anonymous=config.allow_anonymous,
            knows_application=knows_application,
            aliases=config.address_aliases,
        )

    def replace_secrets(self, secrets: ClusterSecrets | None) -> bool:
        """Accept and prove other secrets, and refuse other revoked tokens, from now on.

        Returns:
            Whether this TaskManager proves another secret now.

        Raises:
            SecretUnusable: The first secret was added or the last one removed, which takes a
                restart.
        """
        if self.secrets is not None and secrets is not None:
            return self.secrets.replace(secrets)
        if self.secrets is not None or secrets is not None:
            raise SecretUnusable(
                "A running TaskManager cannot get its first cluster secret or lose its last one",
                remedy="Restart it",
            )
        return False

    def peer_credential(self, host: str, port: int) -> Credential | None:
        """Return the credential for the TaskManager at an address, None if no secret."""
        return None if self.secrets is None else self.secrets.peer(f"{host}:{port}")

    def admission(self, sock: socket.socket | None) -> Admission:
        """Return the rules for a connection.

        Raises:
            AUTHENTICATION_REQUIRED: The other end of a Unix socket has another user and group, and
                credentials cannot be checked.
        """
        if self.secrets is not None or self.allows_anonymous:
            return Admission(
                self.secrets, self.allows_anonymous, self._knows_application, self._aliases
            )
        if sock is not None and sock.family == socket.AF_UNIX:
            require_own_user(sock)
        return Admission(None, True, self._knows_application)


class Accepting(NamedTuple):
    """What a connection of the side that accepts needs."""

    offer: HelloAck
    access: Access
    refusal: SluiceError | None = None
    """Error to send to the other side instead of a handshake, before closing."""
    control_memory: ControlMemory | None = None
    """Counts the memory of all connections together."""
    loop_shares: LoopShares | None = None
    """Divides the turns of the event loop among tenants."""

    def handshake(self, sock: socket.socket | None) -> AcceptingHandshake:
        """Begin the handshake of an accepted connection.

        Raises:
            AUTHENTICATION_REQUIRED: The other side is refused before its Hello.
        """
        nonce = secrets.token_bytes(NONCE_BYTES)
        admission = self.access.admission(sock)
        return AcceptingHandshake(self.offer, admission, nonce, _reached(sock))


def _reached(sock: socket.socket | None) -> str:
    """Return the address of this end of a connection; empty if the transport hides it."""
    if sock is None:
        return ""
    return UNIX if sock.family == socket.AF_UNIX else host_port(*sock.getsockname()[:2])


class SocketUser(NamedTuple):
    """User and groups of the process at the other end of a Unix socket when it connected."""

    uid: int
    gids: tuple[int, ...]


def peer_user(sock: socket.socket) -> SocketUser | None:
    """Return the user at the other end of a Unix socket; None if unsupported."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    _, uid, gid = _UCRED.unpack(credentials)
    try:
        packed = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MAX_GROUPS * _GID.size)
    except OSError:  # a kernel before 4.13
        packed = b""
    others = (group for (group,) in _GID.iter_unpack(packed))
    return SocketUser(uid, tuple(dict.fromkeys((gid, *others))))


def require_own_user(sock: socket.socket) -> None:
    """Check the user at the other end of a Unix socket.

    Raises:
        AUTHENTICATION_REQUIRED: It has another user and group than this process, and is not root.
    """
    user = peer_user(sock)
    if user is None or user.uid in (0, os.geteuid()) or os.getegid() in user.gids:
        return
    raise AuthenticationFailed(
        "This socket serves the user and the group of its TaskManager only",
        code=ErrorCode.AUTHENTICATION_REQUIRED,
        reason="other user",
        value=f"user {user.uid}, groups {', '.join(map(str, user.gids))}",
        limit=f"user {os.geteuid()} or group {os.getegid()}",
        remedy="Run as that user or in that group, or use a cluster secret",
    )


def read_secrets(config: AuthConfig) -> ClusterSecrets | None:
    """Read the secrets and the revoked tokens of a configuration. Blocks.

    Returns:
        The secrets with the revoked tokens; None without a secret.

    Raises:
        SecretUnusable: A file cannot be read, is damaged, or is open to other users.
    """
    found = [read_secret(path) for path in config.cluster_secret_files]
    path = config.revoked_tokens_file
    revoked = frozenset[bytes]() if path is None else read_revoked_tokens(path)
    return ClusterSecrets(found, revoked) if found else None


def read_revoked_tokens(path: Path) -> frozenset[bytes]:
    """Read a file of revoked tokens: an id on each line, and comments after ``#``.

    Raises:
        SecretUnusable: It cannot be read, has another line, or other users can change it.
    """
    try:
        raw = private_file.read(path, _MAX_REVOKED_FILE_BYTES + 1, secret=False)
    except OSError as error:
        raise SecretUnusable(
            "The file of revoked tokens cannot be read",
            value=error.reason if isinstance(error, UntrustedPath) else f"{path}: {error.strerror}",
            remedy="Correct auth.revoked_tokens_file, or let only its owner change it",
        ) from error
    lines = [line.partition(b"#")[0].strip() for line in raw.splitlines()]
    wrong = [n for n, line in enumerate(lines, 1) if line and not _TOKEN_ID.fullmatch(line)]
    if wrong or len(raw) > _MAX_REVOKED_FILE_BYTES:
        raise SecretUnusable(
            "The file of revoked tokens is not a list of ids",
            value=f"{path}, line {wrong[0]}" if wrong else f"{path}: {len(raw)} bytes and more",
            limit=f"{_MAX_REVOKED_FILE_BYTES} bytes",
            remedy="Write the ids that sluice token show prints, one on a line",
        )
    return frozenset(bytes.fromhex(line.decode()) for line in lines if line)


def read_secret(path: Path) -> bytes:
    """Read the file of a cluster secret.

    Raises:
        SecretUnusable: It cannot be read, has no secret, or is open to other users.
    """
    try:
        text = private_file.read(path, _MAX_SECRET_FILE_BYTES).decode(errors="replace")
    except UntrustedPath as error:
        raise SecretUnusable(
            "The file of a cluster secret is open to other users of this host",
            value=error.reason,
            limit="0640",
            remedy=f"Run this as the owner of the file, chmod 0600 {path}, and let only its owner "
            "and root change the directories above it; for a secret that a pod mounts: "
            "defaultMode: 0440, and fsGroup with the group of the TaskManager",
        ) from error
    except OSError as error:
        raise SecretUnusable(
            "The file of a cluster secret cannot be read",
            value=f"{path}: {error.strerror or error}",
            remedy="Run this as its owner, or make one with: sluice secret create FILE",
        ) from error
    try:
        return parse_secret(text)
    except InvalidCredential as error:
        raise SecretUnusable(
            "The file of a cluster secret does not contain a secret",
            value=path,
            remedy="Make one with: sluice secret create FILE",
        ) from error
