"""Rules for connections after a successful handshake."""

from ....protocol.errors import ErrorCode, ProtocolViolation
from ....protocol.schema import ROLE_CONSUMER, ROLE_COPIER, ROLE_PRODUCER
from ....transport.connection import Connection
from ...errors import ShuttingDown


def require_whole_segments(connection: Connection, least_bytes: int) -> None:
    """Check that a consumer can take the segments of this TaskManager.

    Raises:
        SEGMENT_SIZE_MISMATCH: It cannot take a whole segment. Buffers of other TaskManagers are
            forwarded as received, never split.
    """
    if connection.role == ROLE_CONSUMER and connection.max_payload_bytes < least_bytes:
        raise ProtocolViolation(
            "Consumer cannot take the buffers of this TaskManager",
            code=ErrorCode.SEGMENT_SIZE_MISMATCH,
            value=connection.max_payload_bytes,
            limit=least_bytes,
            remedy="Send 0 in the Hello, which means no limit",
        )


def refuse_writers(connection: Connection, *, parked: bool) -> None:
    """Refuse connections for writing while the TaskManager drains.

    A connection that watches this TaskManager is accepted.

    Args:
        connection: The connection.
        parked: Whether a producer is expected to reconnect.

    Raises:
        ShuttingDown: A producer connects and none is expected back, or another TaskManager
            connects to write copies.
    """
    if connection.role == ROLE_PRODUCER and not parked:
        raise ShuttingDown("TaskManager is draining", remedy="Write to another TaskManager")
    if connection.role == ROLE_COPIER and connection.application_id:
        raise ShuttingDown("TaskManager is draining", remedy="Copy to another TaskManager")
