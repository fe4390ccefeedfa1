"""The collector of the tests of traces."""

from __future__ import annotations

import pytest

from tests.support.collector import Collector


@pytest.fixture
def collector(monkeypatch):
    return Collector(monkeypatch)
