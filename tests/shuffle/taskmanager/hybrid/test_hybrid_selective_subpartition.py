"""A selective hybrid partition behaves as the machine of all its uses says."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from tests.shuffle.taskmanager.hybrid.machine import HybridMachine

pytestmark = pytest.mark.interpreted  # the tiers are the test's


class TestHybridMachine(HybridMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(
        max_examples=100,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
