"""The comparison of rates notices an innocent application that suffers, and no busy machine."""

from __future__ import annotations

import random

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import ROLE_PRODUCER, Ping, Pong, encode
from tests.attack.hostile import Hostile
from tests.attack.rates import (
    LONGEST_SECONDS,
    MIN_RATE,
    ROUNDS,
    Ratio,
    Side,
    compare,
    exchanges,
    most_losses,
)
from tests.attack.rig import BOB, application, hello_of, new_name, read

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])
with_rates = pytest.mark.skipif(not ROUNDS, reason="make attack compares rates")
pytestmark = pytest.mark.timeout(LONGEST_SECONDS)

PAIRS = 41
"""Of `make attack`."""
FEW = 11
PINGS = 5_000


def test_chance_loses_most_pairs_seldom():
    assert (most_losses(PAIRS), most_losses(FEW), most_losses(1)) == (30, 10, 1)


@pytest.mark.parametrize("noise", [0.02, 0.5, 5.0])
def test_the_noise_of_a_busy_machine_fails_nothing(noise):
    chance = random.Random(2)
    slices = [[chance.lognormvariate(0, noise) for _ in range(2 * PAIRS)] for _ in range(500)]
    assert all(Ratio.of(each[:PAIRS], each[PAIRS:]).is_kept for each in slices)


@pytest.mark.parametrize(("lost", "noise"), [(0.85, 0.02), (0.5, 0.3), (0.1, 1.5)])
def test_a_rate_that_suffers_is_noticed(lost, noise):
    chance = random.Random(3)
    quiet = [chance.lognormvariate(0, noise) for _ in range(PAIRS)]
    beside = [chance.lognormvariate(0, noise) / lost for _ in range(PAIRS)]
    ratio = Ratio.of(quiet, beside)
    assert ratio.median < MIN_RATE
    assert not ratio.is_kept


@one_loop
@with_rates
async def test_work_that_an_attack_makes_costs_a_rate(cluster, victim):
    """A hundred times as many Pings as beside other attacks, all answered."""
    greedy = application(BOB, new_name())
    pinging = await Hostile.reach(cluster.first.address)
    await pinging.prove(hello_of(ROLE_PRODUCER, greedy.name), greedy.task)

    async def step() -> None:
        pinging.send_bytes(encode(Ping(0)) * PINGS + encode(Ping(1)))
        while await pinging.expect(Pong) != Pong(1):
            pass

    attacked = exchanges(cluster.first, victim)._replace(step=step)
    found = await compare(attacked, exchanges(cluster.second, victim), FEW)
    await pinging.close()
    assert not found.cpu.is_kept


@one_loop
@with_rates
async def test_an_exchange_that_waits_costs_a_rate(cluster, victim):
    """It takes no CPU, but answers to others pass it by."""
    served = exchanges(cluster.first, victim)

    async def work() -> None:
        with pytest.raises(RemoteError) as caught:
            await read(cluster.first.address, victim, [7])  # waits for what nobody writes
        assert caught.value.code is ErrorCode.PARTITION_NOT_FOUND
        await served.work()

    held_up = Side(cluster.first, victim, work)
    found = await compare(held_up, exchanges(cluster.second, victim), FEW)
    assert not found.answers.is_kept
    assert found.answers.median < MIN_RATE / 2
