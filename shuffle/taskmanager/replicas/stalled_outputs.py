"""Map outputs that wait until a copy of them can be tried again.

Other TaskManagers and the remote tier fail independently, so each has its own instance: its own
pauses, and its own warning.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Final

from ....transport.backoff import Backoff
from ...names import MapAttemptKey
from .unreachable_places import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS

logger = logging.getLogger(__name__)


class StalledOutputs:
    """The map outputs of one application that stall for the same cause.

    Args:
        cause: The cause, for the log.
        retry: Called with those that must be tried again, after a pause that grows.
    """

    def __init__(self, cause: str, retry: Callable[[Iterable[MapAttemptKey]], None]) -> None:
        self.cause: Final = cause
        self.reason = ""
        """Why the last map output stalls."""
        self.stalled_at = 0.0
        """Time since which no copy was made, as of ``time.monotonic()``."""
        self._retry: Final = retry
        self._attempts: set[MapAttemptKey] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._backoff: Final = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._has_warned = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._attempts)

    def __contains__(self, attempt: MapAttemptKey) -> bool:
        return attempt in self._attempts

    def add(self, attempt: MapAttemptKey, reason: str) -> None:
        """Let a map output wait, and warn if it is the first one since a copy was made."""
        if not self._has_warned:
            self.stalled_at = monotonic()
        self.reason = reason
        self._attempts.add(attempt)
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s of map output %d of %s; "
                "copies of its other map outputs may wait too. Last reason: %s",
                self.cause,
                attempt.map_attempt_id,
                attempt.shuffle,
                reason,
                extra=attempt.log_fields,
            )
        if self._timer is None and not self._closed:
            pause_seconds = self._backoff.next_seconds()
            self._timer = asyncio.get_running_loop().call_later(pause_seconds, self._due)

    def discard(self, attempt: MapAttemptKey) -> None:
        """Forget a map output that is tried again, or is no longer here."""
        self._attempts.discard(attempt)

    def retain(self, is_here: Callable[[MapAttemptKey], bool]) -> None:
        """Forget the map outputs that are no longer here."""
        self._attempts = {each for each in self._attempts if is_here(each)}

    def succeeded(self) -> None:
        """Record that a copy was made: start again with the first pause, and warn again."""
        self._backoff.reset()
        self._has_warned = False

    def retry_now(self) -> None:
        """Retry without a pause, because something has changed."""
        self._stop_timer()
        self._backoff.reset()
        self._due()

    def close(self) -> None:
        """Stop retrying. Idempotent."""
        self._closed = True
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        self._timer = None
        attempts, self._attempts = self._attempts, set()
        self._retry(attempts)
