"""Log lines about connections, which clients without a credential can cause too.

Each line has a kind and a source. A TaskManager writes one line a minute for each kind and source,
and then their number. Other programs write all lines.
"""

import logging

from .errors import one_line


def counted(kind: str, remote: str) -> dict[str, str]:
    """Return the ``extra`` of a log line about a connection.

    Args:
        kind: What happened, in a few words that do not depend on the other side.
        remote: The other side, as ``describe_peer`` has it; its port is left out.
    """
    return {"kind": kind, "source": remote.rpartition(":")[0] or remote}


def log_end(
    logger: logging.Logger, verb: str, remote: str, reason: str, error: BaseException
) -> None:
    """Log that this side ends a connection because of an error.

    Args:
        logger: The logger of the module that ends it.
        verb: How it ends the connection: "closing".
        remote: The other side, as ``describe_peer`` has it.
        reason: The kind of the error; does not depend on the other side.
        error: The error.
    """
    kind = f"{verb} connection: {reason}"
    text = one_line(error)
    logger.warning(
        "%s connection %s: %s: %s", verb, remote, reason, text, extra=counted(kind, remote)
    )
