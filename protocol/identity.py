"""Keys that prove who is at the other end of a connection, and how they are derived.

A cluster has a *secret*, which its TaskManagers share. Every other key is derived from it, so a
TaskManager computes the key of the other side from its *claim*, and no key is ever sent to a
TaskManager::

    secret ──▶ key of a peer
       └─────▶ submit token ──▶ key of a driver ──▶ key of its tasks
               (subject, expiry)  (one application)   (reads and writes, releases nothing)

An application's data belongs to its key: the TaskManager adds a *namespace* to the application's
name, a tag of the token's subject and letters derived from the key. So two applications with the
same name share no data, an attacker cannot take a name before its owner does, and the name alone
tells every TaskManager which applications belong to the same *tenant*.

This module does arithmetic only: the caller supplies random numbers and the time.
"""

import base64
import binascii
import hashlib
import hmac
import re
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

from .errors import ErrorCode, MalformedMessage, SluiceError
from .limits import MAX_PROCESS_CHARACTERS, MAX_SUBJECT_BYTES, MAX_U64
from .schema import ROLE_CONSUMER, ROLE_COPIER, ROLE_DRIVER, ROLE_PEER, ROLE_PRODUCER

SECRET_BYTES: Final = 32
SALT_BYTES: Final = 16
TOKEN_ID_BYTES: Final = 16

KIND_PEER: Final = 1
KIND_DRIVER: Final = 2
KIND_TASK: Final = 3

KIND_OF_ROLE: Final = {
    ROLE_PEER: KIND_PEER,
    ROLE_PRODUCER: KIND_TASK,
    ROLE_CONSUMER: KIND_TASK,
    ROLE_DRIVER: KIND_DRIVER,
    ROLE_COPIER: KIND_PEER,
}
"""The kind of credential that each role has to prove."""

KIND_NAMES: Final = {KIND_PEER: "peer", KIND_DRIVER: "driver", KIND_TASK: "task"}

_CLAIM = struct.Struct(">B8sQ16s16s")
_TOKEN = struct.Struct(">8sQ16s")
_NO_BYTES: Final = bytes(16)
_TAG_BYTES: Final = 5
_NAMESPACE_BYTES: Final = 10
_TAG_LETTERS: Final = 8
NAMESPACE_LETTERS: Final = 24
_NO_TAG: Final = "a" * _TAG_LETTERS
_SCOPED = re.compile(rf".*@[a-z2-7]{{{NAMESPACE_LETTERS}}}", re.DOTALL)

_SECRET_PREFIX: Final = "sluice-secret-1-"  # noqa: S105 - what every secret begins with
_TOKEN_PREFIX: Final = "sluice-token-1-"  # noqa: S105
_PREFIX_OF_KIND: Final = {KIND_DRIVER: "sluice-driver-1-", KIND_TASK: "sluice-task-1-"}


class InvalidCredential(SluiceError):
    """A text is not a secret, token or credential of Sluice."""

    code = ErrorCode.CONFIGURATION


class Claim(NamedTuple):
    """Names the key that the sender of a Hello will prove. It holds no secret.

    ``subject`` names the owner of the submit token; for a peer it is the address that was dialed.
    """

    kind: int
    secret_id: bytes
    expires_at_seconds: int
    """When the submit token expires, in seconds since 1970; 0 means never."""
    token_id: bytes
    salt: bytes
    """Distinguishes the applications of one submit token."""
    subject: str
    dialed: str = ""
    """The addresses that a client dialed, separated by blanks."""
    process: str = ""
    """Random text of a client's process: only that process resumes the map outputs it began."""

    def pack(self) -> bytes:
        """Return the bytes for a Hello."""
        return _CLAIM.pack(*self[:5]) + "\0".join(self[5:]).rstrip("\0").encode()

    @classmethod
    def unpack(cls, packed: bytes) -> Self:
        """Read the bytes of a Hello.

        Raises:
            MalformedMessage: They are not a claim.
        """
        try:
            kind, *fields = _CLAIM.unpack_from(packed)
            subject, _, rest = packed[_CLAIM.size :].decode().partition("\0")
        except (struct.error, UnicodeDecodeError) as error:
            raise MalformedMessage("The token of a Hello is not a claim", value=error) from error
        if kind not in KIND_NAMES:
            raise MalformedMessage("A claim is of an unknown kind", value=kind, limit="1 to 3")
        if len(subject.encode()) > MAX_SUBJECT_BYTES:
            raise MalformedMessage(
                "The subject of a claim is too long",
                value=f"{len(subject.encode())} bytes",
                limit=f"{MAX_SUBJECT_BYTES} bytes",
            )
        dialed, _, process = rest.partition("\0")
        if len(process) > MAX_PROCESS_CHARACTERS or packed.endswith(b"\0", _CLAIM.size):
            raise MalformedMessage("A claim ends with a zero byte or a long text", value=process)
        return cls._make((kind, *fields, subject, dialed, process))


