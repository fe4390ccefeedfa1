"""Pauses between the attempts of everything that retries."""

import random


class Backoff:
    """Pauses that double up to a limit.

    A pause is shortened at random by up to a half, so that many who wait for the same thing do not
    retry at the same time.

    Args:
        first_seconds: Length of the first pause.
        longest_seconds: Maximum length of a pause.
    """

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._seconds = first_seconds

    def next_seconds(self) -> float:
        """Return the length of the next pause."""
        seconds = self._seconds
        self._seconds = min(2 * seconds, self._longest_seconds)
        return seconds * random.uniform(0.5, 1.0)  # noqa: S311

    def reset(self) -> None:
        """Start again with the first pause, after a success."""
        self._seconds = self._first_seconds
