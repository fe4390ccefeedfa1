"""Log lines about connections, which clients without a credential can trigger.

Each line has a kind and a source. For each kind and source, a TaskManager writes one line a minute
and then the number of the others. Other programs write all lines.
"""

import logging

from .errors import one_line


def counted(kind: str, remote: str) -> dict[str, str]:
    """Return the ``extra`` of a log line about a connection.

    Args:
        kind: What happened, in a few words that do not depend on the other side.
        remote: The other side, as ``describe_peer`` returns it; its port is left out.
    """
    return {"kind": kind, "source": remote.rpartition(":")[0] or remote}


def log_end(
    logger: logging.Logger, verb: str, remote: str, reason: str, error: BaseException
) -> None:
    """Log that this side ends a connection because of an error.

    Args:
        logger: The logger of the module that ends it.
        verb: How it ends the connection, such as "closing".
        remote: The other side, as ``describe_peer`` returns it.
        reason: The kind of the error; does not depend on the other side.
        error: The error.
    """
    kind = f"{verb} connection: {reason}"
    text = one_line(error)
    logger.warning(
        "%s connection %s: %s: %s", verb, remote, reason, text, extra=counted(kind, remote)
    )
