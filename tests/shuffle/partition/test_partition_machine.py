"""Any use of a pipelined partition, by writers that wait and readers that keep what they get.

Every channel gets its bytes and events in order, and in the end all memory is at home.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.support.partition_machine import PartitionMachine


class TestPartitionMachine(PartitionMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(
        max_examples=100,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
