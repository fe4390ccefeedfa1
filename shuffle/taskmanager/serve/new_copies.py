"""Whether a copy that is offered is new here: the same name does not mean the same bytes."""

import logging
from collections.abc import Callable

from ...names import MapAttemptKey
from ..store.errors import DuplicateMapOutput, OtherMapOutput
from ..store.output_index import REPLACED, Lost
from ..store.shuffle_store import ShuffleStore

logger = logging.getLogger(__name__)


def require_new_copy(
    store: ShuffleStore,
    attempt: MapAttemptKey,
    origin: str,
    checksum: int | None,
    on_replaced: Callable[[Lost], None] | None,
) -> None:
    """Check that a copy is not here, before its bytes are sent.

    A map output that was only found in the remote tier does not count as here. An earlier copy of
    the same origin with other bytes is dropped: the origin has lost what it had copied, and has
    written it again.

    Args:
        store: Has the map outputs.
        attempt: The map attempt.
        origin: The sender of the copy.
        checksum: That of the map output at the sender; None: unknown.
        on_replaced: Called with a copy that was dropped.

    Raises:
        DuplicateMapOutput: It is here.
        OtherMapOutput: A map output of its name has other bytes, and another origin.
    """
    found = store.lookup(*attempt)
    if found is None:
        return
    if checksum is None or found.checksum() == checksum:
        if found.is_moved:
            return
        raise DuplicateMapOutput(*attempt.shuffle, attempt.map_attempt_id)
    if not found.origin or found.origin != origin:
        logger.error(
            "map output %d of %s is refused as a copy from TaskManager %s: it has other bytes",
            attempt.map_attempt_id,
            attempt.shuffle,
            origin,
            extra=attempt.log_fields | {"peer": origin},
        )
        raise OtherMapOutput(*attempt.shuffle, attempt.map_attempt_id)
    logger.warning(
        "map output %d of %s has new bytes at TaskManager %s: the copy here is replaced",
        attempt.map_attempt_id,
        attempt.shuffle,
        origin,
        extra=attempt.log_fields | {"peer": origin},
    )
    store.drop(found, REPLACED, report=False)
    if on_replaced is not None:
        on_replaced({attempt.shuffle: [attempt.map_attempt_id]})
