"""A trace of what happens to a record: public methods wrapped for one test, steps in order.

The data path has no hooks for this, so tracing costs nothing outside tests.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


class Trace:
    """The steps taken, by the names that the test gave them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[str] = []
        self._monkeypatch = monkeypatch

    def watch(
        self,
        owner: type,
        method: str,
        step: str,
        when: Callable[..., object] = lambda *arguments: True,
        *,
        after: bool = False,
    ) -> None:
        """Record a step whenever a method is called.

        Args:
            owner: The class.
            method: A method of it that is not a coroutine.
            step: Name of the step in the trace.
            when: Asked with the arguments, and with the result before them if ``after``; the step
                counts only if the answer is true.
            after: Note it when the method has returned, instead of when it is called.
        """
        original = getattr(owner, method)

        @functools.wraps(original)
        def traced(*arguments: Any, **named: Any) -> Any:
            if not after and when(*arguments):
                self.steps.append(step)
            result = original(*arguments, **named)
            if after and when(result, *arguments):
                self.steps.append(step)
            return result

        self._monkeypatch.setattr(owner, method, traced)

    def take(self) -> list[str]:
        """Return the steps since the last call."""
        steps, self.steps = self.steps, []
        return steps
