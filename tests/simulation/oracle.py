"""The rules: which outputs were acknowledged and released, and which TaskManagers had them."""

from __future__ import annotations

import random
from functools import cached_property
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from sluice.shuffle.names import MapAttemptKey, ShuffleKey
from sluice.shuffle.taskmanager.store.objects.remote_names import MOVED, moved_output
from sluice.shuffle.taskmanager.store.tiers.slot_allocator import occupied_bytes
from tests.simulation.pipelined import spilled

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
    from sluice.shuffle.taskmanager.taskmanager import TaskManager
    from sluice.shuffle.taskmanager.wiring import NetworkEnvironment
    from tests.simulation.processes import Member
    from tests.simulation.world import World

MAX_REGIONS: Final = 3
MAX_SUBPARTITIONS: Final = 5
MAX_PART_BYTES: Final = 12_000


class Output:
    """One map output that a writer began.

    Attributes:
        member: Number of the TaskManager that it was written to.
        regions: Its bytes: regions of subpartitions.
        to_remote: Whether its producer asked for a copy in the bucket.
        is_acknowledged: Whether its commit was answered.
        is_released: Whether the driver has begun to release its shuffle.
        is_released_in_calm: Whether it did so after the last fault.
        seen: Numbers of the TaskManagers that have it, as far as it was seen there.
        gone: Numbers of the TaskManagers from which it went with its release.
        released_at: Numbers of the TaskManagers that had it, and acknowledged its release.
        died_with: When each TaskManager that had it was last killed, by its number.
    """

    def __init__(
        self, key: ShuffleKey, map_attempt_id: int, member: int, replicas: int, seed: str
    ) -> None:
        self.key = key
        self.map_attempt_id = map_attempt_id
        self.member = member
        self.replicas = replicas
        generator = random.Random(seed)
        subpartitions = generator.randint(1, MAX_SUBPARTITIONS)
        self.regions = [
            [
                generator.randbytes(generator.choice((0, 1, 300, MAX_PART_BYTES)))
                for _ in range(subpartitions)
            ]
            for _ in range(generator.randint(1, MAX_REGIONS))
        ]
        self.subpartitions = subpartitions
        self.to_remote = False
        self.is_acknowledged = False
        self.is_released = False
        self.is_released_in_calm = False
        self.seen: set[int] = set()
        self.doubtful: set[int] = set()
        """Numbers of the TaskManagers that may return other bytes, from disks that changed them:
        only the checksum of a block, which readers verify, can tell."""
        self.gone: set[int] = set()
        self.released_at: set[int] = set()
        self.died_with: dict[int, float] = {}
        self.earlier: list[Output] = []
        """Outputs of the same name whose commits were not answered, at other TaskManagers. Their
        copies may be anywhere; nobody reads them."""

    def __str__(self) -> str:
        return f"{self.key.application_id}/{self.key.shuffle_id}/{self.map_attempt_id}"

    def is_same(self, found: MapOutput) -> bool:
        """Return whether a map output of this name has these bytes, by its checksums."""
        return [region.crc32c for region in found.regions] == self.checksums

    @cached_property
    def checksums(self) -> list[int]:
        """The checksums of its regions."""
        return [crc32c(b"".join(region)) for region in self.regions]

    def content(self, subpartition: int) -> bytes:
        """Return the bytes of a subpartition."""
        return b"".join(
            region[subpartition] for region in self.regions if subpartition < len(region)
        )