@dataclass(frozen=True, slots=True)
class Credential:
    """A claim and the key that proves it."""

    claim: Claim
    key: bytes = field(repr=False)

    def for_tasks(self) -> "Credential":
        """Return the credential for a driver's tasks; a task's credential is its own.

        Raises:
            InvalidCredential: A peer has no tasks.
        """
        if self.claim.kind == KIND_TASK:
            return self
        if self.claim.kind != KIND_DRIVER:
            raise InvalidCredential("Only a driver's credential has one for tasks")
        return Credential(self.claim._replace(kind=KIND_TASK), _task_key(self.key))

    def at(self, address: str) -> "Credential":
        """Return a client's credential for a connection to an address, or to one more.

        The proof covers the addresses, so an attacker who answers there cannot forward it to
        another TaskManager. A peer's credential is for one address already.
        """
        dialed = self.claim.dialed.split()
        if self.claim.kind == KIND_PEER or address in dialed:
            return self
        return Credential(self.claim._replace(dialed=" ".join((*dialed, address))), self.key)

    def to_text(self) -> str:
        """Return the text that :func:`parse_credential` reads. It holds the key.

        Raises:
            InvalidCredential: A peer's credential has no text, because it is for one address.
        """
        prefix = _PREFIX_OF_KIND.get(self.claim.kind)
        if prefix is None:
            raise InvalidCredential("The credential of a peer has no text")
        return prefix + encode_text(self.key + self.claim.pack())


@dataclass(frozen=True, slots=True)
class SubmitToken:
    """Lets its owner run applications on a cluster until it expires.

    Attributes:
        secret_id: The cluster secret that it was derived from.
        expires_at_seconds: When it expires, in seconds since 1970; 0 means never.
        token_id: 16 random bytes.
        subject: The name of its owner.
    """

    secret_id: bytes
    expires_at_seconds: int
    token_id: bytes
    subject: str
    key: bytes = field(repr=False)

    @classmethod
    def make(
        cls,
        secret: bytes,
        subject: str = "",
        expires_at_seconds: int = 0,
        token_id: bytes = _NO_BYTES,
    ) -> Self:
        """Make a token of a cluster secret; the defaults are for the secret's owner.

        Raises:
            InvalidCredential: The subject is too long or the time is out of range.
        """
        if len(subject.encode()) > MAX_SUBJECT_BYTES or "\0" in subject:
            raise InvalidCredential(
                "The subject of a token is too long, or has a zero character",
                value=f"{len(subject.encode())} bytes",
                limit=f"{MAX_SUBJECT_BYTES} bytes",
                remedy="Choose a shorter one",
            )
        if not 0 <= expires_at_seconds <= MAX_U64:
            raise InvalidCredential("The expiry of a token is out of range")
        key = _token_key(secret, expires_at_seconds, token_id, subject)
        return cls(secret_id(secret), expires_at_seconds, token_id, subject, key)

    def application(self, salt: bytes) -> Credential:
        """Return the credential of a driver for one application.

        Args:
            salt: 16 random bytes, or the result of :meth:`salt_of`.
        """
        claim = Claim(
            KIND_DRIVER,
            self.secret_id,
            self.expires_at_seconds,
            self.token_id,
            salt,
            self.subject,
        )
        return Credential(claim, _driver_key(self.key, salt))

    def salt_of(self, application_id: str) -> bytes:
        """Return a salt that all processes of an application compute alike."""
        return _derive(self.key, b"sluice salt\0" + application_id.encode())[:SALT_BYTES]

    def to_text(self) -> str:
        """Return the text that :func:`parse_credential` reads. It holds the key."""
        fields = _TOKEN.pack(self.secret_id, self.expires_at_seconds, self.token_id)
        return _TOKEN_PREFIX + encode_text(self.key + fields + self.subject.encode())


