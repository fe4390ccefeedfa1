"""Compares an innocent application beside an attack with the same one on a quiet TaskManager.

Nothing here is a time on a clock, because other programs on the machine change that. There are two
measures of a slice, which is a few exchanges of the innocent application beside one step of the
attack:

* the CPU seconds of its TaskManager's data loop, those for the attack included;
* how often another connection of it got an answer while it waited for its own. What slows the
  machine down slows both; an exchange that has to wait for memory or its turn lets Pongs pass.

Slices are taken in pairs, one at the attacked TaskManager and one at its quiet twin.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import statistics
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, NamedTuple

from sluice.protocol.schema import ROLE_DRIVER, HelloAck, Ping, Pong
from tests.attack.hostile import Hostile
from tests.attack.rig import (
    Application,
    AttackedDaemon,
    Cluster,
    commit,
    hello_of,
    holdings,
    read,
    release_shuffle,
)
from tests.support import cpu_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

ROUNDS = int(os.environ.get("SLUICE_ATTACK_ROUNDS", "0"))
"""Pairs of slices of each measure; 0: none are compared, as in `make test`."""

MIN_RATE = 0.9
"""Of an innocent application beside an attack, over its rate without."""

CHANCE = 0.001
"""How likely a rate of exactly :data:`MIN_RATE` fails."""

EXCHANGES = 12
"""Exchanges in a slice."""

LONGEST_SECONDS = 100 + 15 * ROUNDS
"""Time limit of a test that compares rates, for a machine that is very busy."""

RECORDS = b"the records of the innocent " * 1000

Step = Callable[[], Coroutine[None, None, None]]
"""Repeats a part of an attack, as often in each slice."""

Attack = contextlib.AbstractAsyncContextManager[Step | None]
"""Goes on for the time of a block; what it repeats, or None if it holds on to what it has."""


class Ratio(NamedTuple):
    """A rate beside an attack over that without: median of all pairs, least and largest one."""

    median: float
    least: float
    largest: float
    losses: int
    """Pairs in which it is below :data:`MIN_RATE`."""
    pairs: int

    @classmethod
    def of(cls, alone: Sequence[float], beside: Sequence[float]) -> Ratio:
        """Compare what slices took."""
        ratios = [quiet / other for quiet, other in zip(alone, beside, strict=True)]
        losses = sum(each < MIN_RATE for each in ratios)
        return cls(statistics.median(ratios), min(ratios), max(ratios), losses, len(ratios))

    @property
    def is_kept(self) -> bool:
        """Whether the innocent application keeps its rate, as far as chance allows to tell."""
        return self.losses <= most_losses(self.pairs)


def most_losses(pairs: int) -> int:
    """Return how many of some pairs chance may lose, if half are lost in the long run."""
    chance = 0.0
    for losses in range(pairs, -1, -1):
        chance += math.comb(pairs, losses) / 2**pairs
        if chance > CHANCE:
            return losses
    return 0


class Rates(NamedTuple):
    """Exchanges for a CPU second, and for an answer to a Ping, beside one attack."""

    cpu: Ratio
    answers: Ratio


RATES: dict[str, Rates] = {}
"""Rates beside each attack of this run, for its summary."""


class Side(NamedTuple):
    """A TaskManager, attacked or quiet.

    Attributes:
        daemon: The TaskManager.
        who: The innocent application.
        work: A few exchanges of it.
        step: What the attack repeats meanwhile, if there is one.
    """

    daemon: AttackedDaemon
    who: Application
    work: Callable[[], Coroutine[None, None, None]]
    step: Step | None = None


@contextlib.asynccontextmanager
async def beside(step: Step | None) -> AsyncIterator[asyncio.TaskGroup]:
    """Let an attack make a step beside a block, and wait for its end."""
    async with asyncio.TaskGroup() as group:
        if step is not None:
            group.create_task(step())
        yield group


async def cpu_seconds(side: Side) -> float:
    """Return the CPU seconds of the data loop for a slice."""
    began = cpu_time.of_first_thread(side.daemon.pid)
    async with beside(side.step):
        await side.work()
    return cpu_time.of_first_thread(side.daemon.pid) - began


async def answers(side: Side) -> float:
    """Return how many Pings are answered, one after the other, during a slice."""
    other = await Hostile.reach(side.daemon.address)
    await other.prove(hello_of(ROLE_DRIVER, side.who.name), side.who.driver)
    await other.expect(HelloAck)
    count = 1

    async def ping() -> None:
        nonlocal count
        while True:
            other.send_message(Ping(count))
            await other.expect(Pong)
            count += 1

    async with beside(side.step) as group:
        pings = group.create_task(ping())
        await side.work()
        answered = count
        pings.cancel()
    await other.close()
    return answered


async def compare(attacked: Side, quiet: Side, pairs: int = ROUNDS) -> Rates:
    """Take slices in pairs whose order changes."""
    ratios = []
    for measure in (cpu_seconds, answers):
        alone: list[float] = []
        harmed: list[float] = []
        for number in range(pairs + 1):
            if number % 2:
                harmed.append(await measure(attacked))
                alone.append(await measure(quiet))
            else:
                alone.append(await measure(quiet))
                harmed.append(await measure(attacked))
        ratios.append(Ratio.of(alone[1:], harmed[1:]))  # the first pair warms up
    return Rates(*ratios)


async def keeps_its_rate(name: str, attacked: Side, quiet: Side) -> None:
    """Check that an innocent application keeps its rates beside an attack."""
    rates = RATES[name] = await compare(attacked, quiet)
    assert rates.cpu.is_kept, rates
    assert rates.answers.is_kept, rates


def exchanges(daemon: AttackedDaemon, innocent: Application) -> Side:
    """Write map outputs, read and release them, over connections of its own; check every byte."""

    async def work() -> None:
        for attempt in range(EXCHANGES):
            await commit(daemon.address, innocent, attempt, RECORDS)
            assert await read(daemon.address, innocent, [attempt]) == RECORDS
        await release_shuffle(daemon.address, innocent)

    return Side(daemon, innocent, work)


async def stored(daemon: AttackedDaemon, who: Application, secret_file: Path) -> dict[str, int]:
    """Write a map output; return what it takes of each tier."""
    await commit(daemon.address, who, 0, RECORDS)
    held = await asyncio.to_thread(holdings, daemon, who, secret_file)
    return {resource: held[resource] for resource in held if "tier" in resource}


async def is_served_beside(
    name: str, attack: Attack, cluster: Cluster, who: Application, secret_file: Path
) -> None:
    """Check that an innocent application gets no error beside an attack on the first TaskManager.

    When rates are compared, with the second one: that it keeps them, and its tier.
    """
    attacked, quiet = cluster
    async with attack as step:
        served = exchanges(attacked, who)._replace(step=step)
        if not ROUNDS:
            async with beside(step):
                await served.work()
            return
        await keeps_its_rate(name, served, exchanges(quiet, who))
        taken = await stored(attacked, who, secret_file)
        assert sum(taken.values()) >= len(RECORDS)
        assert taken == await stored(quiet, who, secret_file)
