"""Signs of life of a TaskManager that is waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluice.protocol.schema import Ping
from sluice.shuffle.client.leg_watch import LegWatch, TaskManagerSilent
from tests.support.mini_cluster import eventually

if TYPE_CHECKING:
    from sluice.protocol.errors import SluiceError

SILENCE_SECONDS = 0.2


class Peer:
    """A connection as the watch sees it."""

    def __init__(self, *, answers: bool) -> None:
        self.remote = "unix:/there"
        self.bytes_in = 0
        self.closing = self.reading_paused = False
        self.pings = 0
        self.failure: SluiceError | None = None
        self._answers = answers

    def send(self, message: Any) -> None:
        assert isinstance(message, Ping)
        self.pings += 1
        self.bytes_in += self._answers

    def abort(self, error: SluiceError) -> None:
        self.closing, self.failure = True, error


class Rig:
    """A watch, and what it notified."""

    def __init__(self, peer: Any) -> None:
        self.waiting = True
        self.avoided = 0
        self.watch = LegWatch(peer, "tm", SILENCE_SECONDS, lambda: self.waiting, self._silent)

    def _silent(self) -> None:
        self.avoided += 1


async def test_a_silent_taskmanager_loses_its_connection():
    peer = Peer(answers=False)
    rig = Rig(peer)
    await eventually(lambda: peer.failure)
    assert isinstance(peer.failure, TaskManagerSilent)
    assert peer.failure.taskmanager_id == "tm"
    assert (peer.pings, rig.avoided) == (1, 1)


async def test_one_that_answers_pings_keeps_it():
    peer = Peer(answers=True)
    rig = Rig(peer)
    await eventually(lambda: peer.pings == 3)
    rig.watch.close()
    assert peer.failure is None


async def test_nothing_is_asked_while_nothing_is_waited_for_or_read():
    idle, paused = Peer(answers=False), Peer(answers=False)
    rigs = [Rig(idle), Rig(paused)]
    rigs[0].waiting = False
    paused.reading_paused = True
    other = Peer(answers=False)
    rigs.append(Rig(other))
    await eventually(lambda: other.failure)  # its timers come behind those of the others
    for rig in rigs:
        rig.watch.close()
    assert idle.pings == paused.pings == 0
