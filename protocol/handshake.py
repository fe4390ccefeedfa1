"""The handshake: authenticates both sides and agrees on version, segment size and features.

Without a claim the side that connects sends Hello, and the other answers with HelloAck. With a
claim, both prove in one more round trip that they have its key::

    connects                                   accepts
    Hello: a claim, a nonce          ──▶
                                     ◀──       Challenge: a nonce
    Proof                            ──▶
                                     ◀──       Proof, HelloAck

A proof is an HMAC, under the key of the claim, of every message so far and of the certificate if
the connection uses TLS. Nonces are new for each connection, and the two sides' proofs have
different labels, so a proof cannot be replayed or reflected. The side that connects proves first:
without the key it gets nothing from the other side to test guesses on.

:mod:`sluice.protocol.admission` has the side that accepts.
"""

import hashlib
import hmac
import struct
from typing import Final, NamedTuple

from msgspec.structs import replace

from . import schema as m
from .errors import AuthenticationFailed, ErrorCode, MalformedMessage, ProtocolViolation
from .identity import Credential
from .limits import PREFIX_BYTES, VERSION
from .schema import encode
from .states import State

CONNECTS: Final = b"sluice proof of the side that connects"
ACCEPTS: Final = b"sluice proof of the side that accepts"
_LENGTH = struct.Struct(">I")


class Step(NamedTuple):
    """The answer to a message of the handshake."""

    state: State
    replies: tuple[m.Message, ...]
    agreed: m.HelloAck | None
    """Set when the connection is open."""


class ConnectingHandshake:
    """The handshake of the side that connects.

    Args:
        hello: The first message, without a claim.
        credential: The credential to prove, or None.
        nonce: 32 random bytes, new for each connection.
    """

    def __init__(self, hello: m.Hello, credential: Credential | None, nonce: bytes) -> None:
        self._credential = credential
        self._said: list[m.Message] = []
        self._proof: bytes | None = None
        if credential is None:
            self.hello = hello
        else:
            self.hello = replace(hello, token=nonce + credential.claim.pack())
            self._said.append(self.hello)

    def receive(self, message: m.Message, binding: bytes, now_seconds: float) -> Step:
        """Handle a Challenge, a Proof or a HelloAck.

        Raises:
            AuthenticationFailed: The other side does not prove that it has the key.
            UNSUPPORTED_VERSION: The version was not offered.
            MalformedMessage: The flow control mode is neither credit nor the requested one.
        """
        if type(message) is m.Challenge and self._credential is not None:
            self._said.append(message)
            proof = m.Proof(proof_of(self._credential.key, CONNECTS, self._said, binding))
            self._said.append(proof)
            return Step(State.AWAIT_PROOF, (proof,), None)
        if type(message) is m.Proof:
            self._proof = message.proof
            return Step(State.AWAIT_ACK, (), None)
        if type(message) is not m.HelloAck:
            raise MalformedMessage("Not a message of a handshake", value=type(message).__name__)
        if self._credential is not None:
            self._said.append(message)
            expected = proof_of(self._credential.key, ACCEPTS, self._said, binding)
            if self._proof is None or not hmac.compare_digest(self._proof, expected):
                raise AuthenticationFailed(
                    "The TaskManager does not prove that it belongs to the cluster",
                    reason="unproven TaskManager",
                    remedy="Give it the cluster secret of this credential, or connect without one",
                )
        check_ack(self.hello, message)
        return Step(State.OPEN, (), message)


def proof_of(key: bytes, label: bytes, said: list[m.Message], binding: bytes) -> bytes:
    """Return the proof of one side: the MAC of its label, all messages so far and the binding."""
    mac = hmac.new(key, digestmod=hashlib.sha256)
    for part in (label, *(encode(message)[PREFIX_BYTES:] for message in said), binding):
        mac.update(_LENGTH.pack(len(part)))
        mac.update(part)
    return mac.digest()


def check_ack(hello: m.Hello, ack: m.HelloAck) -> None:
    """Check the answer of the accepting side to a Hello.

    Raises:
        UNSUPPORTED_VERSION: The version was not offered.
        MalformedMessage: The flow control mode is neither credit nor the requested one.
    """
    if ack.version != VERSION:
        raise ProtocolViolation(
            "HelloAck names a version that was not offered",
            code=ErrorCode.UNSUPPORTED_VERSION,
            value=ack.version,
            limit=VERSION,
            remedy="Use the same release of Sluice on both sides",
        )
    if ack.flow_control not in (m.FLOW_CREDIT, hello.flow_control):
        raise MalformedMessage(
            "HelloAck names a flow control mode that was not asked for",
            value=ack.flow_control,
            limit=f"{m.FLOW_CREDIT} or {hello.flow_control}",
        )
