"""Messages follow map tasks and reduce tasks, and not the blocks between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.spark.applications import Both
    from tests.support.daemons import Daemons

SIDE = 40
"""Map tasks and as many reduce tasks; then twice as many, with four times the blocks."""


def test_twice_the_tasks_send_twice_the_messages(both: Both, daemons: Daemons):
    messages = []
    for side in (SIDE, 2 * SIDE):
        before = _messages(daemons)
        compared = both.compare("frame_small_blocks", maps=side, reducers=side)
        messages.append(_messages(daemons) - before)
        assert compared.differences == []
        assert compared.unaccounted() == {}
        use = compared.events.shuffle_use()
        # Each map task has a block for each reduce task, and one for what sums up the rows.
        assert use.local_blocks_fetched + use.remote_blocks_fetched == side * side + side
    assert 1.5 < messages[1] / messages[0] < 2.5


def _messages(daemons: Daemons) -> int:
    """That tasks and TaskManagers have exchanged so far."""
    return sum(
        traffic.messages_in + traffic.messages_out
        for daemon in daemons
        for traffic in daemon.status().traffic
        if traffic.role != "driver"
    )
