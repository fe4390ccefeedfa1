"""Pauses double up to a limit, and are shortened at random."""

from __future__ import annotations

import random

import pytest

from sluice.transport.backoff import Backoff


@pytest.mark.parametrize("share", [0.5, 0.75, 1.0])
def test_pauses_double_up_to_the_limit(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    monkeypatch.setattr(random, "uniform", lambda *bounds: share if bounds == (0.5, 1.0) else 0.0)
    backoff = Backoff(1.0, 5.0)
    assert [backoff.next_seconds() / share for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.reset()
    assert backoff.next_seconds() / share == 1.0
