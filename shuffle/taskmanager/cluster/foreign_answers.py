"""Errors that clients get when a program does not prove that it is a TaskManager."""

import logging

from ....protocol.errors import AuthenticationFailed, ErrorCode, Fault, SluiceError
from ....protocol.remote_error import RemoteError
from ....protocol.schema import ErrorResponse
from ....transport.address import Address
from ....transport.errors import counted, one_line

logger = logging.getLogger(__name__)


def without_foreign_bytes(address: Address, error: SluiceError) -> SluiceError:
    """Return the error that a client gets for a failed handshake.

    A client can name any address. It must not see the answer of a program that has not proven to be
    a TaskManager of this cluster: only the log has it.
    """
    own_words = isinstance(error, AuthenticationFailed)
    if own_words or error.code is ErrorCode.UNSUPPORTED_VERSION:
        return error  # in this TaskManager's own words
    extra = counted("addresses without a TaskManager of this cluster", str(address))
    extra |= {"peer": str(address), "code": error.code.name}
    logger.warning(
        "no TaskManager of this cluster at %s: %s", address, one_line(error), extra=extra
    )
    if not isinstance(error, RemoteError):
        return SluiceError(
            f"The program at {address} does not speak the Sluice protocol",
            code=ErrorCode.CONNECT_FAILED,
            remedy="Name the data port of a TaskManager, 7337 by default",
        )
    return RemoteError(
        ErrorResponse(
            None,
            int(error.code),
            int(Fault.REMOTE if error.fault is Fault.LOCAL else Fault.LOCAL),
            error.retryable,
            f"The TaskManager at {address} refuses this one: {error.code.name}. "
            "See the log of either",
            "",
            "",
            None,
        )
    )
