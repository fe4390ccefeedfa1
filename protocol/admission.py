"""The handshake of the side that accepts: whom it admits, and as which application."""

import hmac
import ipaddress
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from . import schema as m
from .errors import (
    AuthenticationFailed,
    ErrorCode,
    MalformedMessage,
    NotPermitted,
    ProtocolViolation,
)
from .handshake import ACCEPTS, CONNECTS, Step, proof_of
from .identity import (
    KIND_NAMES,
    KIND_OF_ROLE,
    KIND_PEER,
    NAMESPACE_LETTERS,
    Claim,
    ClusterSecrets,
    is_scoped,
)
from .limits import MAGIC, MAX_NAME_CHARACTERS, NONCE_BYTES, VERSION
from .states import ROLES, State


class Admission(NamedTuple):
    """The rules by which the accepting side admits connections.

    Attributes:
        secrets: The cluster secrets; None: this side cannot check claims.
        anonymous: Whether connections without a claim are admitted.
        knows_application: Returns whether an application has data or connections here; its
            credential then stays valid after its submit token expires.
    """

    secrets: ClusterSecrets | None
    anonymous: bool
    knows_application: Callable[[str], bool]
    aliases: frozenset[str] = frozenset()
    """Addresses ``host:port`` of this TaskManager, beside the advertised one."""


class AcceptingHandshake:
    """The handshake of the side that accepts.

    Args:
        offer: This side's own values; its version is the newest that this side knows.
        admission: The rules of admission.
        nonce: 32 random bytes, new for each connection.
        reached: Address of this side's end of the connection, ``unix:`` for a Unix socket.

    Attributes:
        hello: The Hello, once it was received and is valid.
        application_id: The application, in its namespace if it was proven.
        claim: The claim that was proven, if any.
    """

    def __init__(
        self, offer: m.HelloAck, admission: Admission, nonce: bytes, reached: str = ""
    ) -> None:
        self.hello: m.Hello | None = None
        self.application_id = ""
        self.claim: Claim | None = None
        self._offer = offer
        self._admission = admission
        self._challenge = m.Challenge(nonce)
        self._reached = reached
        self._claimed: Claim | None = None

    def receive(self, message: m.Message, binding: bytes, now_seconds: float) -> Step:
        """Handle a Hello or a Proof.

        Raises:
            AuthenticationFailed: The other side did not authenticate, or has no permission.
            MalformedMessage: The magic is wrong, the role, the claim or the flow control is
                unknown, or the application is missing.
            UNSUPPORTED_VERSION: The two sides have no common version.
            SEGMENT_SIZE_MISMATCH: A peer has another segment size.
        """
        if type(message) is m.Hello:
            self._offer = answer_hello(message, self._offer)
            self.hello = message
            if not message.token:
                self._admit_anonymous(message)
                return Step(State.OPEN, (self._offer,), self._offer)
            self._claimed = self._read_claim(message)
            return Step(State.AWAIT_PROOF, (self._challenge,), None)
        if type(message) is m.Proof and self.hello is not None and self._claimed is not None:
            answer = self._check_proof(message, self.hello, self._claimed, binding, now_seconds)
            return Step(State.OPEN, (answer, self._offer), self._offer)
        raise MalformedMessage("Not a message of a handshake", value=type(message).__name__)

    def _admit_anonymous(self, hello: m.Hello) -> None:
        of_peers = KIND_OF_ROLE[hello.role] == KIND_PEER and self._admission.secrets is not None
        if of_peers or not self._admission.anonymous:
            raise AuthenticationFailed(
                "This TaskManager requires a credential",
                code=ErrorCode.AUTHENTICATION_REQUIRED,
                reason="no credential",
                remedy="Set spark.sluice.auth.tokenFile, SLUICE_CREDENTIAL_FILE or, on a "
                "TaskManager, auth.cluster_secret_files",
            )
        if is_scoped(hello.application_id):
            raise NotPermitted(
                "This form of name is reserved for applications with a credential",
                reason="reserved name",
                value=hello.application_id,
                remedy=f"Choose a name that does not end in @ and {NAMESPACE_LETTERS} letters",
            )
        self.application_id = hello.application_id

    def _read_claim(self, hello: m.Hello) -> Claim:
        if self._admission.secrets is None:
            raise AuthenticationFailed(
                "This TaskManager has no cluster secret and cannot prove who it is",
                reason="no cluster secret here",
                remedy="Set auth.cluster_secret_files there, or connect without a credential",
            )
        claim = Claim.unpack(hello.token[NONCE_BYTES:])
        if claim.kind != KIND_OF_ROLE[hello.role]:
            raise NotPermitted(
                "The credential does not allow this role",
                reason="wrong role",
                value=f"{KIND_NAMES[claim.kind]} credential",
                limit=f"{KIND_NAMES[KIND_OF_ROLE[hello.role]]} credential",
                remedy="Only a driver releases data, and only a TaskManager is a peer",
            )
        return claim

    def _check_proof(
        self,
        message: m.Proof,
        hello: m.Hello,
        claim: Claim,
        binding: bytes,
        now_seconds: float,
    ) -> m.Proof:
        secrets = self._admission.secrets
        if secrets is None:
            raise TypeError("a claim is checked against secrets")
        key, known = secrets.key_of(claim)
        said: list[m.Message] = [hello, self._challenge]
        expected = proof_of(key, CONNECTS, said, binding)
        if not (hmac.compare_digest(message.proof, expected) and known):
            raise AuthenticationFailed(
                "The credential is not accepted",
                reason="wrong proof" if known else "unknown secret",
                remedy="Check that it was made from this cluster's secret, and that no proxy "
                "ends TLS",
            )
        if (revocation := _revocation(claim, secrets)) is not None:
            raise revocation
        self.claim = claim
        if claim.kind == KIND_PEER:
            self._check_dialed(claim.subject or "no address")
            self.application_id = hello.application_id  # a peer's own claim, in its namespace
        else:
            if not binding:  # with TLS the proof covers the certificate
                self._check_dialed(claim.dialed, self._reached)
            self._scope(hello, claim, secrets, now_seconds)
        said += (message, self._offer)
        return m.Proof(proof_of(key, ACCEPTS, said, binding))

    def _check_dialed(self, dialed: str, *reached: str) -> None:
        """Refuse a side that dialed another TaskManager: an attacker forwarded its proof."""
        advertised = f"{self._offer.advertised_host}:{self._offer.data_port}"
        own = set(map(_same_form, (advertised, *self._admission.aliases, *reached)))
        if dialed and own.isdisjoint(map(_same_form, dialed.split(" ", 1))):
            raise NotPermitted(
                "The address that was dialed is not one of this TaskManager",
                reason="wrong address",
                value=dialed,
                limit=advertised,
                remedy="Set transport.advertised_host to the name under which others reach it, or "
                "auth.address_aliases if there are several",
            )

    def _scope(
        self, hello: m.Hello, claim: Claim, secrets: ClusterSecrets, now_seconds: float
    ) -> None:
        self.application_id = scoped = secrets.scope(hello.application_id, claim)
        if len(scoped) > MAX_NAME_CHARACTERS:
            raise NotPermitted(
                "The name of the application is too long",
                reason="long name",
                value=f"{len(hello.application_id)} characters",
                limit=f"{MAX_NAME_CHARACTERS - len(scoped) + len(hello.application_id)} characters",
                remedy="Choose a shorter one",
            )
        expires_at = claim.expires_at_seconds
        if (
            expires_at
            and now_seconds > expires_at
            and not self._admission.knows_application(scoped)
        ):
            raise AuthenticationFailed(
                "The submit token has expired",
                code=ErrorCode.CREDENTIAL_EXPIRED,
                reason="expired",
                value=f"{int(now_seconds) - expires_at} s ago, by this TaskManager's clock",
                remedy="Make a new one with sluice token create, or set the clocks right",
            )