class ClusterSecrets:
    """The secrets that a TaskManager knows: it proves the first (``proven``) and accepts all.

    To replace a secret, accept the new one on all TaskManagers, then prove it on all, and then
    remove the old one. Everything that checks a claim or a token shares one object, so
    :meth:`replace` takes effect at once.

    Args:
        secrets: At least one; 32 bytes each.
        revoked: The ids of tokens that are no longer accepted.
    """

    def __init__(self, secrets: Sequence[bytes], revoked: Collection[bytes] = ()) -> None:
        self.proven = secrets[0]
        self._by_id = {secret_id(secret): secret for secret in secrets}
        self.revoked = frozenset(revoked)

    def replace(self, others: "ClusterSecrets") -> bool:
        """Take over the secrets and the revoked tokens of others.

        Returns:
            Whether another secret is proven now.
        """
        proves_another = others.proven != self.proven
        self.proven, self._by_id = others.proven, others._by_id
        self.revoked = others.revoked
        return proves_another

    @property
    def accepted(self) -> tuple[bytes, ...]:
        """All secrets, in no particular order."""
        return tuple(self._by_id.values())

    def peer(self, address: str) -> Credential:
        """Return the credential for a connection to a TaskManager at ``host:port``.

        The proof covers the address, so an attacker in between cannot forward it to another
        TaskManager.
        """
        claim = Claim(KIND_PEER, secret_id(self.proven), 0, _NO_BYTES, _NO_BYTES, address)
        return Credential(claim, self._key(self.proven, claim))

    def key_of(self, claim: Claim) -> tuple[bytes, bool]:
        """Return the key of a claim, and whether its secret is known.

        An unknown secret gets the first one's key: its refusal takes the same steps and time.
        """
        secret = self._by_id.get(claim.secret_id)
        return self._key(self.proven if secret is None else secret, claim), secret is not None

    def scope(self, application_id: str, claim: Claim) -> str:
        """Return the name of an application in its namespace."""
        key = _key_of_driver(self._by_id[claim.secret_id], claim)
        namespace = _tag(claim) + _derive(key, b"sluice namespace")[:_NAMESPACE_BYTES]
        return f"{application_id}@{base64.b32encode(namespace).decode().lower()}"

    @staticmethod
    def _key(secret: bytes, claim: Claim) -> bytes:
        if claim.kind == KIND_PEER:
            return _derive(secret, b"sluice peer")
        driver_key = _key_of_driver(secret, claim)
        return driver_key if claim.kind == KIND_DRIVER else _task_key(driver_key)


def is_scoped(application_id: str) -> bool:
    """Return whether a name has the form of one in a namespace."""
    return _SCOPED.fullmatch(application_id) is not None


def plain_name(application_id: str) -> str:
    """Return the name of an application without its namespace, if it has one."""
    return application_id.rpartition("@")[0] if is_scoped(application_id) else application_id


def tenant_of(application_id: str) -> str:
    """Return the tenant of an application: a name with its subject's tag, or the application.

    The applications of a subject have one tenant, whatever tokens they have. An application of the
    secret's owner, or without a credential, is a tenant of its own. The name of a tenant has the
    form of a name in a namespace, so that no application can take it.
    """
    if not is_scoped(application_id):
        return application_id
    tag = application_id[-NAMESPACE_LETTERS:][:_TAG_LETTERS]
    return application_id if tag == _NO_TAG else f"@{tag:a<{NAMESPACE_LETTERS}}"


def _tag(claim: Claim) -> bytes:
    """Return the tag of a claim's subject; tokens without a subject have one each.

    It holds no secret and is the same for all cluster secrets, so that it outlives a rotation.
    """
    owner = claim.subject.encode() or claim.token_id
    if owner == _NO_BYTES:  # the owner of the secret
        return bytes(_TAG_BYTES)
    return hashlib.sha256(b"sluice tenant\0" + owner).digest()[:_TAG_BYTES]


