"""The schedule of faults, which follows from a seed alone."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


class Kind(Enum):
    """A kind of fault; the value is its name in the time line."""

    KILL_EXECUTOR = "kill -9 an executor"
    PAUSE_EXECUTOR = "pause an executor"
    KILL_TASKMANAGER = "kill -9 the TaskManager"
    KILL_COPYING = "kill -9 the TaskManager while copies are being made"
    STOP_TASKMANAGER = "stop the TaskManager in good order"
    PAUSE_TASKMANAGER = "pause the TaskManager"
    REMOVE_DIRECTORY = "remove the TaskManager's data directory"
    FILL_DISK = "fill the TaskManager's disk"
    JUMP_CLOCK = "let the TaskManager's clock jump"
    FLIP_ARENA = "flip bytes in the TaskManager's arenas"
    FLIP_JOURNAL = "kill -9 the TaskManager and flip bytes in its journals"
    LOSE_HOST = "lose the host for good"
    MIGRATE = "drain the TaskManager with migration and take its host away for good"
    ROLLING_RESTART = "restart all TaskManagers one after the other"
    RESET_PEERS = "reset the TaskManager's TCP connections"
    CUT_PEERS = "cut the TaskManager's TCP port off"
    STALL_PEERS = "let nothing through the TaskManager's TCP port"
    SLOW_PEERS = "slow the TaskManager's TCP port down"
    RESET_CLIENTS = "reset the connections of the host's executors"
    CUT_CLIENTS = "cut the host's executors off"
    STALL_CLIENTS = "let nothing through between TaskManager and the host's executors"

    @property
    def of_executor(self) -> bool:
        """Whether an executor is the victim, so that TaskManagers are not touched."""
        return self in (Kind.KILL_EXECUTOR, Kind.PAUSE_EXECUTOR)

    @property
    def instant(self) -> bool:
        """Whether nothing has to be mended afterwards."""
        return self in (
            Kind.KILL_EXECUTOR,
            Kind.RESET_PEERS,
            Kind.RESET_CLIENTS,
            Kind.FLIP_ARENA,
        )

    @property
    def lasting(self) -> bool:
        """Whether it loses or damages data, which a task may find out any time later."""
        return self.silent or self is Kind.LOSE_HOST

    @property
    def silent(self) -> bool:
        """Whether it damages data and nobody notices before they are read."""
        return self in (Kind.FLIP_ARENA, Kind.FLIP_JOURNAL)


@dataclass(frozen=True, slots=True)
class Action:
    """One fault."""

    at_seconds: float
    """When, after the start of the schedule."""
    kind: Kind
    host: str
    seconds: float
    """How long until it is mended; 0 for what is over at once."""

    @property
    def end_seconds(self) -> float:
        """When it is over, after the start of the schedule."""
        return self.at_seconds + self.seconds

    def __str__(self) -> str:
        lasting = f", for {self.seconds:g} s" if self.seconds else ""
        return f"{self.host}: {self.kind.value}{lasting}"


SHORT_SECONDS = (0.5, 4.0)
LONG_SECONDS = (11.0, 16.0)
"""Longer than `spark.sluice.reader.returnTimeout`: map tasks have to run again."""
LONG_SHARE = 0.2

PAUSE_SECONDS = (1.0, 4.0)
"""Between two faults of TaskManagers and their links. They never overlap: while one of two hosts
has no TaskManager the other must serve, as Spark ends a job that no TaskManager can take."""
EXECUTOR_PAUSE_SECONDS = (5.0, 12.0)
"""Between two faults of executors, which do overlap with those of TaskManagers."""
QUIET_SECONDS = 2.0
"""At the beginning."""


SILENT_SECONDS = 40.0
"""At the end of a schedule of single losses, for damage that nobody notices."""


def schedule(
    seed: int,
    seconds: float,
    hosts: Sequence[str],
    without: Collection[Kind] = (),
    *,
    single_losses: bool = False,
) -> list[Action]:
    """All faults of a run, in order of time; the same for the same arguments.

    Args:
        seed: Decides everything.
        seconds: All have begun and ended by then.
        hosts: Where the victims are.
        without: Kinds of faults that cannot be had here; the others come at the same times.
        single_losses: Whether nothing is lost while a copy of it elsewhere may be damaged: silent
            damage comes once of each kind, at the end and to one host.
    """
    executors = [kind for kind in Kind if kind.of_executor]
    others = [kind for kind in Kind if not kind.of_executor]
    # A generator for each: a change of one series leaves the other as it is.
    actions = _series(random.Random(f"{seed} executors"), seconds, hosts, executors)
    chance = random.Random(f"{seed} taskmanagers")
    if single_losses:
        loud = [kind for kind in others if not kind.silent]
        actions += _series(chance, seconds - SILENT_SECONDS, hosts, loud)
        silent = [kind for kind in others if kind.silent]
        begin, host = seconds - SILENT_SECONDS, [chance.choice(hosts)]
        actions += _series(chance, seconds, host, silent, begin)[: len(silent)]
    else:
        actions += _series(chance, seconds, hosts, others)
    actions = [action for action in actions if action.kind not in without]
    return sorted(actions, key=lambda action: action.at_seconds)


def _series(
    chance: random.Random,
    seconds: float,
    hosts: Sequence[str],
    kinds: Sequence[Kind],
    at: float = QUIET_SECONDS,
) -> list[Action]:
    """Faults one after the other: each kind once in random order, then again."""
    actions: list[Action] = []
    rest = list[Kind]()
    while True:
        rest = rest or chance.sample(kinds, len(kinds))
        kind = rest.pop()
        at += chance.uniform(*(EXECUTOR_PAUSE_SECONDS if kind.of_executor else PAUSE_SECONDS))
        lasts = 0.0
        if not kind.instant:
            long = not kind.of_executor and chance.random() < LONG_SHARE
            long = long or kind is Kind.LOSE_HOST
            lasts = chance.uniform(*(LONG_SECONDS if long else SHORT_SECONDS))
        action = Action(round(at, 1), kind, chance.choice(hosts), round(lasts, 1))
        if action.end_seconds > seconds:
            return actions
        actions.append(action)
        at = action.end_seconds


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Settings that decide which way trouble takes; they also follow from the seed."""

    spark: Mapping[str, str]
    """Spark settings."""
    memory_tier: str
    """Of each TaskManager. What does not fit goes to disk."""

    def __str__(self) -> str:
        settings = " ".join(f"{key}={value}" for key, value in self.spark.items())
        return f"memory tier {self.memory_tier}; {settings}"


SPARK_CHOICES: Mapping[str, Sequence[str]] = {
    # Whether a TaskManager that is away for some seconds is waited for.
    "spark.sluice.reader.returnTimeout": ("10s", "1s"),
    # Whether one that stands still is waited for.
    "spark.sluice.io.timeout": ("120s", "6s"),
    "spark.executor.cores": ("1", "2"),
    "spark.io.encryption.enabled": ("false", "true"),
    "spark.speculation": ("false", "true"),
    # The same as the first one, where the host of the TaskManager is alive.
    "spark.sluice.reader.refusedTimeout": ("10s", "1s"),
}
MEMORY_TIERS = ("128 MiB", "16 MiB")


def surroundings(seed: int) -> Surroundings:
    """The settings of a seed; seed 0 has the first of each choice."""
    chance = random.Random(f"{seed} surroundings")
    first = seed == 0
    spark = {
        key: choices[0] if first else chance.choice(choices)
        for key, choices in SPARK_CHOICES.items()
    }
    return Surroundings(spark, MEMORY_TIERS[0] if first else chance.choice(MEMORY_TIERS))
