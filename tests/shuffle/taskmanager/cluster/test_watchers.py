"""How often other TaskManagers are made to ask what is here."""

from __future__ import annotations

import asyncio
from typing import Any

from sluice.protocol.schema import ROLE_COPIER, ROLE_DRIVER
from sluice.shuffle.taskmanager.cluster.watchers import Watchers
from sluice.transport.backoff import Backoff
from tests.support.mini_cluster import eventually


class Link:
    """A connection, which counts how often it is closed."""

    def __init__(self, role: int, application_id: str = "") -> None:
        self.role = role
        self.application_id = application_id
        self.closings = 0

    def close(self) -> None:
        self.closings += 1


async def test_many_losses_close_the_connections_once_more_after_a_pause():
    watching = Link(ROLE_COPIER)
    links: list[Any] = [watching, Link(ROLE_COPIER, "app"), Link(ROLE_DRIVER, "app")]
    watchers = Watchers(lambda: links, Backoff(0.2, 60))
    for _ in range(100):
        watchers.outputs_lost()
        await asyncio.sleep(0)
    assert watching.closings == 1
    await eventually(lambda: watching.closings == 2)
    assert [each.closings for each in links] == [2, 0, 0]
    watchers.close()


async def test_a_loss_after_the_pause_is_noticed_at_once():
    watching: Any = Link(ROLE_COPIER)
    watchers = Watchers(lambda: [watching], Backoff(0.01, 60))
    watchers.outputs_lost()
    await eventually(lambda: watchers._pausing is None)
    watchers.outputs_lost()
    assert watching.closings == 2
    watchers.close()
    watchers.outputs_lost()
    assert watching.closings == 2