def secret_id(secret: bytes) -> bytes:
    """Return the 8 bytes that name a secret without revealing it."""
    return _derive(secret, b"sluice secret id")[:8]


def secret_to_text(secret: bytes) -> str:
    """Return the text of a secret, as written in its file."""
    return _SECRET_PREFIX + encode_text(secret)


def parse_secret(text: str) -> bytes:
    """Read the text of a secret.

    Raises:
        InvalidCredential: It is not one.
    """
    secret = decode_text(text.strip(), _SECRET_PREFIX, "a cluster secret")
    if len(secret) != SECRET_BYTES:
        raise InvalidCredential(
            "A cluster secret has the wrong length",
            value=f"{len(secret)} bytes",
            limit=f"{SECRET_BYTES} bytes",
            remedy="Make one with: sluice secret create",
        )
    return secret


def parse_credential(text: str, application_id: str) -> Credential:
    """Read the credential of an application from a credential, token or secret.

    From a submit token or a cluster secret, every process that names the same application makes
    the same credential.

    Raises:
        InvalidCredential: The text is not a credential. The message does not repeat it.
    """
    text = text.strip()
    if text.startswith(_SECRET_PREFIX):
        token = SubmitToken.make(parse_secret(text))
        return token.application(token.salt_of(application_id))
    if text.startswith(_TOKEN_PREFIX):
        token = parse_token(text)
        return token.application(token.salt_of(application_id))
    for kind, prefix in _PREFIX_OF_KIND.items():
        if text.startswith(prefix):
            packed = decode_text(text, prefix, "a credential")
            try:
                claim = Claim.unpack(packed[SECRET_BYTES:])
            except MalformedMessage as error:
                raise _not_readable("a credential") from error
            if claim.kind != kind:
                raise _not_readable("a credential")
            return Credential(claim, packed[:SECRET_BYTES])
    raise InvalidCredential(
        "A credential of Sluice cannot be understood",
        limit="sluice-token-…, sluice-secret-…, sluice-driver-… or sluice-task-…",
        remedy="Make one with: sluice token create",
    )


def parse_token(text: str) -> SubmitToken:
    """Read the text of a submit token.

    Raises:
        InvalidCredential: It is not one.
    """
    packed = decode_text(text.strip(), _TOKEN_PREFIX, "a submit token")
    try:
        secret, expires_at_seconds, token_id = _TOKEN.unpack_from(packed, SECRET_BYTES)
        subject = packed[SECRET_BYTES + _TOKEN.size :].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise _not_readable("a submit token") from error
    return SubmitToken(secret, expires_at_seconds, token_id, subject, packed[:SECRET_BYTES])


def _derive(key: bytes, what: bytes) -> bytes:
    return hmac.digest(key, what, hashlib.sha256)


def _token_key(secret: bytes, expires_at_seconds: int, token_id: bytes, subject: str) -> bytes:
    fields = struct.pack(">Q16s", expires_at_seconds, token_id)
    return _derive(secret, b"sluice submit token\0" + fields + subject.encode())


def _driver_key(token_key: bytes, salt: bytes) -> bytes:
    return _derive(token_key, b"sluice driver\0" + salt)


def _task_key(driver_key: bytes) -> bytes:
    return _derive(driver_key, b"sluice task")


def _key_of_driver(secret: bytes, claim: Claim) -> bytes:
    token_key = _token_key(secret, claim.expires_at_seconds, claim.token_id, claim.subject)
    return _driver_key(token_key, claim.salt)


def encode_text(raw: bytes) -> str:
    """Return the text of bytes, after a prefix."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def decode_text(text: str, prefix: str, what: str) -> bytes:
    """Read the bytes after a prefix.

    Raises:
        InvalidCredential: The text is not ``what``.
    """
    if not text.startswith(prefix):
        raise InvalidCredential(
            f"This is not {what} of Sluice", limit=f"{prefix}…", remedy="Copy the whole text"
        )
    body = text.removeprefix(prefix)
    try:
        return base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise _not_readable(what) from error


def _not_readable(what: str) -> InvalidCredential:
    return InvalidCredential(f"The text of {what} is damaged", remedy="Copy the whole text")
