from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.shuffle.names import TaskManagerPlace
from sluice.shuffle.taskmanager.bounds.accounts import Accounts
from sluice.shuffle.taskmanager.cluster.known_taskmanagers import KnownTaskManagers
from sluice.shuffle.taskmanager.cluster.watches import Watches
from sluice.transport.address import Address
from tests.support.mini_cluster import eventually

if TYPE_CHECKING:
    from sluice.shuffle.taskmanager.cluster.taskmanager_watch import Presence

CONFIGURED = Address("127.0.0.1", 7337)
NAMED = TaskManagerPlace("tm-2", "127.0.0.2", 7337)
SILENT = TaskManagerPlace("tm-3", "127.0.0.3", 7337)


async def connect(address: Address) -> Any:
    if address == SILENT.address:
        await asyncio.Event().wait()
    raise SluiceError("Nothing listens there", code=ErrorCode.CONNECT_FAILED)


def changed(place: TaskManagerPlace, now: Presence, before: Presence) -> None:
    """Ignore it: the watches are asked."""


async def test_taskmanagers_that_do_not_answer_are_counted_until_they_are_forgotten():
    watches = Watches(KnownTaskManagers("own", Accounts()), [CONFIGURED], connect, 600, changed)
    watches.watch(SILENT)
    assert watches.unreachable == 0, "none has been tried"
    await watches.find_configured()
    assert watches.unreachable == 1
    watches.watch(NAMED)
    await eventually(lambda: watches.unreachable == 2)
    watches.keep(())
    assert watches.unreachable == 1
    await watches.close()
    assert watches.unreachable == 0
