"""Tests of tasks run over every kind of client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.tasks import TASK_SOURCES

if TYPE_CHECKING:
    from tests.support.tasks import TaskSource


@pytest.fixture(params=TASK_SOURCES)
def tasks_from(request: pytest.FixtureRequest) -> TaskSource:
    """Return one source of clients after the other."""
    return TASK_SOURCES[request.param]