def _same_form(address: str) -> str:
    """Return the one form of an address that can be written in several ways."""
    host, _, port = address.lower().rpartition(":")
    bare, _, _ = host.strip("[]").partition("%")  # a zone has another name on each host
    try:
        found = ipaddress.ip_address(bare)
    except ValueError:  # a name
        return f"{host}:{port}"
    return f"{getattr(found, 'ipv4_mapped', None) or found}:{port}"


def refusal(claim: Claim, secrets: ClusterSecrets) -> AuthenticationFailed | None:
    """Return why a claim that was proven is no longer accepted; None if it still is."""
    _, is_known = secrets.key_of(claim)
    if is_known:
        return _revocation(claim, secrets)
    return AuthenticationFailed(
        "The cluster secret of this credential was removed",
        reason="unknown secret",
        remedy="Make a token of the new secret with sluice token create",
    )


def _revocation(claim: Claim, secrets: ClusterSecrets) -> AuthenticationFailed | None:
    if claim.kind == KIND_PEER or claim.token_id not in secrets.revoked:
        return None
    return AuthenticationFailed(
        "The submit token is revoked",
        reason="revoked",
        value=claim.token_id.hex(),
        remedy="Make a new one with sluice token create",
    )


def answer_hello(hello: m.Hello, offer: m.HelloAck) -> m.HelloAck:
    """Check a Hello and answer it.

    Args:
        hello: The Hello of the connecting side.
        offer: This side's own values; its version is the newest that this side knows.

    Returns:
        The HelloAck to send.

    Raises:
        MalformedMessage: The magic is wrong, the role or the flow control is unknown, or the
            application is missing.
        UNSUPPORTED_VERSION: The two sides have no common version.
        SEGMENT_SIZE_MISMATCH: A peer has another segment size.
    """
    if hello.magic != MAGIC:
        raise MalformedMessage("Hello has the wrong magic", value=hello.magic, limit=MAGIC)
    if not hello.version_min <= VERSION <= hello.version_max:
        raise ProtocolViolation(
            "No common protocol version",
            code=ErrorCode.UNSUPPORTED_VERSION,
            value=f"{hello.version_min} to {hello.version_max}",
            limit=VERSION,
            remedy="Use the same release of Sluice on both sides",
        )
    if hello.role not in ROLES:
        raise MalformedMessage("Hello has an unknown role", value=hello.role, limit="1 to 5")
    # A copier names an application if it writes, and not if it only watches.
    if hello.role != m.ROLE_COPIER and (hello.role == m.ROLE_PEER) != (hello.application_id == ""):
        raise MalformedMessage(
            "A client's Hello must name an application, a peer's must not",
            value=f"role {hello.role}, application {hello.application_id!r}",
        )
    if hello.flow_control not in (m.FLOW_CREDIT, m.FLOW_WATERMARK):
        raise MalformedMessage(
            "Hello has an unknown flow control mode",
            value=hello.flow_control,
            limit="0 or 1",
        )
    if hello.role == m.ROLE_PEER and hello.segment_size_bytes != offer.segment_size_bytes:
        raise ProtocolViolation(
            "TaskManagers have different segment sizes",
            code=ErrorCode.SEGMENT_SIZE_MISMATCH,
            value=hello.segment_size_bytes,
            limit=offer.segment_size_bytes,
            remedy="Set memory.segment_size_bytes to the same value on all TaskManagers",
        )
    return replace(
        offer,
        features=hello.features & offer.features,
        # Clients always get credit, even if they request watermark mode.
        flow_control=hello.flow_control if hello.role == m.ROLE_PEER else m.FLOW_CREDIT,
    )