class Oracle:
    """Knows what the cluster has promised, and compares it with what it does.

    Args:
        world: The simulation.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._mode = world.plan.settings["journal_sync"]
        self.outputs: dict[tuple[ShuffleKey, int], Output] = {}
        self.is_calm = False
        """Whether the last fault was some time ago."""
        self._ended: set[str] = set()
        self._released: set[ShuffleKey] = set()
        """Shuffles that the driver has begun to release as a whole."""
        self._bounds: dict[ShuffleKey, int] = {}
        """Below which map attempts of a shuffle the driver has begun to release all."""
        self._acknowledged: dict[tuple[int, ShuffleKey], int] = {}
        """The same as far as a TaskManager has acknowledged it: it takes them no longer."""

    def begin(self, output: Output) -> None:
        """Note that a writer begins an output, perhaps once more."""
        if output.key.application_id in self._ended:
            output.is_released = True  # forgotten, as those that were written before
            return
        before = self.outputs.get((output.key, output.map_attempt_id))
        if before is not None:
            output.earlier = [*before.earlier, before]
        output.is_released = output.map_attempt_id < self._bounds.get(output.key, 0)
        if output.key in self._released:
            # No driver uses the id again; TaskManagers that release it now may delete the copy.
            output.to_remote = False
        self.outputs[output.key, output.map_attempt_id] = output

    def acknowledged(self, output: Output, started: TaskManager | None) -> None:
        """Note that the commit of an output was answered: its TaskManager has it."""
        output.is_acknowledged = True
        member = self._world.members[output.member]
        if not output.is_released and member.taskmanager is started is not None:
            store = started.environment.store
            if store.lookup(output.key, output.map_attempt_id) is None:
                self._world.violation(f"{output} is answered, and {member} does not have it")
        if not output.is_released:
            output.seen.add(output.member)

    def released(self, key: ShuffleKey, end: int | None = None) -> None:
        """Note that the driver begins to release a shuffle, or its map attempts below ``end``."""
        if end is None:
            self._released.add(key)
        else:
            self._bounds[key] = max(end, self._bounds.get(key, 0))
        for output in self.of(key):
            if not output.is_released and (end is None or output.map_attempt_id < end):
                output.is_released, output.is_released_in_calm = True, self.is_calm

    def release_acknowledged(self, member: int, key: ShuffleKey, end: int | None) -> None:
        """Note that a TaskManager has acknowledged a release: no restart undoes it."""
        if end is None:  # it accepts commits again: the client may reuse the id
            self._acknowledged.pop((member, key), None)
        else:
            before = self._acknowledged.get((member, key), 0)
            self._acknowledged[member, key] = max(end, before)
        for output in self.of(key):
            is_covered = end is None or output.map_attempt_id < end
            if is_covered and member in output.seen | output.gone:
                output.released_at.add(member)

    def dies(self, member: Member) -> None:
        """Note what a TaskManager has when it is killed: it may just have said so."""
        if member.taskmanager is None:
            return
        store = member.taskmanager.environment.store
        for output in self.readable():
            if store.lookup(output.key, output.map_attempt_id) is not None:
                output.died_with[member.index] = self._world.loop.time()

    def killed(self, member: int) -> None:
        """Note that a TaskManager may come back without a release that it did not acknowledge."""
        for output in self.outputs.values():
            if member in output.gone - output.released_at:
                output.gone.discard(member)

    def ended(self, application_id: str) -> None:
        """Forget the outputs of an application that ends, those being written included."""
        self._ended.add(application_id)
        for each in [each for each in self.outputs if each[0].application_id == application_id]:
            self.outputs.pop(each).is_released = True

    def synced_at(self, member: Member) -> list[Output]:
        """Return the outputs of a TaskManager that a power cut now must leave there."""
        if self._mode != "commit" or member.taskmanager is None or member.has_disk_faults:
            return []
        store = member.taskmanager.environment.store
        found = [(each, store.lookup(each.key, each.map_attempt_id)) for each in self.readable()]
        return [
            output
            for output, stored in found
            if stored is not None
            and all(
                region.extent is None
                or (region.extent.tier.healthy and not region.extent.tier.in_memory)
                for region in stored.regions
            )
        ]

    def power_cut(self, member: int, kept: list[Output]) -> None:
        """Note that a TaskManager may have lost what was not synced; bytes stay right."""
        for output in self.outputs.values():
            if output not in kept:
                output.seen.discard(member)
            if self._mode == "never":
                output.gone.discard(member)
                output.released_at.discard(member)
        if self._mode == "never":
            self._forget_acknowledged(member)

    def damaged(self, member: int) -> None:
        """Note that stored bytes of a TaskManager changed, also in its journals."""
        for output in self.outputs.values():
            output.seen.discard(member)
            output.gone.discard(member)
            output.released_at.discard(member)
            output.doubtful.add(member)
        self._forget_acknowledged(member)

    def _forget_acknowledged(self, member: int) -> None:
        for each in [each for each in self._acknowledged if each[0] == member]:
            del self._acknowledged[each]

    def of(self, key: ShuffleKey) -> list[Output]:
        """Return the outputs of a shuffle."""
        return [output for output in self.outputs.values() if output.key == key]

    def readable(self) -> list[Output]:
        """Return the acknowledged outputs that nobody has begun to release."""
        return [
            output
            for output in self.outputs.values()
            if output.is_acknowledged and not output.is_released
        ]

    def look(self) -> None:
        """Compare the indexes of all TaskManagers that run with what was seen before."""
        for member in self._world.members:
            if member.taskmanager is None:
                continue
            store = member.taskmanager.environment.store
            number = member.index
            for output in self.outputs.values():
                found = store.lookup(output.key, output.map_attempt_id)
                is_below = output.map_attempt_id < self._acknowledged.get((number, output.key), 0)
                if found is not None and (is_below or number in output.gone | output.released_at):
                    self._world.violation(f"{output} came back at {member} after its release")
                    output.gone.discard(number)
                    output.released_at.discard(number)
                elif found is not None and not output.is_same(found):
                    if not any(each.is_same(found) for each in output.earlier):
                        self._world.violation(f"{member} has unknown bytes as {output}")
                elif found is not None and not output.is_released:
                    if not found.is_moved:  # a moved one is in the bucket; a restart drops it
                        output.seen.add(number)
                elif (
                    output.is_released
                    and number in output.seen
                    and found is None
                    and store.released() is None  # a restart does not undo it
                ):
                    output.seen.discard(number)
                    output.gone.add(number)

    def check_read(
        self, output: Output, subpartition: int, found: bytes, holder: int, where: str
    ) -> None:
        """Compare what a reader got from a TaskManager."""
        expected = output.content(subpartition)
        if found == expected:
            return
        if holder in output.doubtful:
            self._world.trace(f"{where}: damaged bytes, as the block's checksum tells")
        elif any(found == each.content(subpartition) for each in output.earlier):
            # A TaskManager that lost the output may have got a copy of an earlier one. Spark does
            # not reuse names.
            if holder in output.seen:
                self._world.violation(f"{where} has the bytes of an earlier output of this name")
        else:
            self._world.violation(
                f"wrong bytes of {output}/{subpartition} from {where}: "
                f"{len(found)} bytes, expected {len(expected)}"
            )

    def check_moved(self, member: int) -> None:
        """Check that all outputs of a TaskManager that says that it moved them are elsewhere.

        One that another had a packet's delay ago is good: its answer is here, its end is not. One
        that is not here either was damaged and dropped.
        """
        self.look()
        drained = self._world.members[member].taskmanager
        for output in self.readable():
            if output.seen != {member} or self._world.bucket.has(output):
                continue
            if drained is None or not self._has(drained, output):
                continue
            if not any(
                self._world.loop.time() - died
                <= self._world.network.longest_delay(self._world.members[number].host)
                for number, died in output.died_with.items()
                if number != member
            ):
                self._world.violation(f"tm{member} says that {output} has moved; no other has it")

    def has_conflict(self, member: int) -> bool:
        """Return whether another place may have other bytes of a name that a TaskManager has."""
        return any(member in each.seen and each.earlier for each in self.readable())

    def released_in_bucket(self, *, in_calm: bool) -> list[str]:
        """Return the objects of outputs that the bucket has after their release.

        A commit that follows the release of a whole shuffle writes it again: it has no bound.

        Args:
            in_calm: Only outputs that were released after the last fault.
        """
        released = tuple(
            moved_output(MapAttemptKey(each.key, each.map_attempt_id)) + "/"
            for each in self.outputs.values()
            if (each.is_released_in_calm if in_calm else each.is_released)
            and not (each.key in self._released and self._has_any(each))
        )
        return [name for name in self._world.bucket.leftovers() if name.startswith(released)]

    def _has_any(self, output: Output) -> bool:
        """Return whether a TaskManager that runs has an output."""
        running = (each.taskmanager for each in self._world.members if each.taskmanager is not None)
        return any(self._has(each, output) for each in running)

    @staticmethod
    def _has(taskmanager: TaskManager, output: Output) -> bool:
        store = taskmanager.environment.store
        return store.lookup(output.key, output.map_attempt_id) is not None

    def check_adopted(self, member: Member, *, had_faults: bool) -> None:
        """Check that a TaskManager which has just started has what it had."""
        if member.taskmanager is None or had_faults or member.has_disk_faults:
            return
        store = member.taskmanager.environment.store
        for output in self.readable():
            if (
                member.index in output.seen
                and store.lookup(output.key, output.map_attempt_id) is None
            ):
                self._world.violation(f"{member} has not adopted {output} at its start")

    def check_holders(self) -> None:
        """Check, after the last fault, that what was seen is still there."""
        self.look()
        for output in self.readable():
            for number in sorted(output.seen):
                taskmanager = self._world.members[number].taskmanager
                if taskmanager is None:
                    self._world.violation(f"tm{number} does not run")
                    continue
                store = taskmanager.environment.store
                if store.lookup(output.key, output.map_attempt_id) is None:
                    self._world.violation(f"{output} is not at tm{number}, which had it")

    def bucket_changed(self, names: Iterable[str]) -> None:
        """Check that map outputs which can be found in the bucket are complete there."""
        for prefix in dict.fromkeys(name.rpartition("/")[0] for name in names):
            top, *parts = prefix.split("/")
            if top != MOVED or len(parts) != 3:
                continue
            attempt = MapAttemptKey(ShuffleKey(parts[0], int(parts[1])), int(parts[2]))
            output = self.outputs.get((attempt.shuffle, attempt.map_attempt_id))
            if output is None or output.is_released or output.key in self._released:
                continue
            if self._world.bucket.is_incomplete(attempt):
                self._world.violation(f"the bucket has a manifest of {output}, and not all regions")

    def check_bucket(self) -> None:
        """Check that the bucket has what TaskManagers count as copied there, with its bytes."""
        bucket = self._world.bucket
        for member in self._world.members:
            store = None if member.taskmanager is None else member.taskmanager.environment.store
            if store is None or store.remote is None:
                continue
            for output in self.readable():
                attempt = MapAttemptKey(output.key, output.map_attempt_id)
                found = store.lookup(*attempt)
                if found is None or not output.to_remote or not store.remote.copies.has(attempt):
                    continue
                for each in (output, *output.earlier):
                    if each.is_same(found) and not bucket.has(each):
                        self._world.violation(f"{member} counts a copy of {each} that is not there")

    def used_bytes(self, environment: NetworkEnvironment, application_id: str) -> int:
        """Return the bytes of an application's data in memory and on disks."""
        found = [
            environment.store.lookup(*attempt)
            for attempt in self.outputs
            if attempt[0].application_id == application_id
        ]
        extents = {
            region.extent
            for output in found
            if output is not None
            for region in output.regions
            if region.extent is not None
        }
        extents |= spilled(environment, application_id)
        return sum(occupied_bytes(each.length) for each in extents if each.tier.kind != "remote")

    def holders(self, output: Output, *, of_others: bool = False) -> set[int]:
        """Return the numbers of the TaskManagers that have a map output of their own.

        Args:
            output: The map output.
            of_others: Those that have other bytes of its name instead.
        """
        running = {
            member.index: member.taskmanager.environment.store
            for member in self._world.members
            if member.taskmanager is not None
        }
        found = {
            number: store.lookup(output.key, output.map_attempt_id)
            for number, store in running.items()
        }
        return {
            number
            for number, stored in found.items()
            if stored and not stored.is_moved and output.is_same(stored) is not of_others
        }

    def lacking_copies(self) -> list[str]:
        """Return the outputs with fewer copies than their producers asked for.

        One that may be damaged everywhere is left out: nobody takes a copy of it. So is one whose
        name has, or may have in the bucket, other bytes of an earlier attempt: they are in the way.
        """
        lacking: list[str] = []
        for output in self.readable():
            holders = self.holders(output)
            is_short = len(holders) < output.replicas and holders - output.doubtful
            if self.holders(output, of_others=True):
                continue
            if is_short:
                where = ", ".join(f"tm{number}" for number in sorted(holders))
                lacking.append(f"{output} is only at {where}, not at {output.replicas}")
            if self._world.bucket.lacks(output) and holders - output.doubtful:
                lacking.append(f"{output} is not in the bucket")
        return lacking
