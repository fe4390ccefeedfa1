"""The plan of a seed: size and settings of the cluster, and its faults in the order of time."""

from __future__ import annotations

import random
from typing import Any, Final, NamedTuple

LOAD_SECONDS: Final = 30.0
"""Time during which the workload runs and faults begin, in seconds."""

SYNC_MODES: Final = ("never", "interval", "commit")

MOVE_SECONDS: Final = 0.05
"""About the time in which a TaskManager that leaves moves its map outputs, in seconds."""

KINDS: Final = {
    "kill": 6,
    "power cut": 2,
    "restart": 3,
    "leave": 3,
    "drain": 3,
    "partition": 4,
    "one way": 2,
    "isolate": 2,
    "driver cut": 4,
    "reset": 6,
    "half-open": 4,
    "slow host": 3,
    "disk hangs": 4,
    "disk slow": 3,
    "disk full": 3,
    "disk fails": 2,
    "bit flip": 2,
    "clock": 3,
    "bad tenant": 4,
}
"""Kinds of faults, and how often each is drawn."""

KILL_AFTER: Final = "kill after"
"""Kills a TaskManager just after it has answered a commit or a release."""

BUCKET_RATE: Final = 0.4
"""Part of the seeds with a remote tier."""

BUCKET_KINDS: Final = ("bucket down", "bucket slow", "bucket mute")
"""Kinds of faults of the remote tier."""


class Fault(NamedTuple):
    """One fault.

    Attributes:
        at: When it begins, in seconds after the start of the load.
        kind: One of ``KINDS`` or ``BUCKET_KINDS``, or ``KILL_AFTER``.
        member: Number of the TaskManager that it concerns.
        other: Number of the other TaskManager, or of the disk.
        seconds: How long it lasts.
    """

    at: float
    kind: str
    member: int
    other: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.at:6.2f} {self.kind} tm{self.member} {self.other} for {self.seconds:.2f} s"


class Plan(NamedTuple):
    """Everything that a seed decides before it runs.

    Attributes:
        seed: The seed.
        members: Number of TaskManagers.
        settings: Keys of the configuration of all of them, and ``names_taskmanagers``: whether it
            has the addresses of all, so that they need no driver to find each other.
        faults: Its faults, in the order of time.
    """

    seed: int
    members: int
    settings: dict[str, Any]
    faults: tuple[Fault, ...]

    @classmethod
    def of(cls, seed: int) -> Plan:
        """Make the plan of a seed."""
        generator = random.Random(f"plan {seed}")
        members = generator.randint(3, 7) if generator.random() < 0.3 else 3
        settings: dict[str, Any] = {
            "memory_tier_bytes": generator.choice((0, 256 * 1024, 8 * 1024 * 1024)),
            "io_threads": generator.randint(1, 3),
            "names_taskmanagers": generator.random() < 0.4,
            "network_segments": generator.choice((48, 64, 128)),
            "lost_after_seconds": generator.choice((5.0, 15.0, 30.0)),
            "synchronous_timeout_seconds": generator.choice((2.0, 20.0)),
            "health_check_seconds": generator.choice((2.0, 3.0)),
            "peer_idle_timeout_seconds": generator.choice((0, 5.0)),
        }
        settings["journal_sync"] = random.Random(f"sync {seed}").choice(SYNC_MODES)
        settings["journal_sync_interval_seconds"] = 0.5
        bucket = random.Random(f"bucket {seed}")
        has_bucket = bucket.random() < BUCKET_RATE
        if has_bucket:
            settings["remote"] = "s3://bucket/sluice"
            settings["remote_timeout_seconds"] = bucket.choice((2.0, 10.0))
        kinds = generator.sample(list(KINDS), generator.randint(1, 5))
        faults = [_fault(generator, kinds, members) for _ in range(generator.randint(1, 10))]
        kills = random.Random(f"kills {seed}")
        for each in faults[:]:
            if each.kind == "disk full" and generator.random() < 0.4:
                at = round(each.at + generator.uniform(0.0, each.seconds), 2)
                faults.append(each._replace(at=at, other=1 - each.other % 2))  # the other disk
            if each.kind in ("leave", "drain") and generator.random() < 0.7:
                faults.append(_beside(generator, each))
            elif each.kind in ("disk hangs", "disk slow", "disk full") and generator.random() < 0.5:
                at = round(each.at + generator.uniform(0.0, each.seconds), 2)
                kind = kills.choice(("kill", KILL_AFTER))
                faults.append(Fault(at, kind, each.member, each.other, 1.0))
                if kills.random() < 0.4:  # once more, when the disk works again
                    at = round(each.at + each.seconds + kills.uniform(1.0, 10.0), 2)
                    faults.append(Fault(at, kind, each.member, each.other, 1.0))
            elif each.kind == "driver cut" and generator.random() < 0.5:
                at = round(each.at + generator.uniform(0.0, each.seconds), 2)
                faults.append(Fault(at, "kill", each.other, each.member, 1.0))
        if kills.random() < 0.2:
            faults.append(_fault(kills, [KILL_AFTER], members))
        if has_bucket:
            kinds = bucket.sample(BUCKET_KINDS, bucket.randint(0, 2))
            for kind in kinds:
                fault = _fault(bucket, [kind], members)
                seconds = round(fault.seconds + bucket.choice((0.0, 2.0, 10.0)), 2)
                faults.append(fault._replace(seconds=seconds))  # longer than a request may take
                if kind == "bucket mute" and bucket.random() < 0.5:
                    at = round(fault.at + bucket.uniform(0.0, seconds), 2)
                    faults.append(fault._replace(at=at, kind="bucket down", seconds=seconds))
            # Longer than a fault keeps TaskManagers from saying that an application is alive.
            settings["remote_orphan_seconds"] = 90.0 if kinds else 20.0
        return cls(seed, members, settings, tuple(sorted(faults)))

    @property
    def has_bucket(self) -> bool:
        """Whether its TaskManagers have a remote tier."""
        return "remote" in self.settings

    def only(self, kept: list[int]) -> Plan:
        """Return the plan with only these of its faults, by number."""
        return self._replace(faults=tuple(self.faults[number] for number in kept))


def _fault(generator: random.Random, kinds: list[str], members: int) -> Fault:
    kind = generator.choices(kinds, [KINDS.get(each, 1) for each in kinds])[0]
    member = generator.randrange(members)
    other = (member + generator.randrange(1, members)) % members
    seconds = generator.choice((0.05, 1.0, 5.0, 15.0, 40.0)) * generator.uniform(0.5, 1.5)
    at = round(generator.uniform(0.0, LOAD_SECONDS), 2)
    return Fault(at, kind, member, other, round(seconds, 2))


def _beside(generator: random.Random, leaving: Fault) -> Fault:
    """Return a fault of another TaskManager while one leaves."""
    kind = generator.choice(("kill", "power cut", "reset", "disk hangs", "disk full"))
    at = round(leaving.at + generator.uniform(0.0, MOVE_SECONDS), 3)
    return Fault(at, kind, leaving.other, leaving.member, round(generator.uniform(1.0, 40.0), 2))
