"""A model of the store against the store itself, which dies at every boundary of its writes.

Each step of a run is watched: before, within and behind each call that changes a file of journals
the directories are copied. A new store is opened on each copy, as after ``kill -9``. It must have
what was acknowledged by then, the step under way as a whole or not at all, and nothing else.
"""

import asyncio
import os
import shutil
import tempfile
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluice.shuffle.names import MapAttemptKey, ShuffleKey
from sluice.shuffle.taskmanager.store.files.journal_places import place_on
from sluice.shuffle.taskmanager.store.journal import journal_lane
from sluice.shuffle.taskmanager.store.objects import remote_names
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput, Region
from sluice.shuffle.taskmanager.store.tiers.tier import ExtentRead
from tests.support.store import config, content, settle, used, write_region

if TYPE_CHECKING:
    from collections.abc import Sequence

SHUFFLES = [ShuffleKey("app-1", 0), ShuffleKey("app-1", 1), ShuffleKey("app-2", 0)]
MEMORY_BYTES = DISK_BYTES = 16 * 4096
SIZES = st.sampled_from([1, 10, 64, 65, 2000, 5000, 40_000])

pytestmark = [pytest.mark.usefixtures("object_store"), pytest.mark.slow]

State = dict[tuple[str, MapAttemptKey], bytes]
"""Bytes of each map output, ``committed`` or ``secured``."""


def process_of(attempt: MapAttemptKey) -> str:
    """Return the text of the process that writes a map output, which no other one continues."""
    return f"process {attempt.map_attempt_id}" if attempt.map_attempt_id % 2 else ""


def copy_tree(source: Path, target: Path):
    """Copy a directory from which objects are deleted meanwhile."""
    for top, _, names in os.walk(source):
        copied = target / Path(top).relative_to(source)
        copied.mkdir(parents=True, exist_ok=True)
        for name in names:
            with suppress(FileNotFoundError):
                shutil.copy2(Path(top, name), copied / name)


class Crashes:
    """Copies directories at every boundary of the writes that happen meanwhile."""

    def __init__(self, source: Path, copies: Path):
        self.source = source
        self.copies = copies
        self.taken: list[Path] = []
        self.lock = threading.Lock()

    def take(self):
        target = self.copies / str(len(self.taken))
        copy_tree(self.source, target)
        self.taken.append(target)

    @contextmanager
    def watched(self):
        """Take a copy before each call, within each write and at the end."""
        write = os.pwrite

        def torn(fd, data, offset):
            with self.lock:
                self.take()
                half = len(data) // 2
                write(fd, data[:half], offset)
                self.take()
                return half + write(fd, data[half:], offset + half)

        def announced(call):
            def taken_before(*args, **kwargs):
                with self.lock:
                    self.take()
                    return call(*args, **kwargs)

            return taken_before

        names = ["rename", "replace", "unlink", "ftruncate"]
        patches = {name: announced(getattr(os, name)) for name in names}
        with mock.patch.multiple(os, pwrite=torn, **patches):
            yield
            with self.lock:  # threads may still change files
                self.take()


async def fetch_all(store: ShuffleStore, regions) -> bytes:
    parts = []
    for region in regions:
        buffer = bytearray(region.length)
        if region.extent is not None:
            await store.read_all([ExtentRead(region.extent, 0, [memoryview(buffer)])])
        parts.append(bytes(buffer))
    return b"".join(parts)


async def state_of(store: ShuffleStore) -> State:
    """Return the bytes of all map outputs that a store shows."""
    state: State = {}
    for shuffle in store.shuffles():
        for attempt, output in store.map_outputs(shuffle.key).items():
            name = "committed", MapAttemptKey(shuffle.key, attempt)
            state[name] = await fetch_all(store, output.regions)
    for opened in store.open_outputs():
        name = "secured", MapAttemptKey(opened.key, opened.map_attempt_id)
        state[name] = await fetch_all(store, opened.regions)
    return state


class StoreMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="sluice-model-"))
        self.directory = self.root / "store"
        self.loop = asyncio.Runner()
        self.state: State = {}
        self.released: set[ShuffleKey] = set()
        self.attempts = 0
        self.steps = 0

    @initialize(
        memory_tier_bytes=st.sampled_from([0, MEMORY_BYTES]),
        disk_quota_bytes=st.sampled_from([None, None, None, None, 0, DISK_BYTES]),
    )
    def open(self, memory_tier_bytes, disk_quota_bytes):
        """With a quota of the disk, the rest lies in a remote tier, a directory beside it."""
        self.changes = {"memory_tier_bytes": memory_tier_bytes, "io_threads": 1}
        self.has_remote = disk_quota_bytes is not None
        if self.has_remote:
            self.changes["disk_quota_bytes"] = disk_quota_bytes
        # The copies that crashes leave have the remote tier elsewhere.
        self.patch = mock.patch.object(remote_names, "remote_tier_id", return_value=b"r" * 9)
        self.patch.start()
        self.timers = mock.patch.object(journal_lane, "RETRY_SECONDS", 3600.0)
        self.timers.start()
        self.store = self.opened(self.directory)

    def opened(self, directory: Path) -> ShuffleStore:
        remote = {"remote": str(directory / "remote")} if self.has_remote else {}
        return ShuffleStore.open(config(directory, **self.changes, **remote))

    def teardown(self):
        if hasattr(self, "patch"):
            self.patch.stop()
            self.timers.stop()
        if hasattr(self, "store"):
            self.loop.run(self.store.close())
        self.loop.close()
        shutil.rmtree(self.root)

    # ---- steps -------------------------------------------------------------------------------

    def step(self, work, after, *between):
        """Do something to the store that leads to another state, and crash at each boundary."""
        self.steps += 1
        crashes = Crashes(self.directory, self.root / f"crashes-{self.steps}")
        with crashes.watched():
            self.loop.run(work)
        *early, last = crashes.taken
        for copy in early:
            self.loop.run(self.check(copy, self.state, *between, after))
        self.loop.run(self.check(last, after))
        self.loop.run(self.check(last, {}))
        shutil.rmtree(crashes.copies)
        self.state = after
        self.loop.run(self.check_space())

    async def check_space(self):
        """Check that nothing is occupied but what the store shows."""
        await settle(self.store)
        shown: list[Sequence[Region]] = [each.regions for each in self.store.open_outputs()]
        for shuffle in self.store.shuffles():
            shown += [each.regions for each in self.store.map_outputs(shuffle.key).values()]
        extents = [region.extent for regions in shown for region in regions if region.extent]
        assert sum(tier.extents for tier in self.store.tiers()) == len(extents)

    async def check(self, copy: Path, *states: State):
        """Open a store on what a crash has left, and empty it."""
        store = self.opened(copy)
        try:
            assert await state_of(store) in states
            for application in sorted({key.application_id for key in SHUFFLES}):
                store.release_application(application)
            await settle(store)
            assert not any(used(store))
        finally:
            await store.close()

    def new_attempt(self, key) -> MapAttemptKey:
        self.attempts += 1
        return MapAttemptKey(key, self.attempts)

    async def regions(self, attempt, sizes, first=0):
        return [
            await write_region(
                self.store, content(attempt.map_attempt_id + n, size), [size], key=attempt.shuffle
            )
            for n, size in enumerate(sizes, first)
        ]

    @staticmethod
    def bytes_of(attempt, sizes, first=0) -> bytes:
        numbered = enumerate(sizes, first)
        return b"".join(content(attempt.map_attempt_id + n, size) for n, size in numbered)

    @rule(key=st.sampled_from(SHUFFLES), sizes=st.lists(SIZES, max_size=3))
    def commit(self, key, sizes):
        attempt = self.new_attempt(key)

        async def work():
            output = MapOutput(key, attempt.map_attempt_id, 1, tuple(await regions))
            await self.store.commit(output)

        regions = self.regions(attempt, sizes)
        self.step(work(), self.state | {("committed", attempt): self.bytes_of(attempt, sizes)})

    @rule(key=st.sampled_from(SHUFFLES), sizes=st.lists(SIZES, min_size=1, max_size=2))
    def secure(self, key, sizes):
        attempt = self.new_attempt(key)

        async def work():
            regions = await self.regions(attempt, sizes)
            await self.store.secure(attempt, 1, regions, process_of(attempt))

        self.step(work(), self.state | {("secured", attempt): self.bytes_of(attempt, sizes)})

    def a_secured(self, data) -> MapAttemptKey:
        secured = sorted(attempt for kind, attempt in self.state if kind == "secured")
        return data.draw(st.sampled_from(secured))

    def has_secured(self):
        return any(kind == "secured" for kind, _ in self.state)

    @precondition(has_secured)
    @rule(data=st.data(), sizes=st.lists(SIZES, min_size=1, max_size=2))
    def secure_more(self, data, sizes):
        attempt = self.a_secured(data)
        name = "secured", attempt
        before = self.store.open_output(attempt)
        assert before is not None
        assert before.process == process_of(attempt)
        first = len(before.regions)

        async def work():
            regions = await self.regions(attempt, sizes, first)
            await self.store.secure(attempt, 1, regions, process_of(attempt))

        more = self.bytes_of(attempt, sizes, first)
        self.step(work(), self.state | {name: self.state[name] + more})

    @precondition(has_secured)
    @rule(data=st.data())
    def commit_secured(self, data):
        attempt = self.a_secured(data)
        after = dict(self.state)
        after["committed", attempt] = after.pop(("secured", attempt))

        async def work():
            opened = self.store.open_output(attempt)
            assert opened is not None
            output = MapOutput(attempt.shuffle, attempt.map_attempt_id, 1, tuple(opened.take()))
            await self.store.commit(output)

        self.step(work(), after)

    @precondition(has_secured)
    @rule(data=st.data(), sizes=st.lists(SIZES, max_size=2))
    def commit_a_copy(self, data, sizes):
        """Commit a secured map output whose producer has written all of it elsewhere."""
        attempt = self.a_secured(data)
        after = dict(self.state)
        del after["secured", attempt]
        after["committed", attempt] = self.bytes_of(attempt, sizes)

        async def work():
            regions = tuple(await self.regions(attempt, sizes))
            await self.store.commit(MapOutput(*attempt, 1, regions, "origin", 2))
            await settle(self.store)

        self.step(work(), after)

    @precondition(has_secured)
    @rule(data=st.data())
    def drop(self, data):
        attempt = self.a_secured(data)

        async def work():
            self.store.drop_open(attempt)
            await settle(self.store)

        kept = {name: bytes_ for name, bytes_ in self.state.items() if name[1] != attempt}
        self.step(work(), kept)

    @rule(key=st.sampled_from(SHUFFLES))
    def release_shuffle(self, key):
        async def work():
            self.store.release_shuffle(key)
            await self.acknowledged()

        kept = {name: bytes_ for name, bytes_ in self.state.items() if name[1].shuffle != key}
        self.step(work(), kept)

    @rule(key=st.sampled_from(SHUFFLES), other=st.sampled_from(SHUFFLES), size=SIZES)
    def release_and_commit(self, key, other, size):
        """Use space again that a release has freed, once a crash cannot undo the release."""
        attempt = self.new_attempt(other)
        new: State = {("committed", attempt): content(attempt.map_attempt_id, size)}

        async def work():
            self.store.release_shuffle(key)
            (region,) = await self.regions(attempt, [size])
            output = MapOutput(other, attempt.map_attempt_id, 1, (region,))
            await asyncio.gather(self.store.commit(output), self.acknowledged())

        kept = {name: bytes_ for name, bytes_ in self.state.items() if name[1].shuffle != key}
        self.step(work(), kept | new, kept, self.state | new)

    @rule(application=st.sampled_from(["app-1", "app-2"]))
    def release_application(self, application):
        async def work():
            self.store.release_application(application)
            await self.acknowledged()

        self.step(
            work(),
            {
                name: bytes_
                for name, bytes_ in self.state.items()
                if name[1].shuffle.application_id != application
            },
        )

    async def acknowledged(self):
        if (written := self.store.released()) is not None:
            await written
        await settle(self.store)

    @rule()
    def restart(self):
        async def work():
            await self.store.close()
            self.store = self.opened(self.directory)

        self.step(work(), self.state)

    @precondition(lambda self: self.changes["memory_tier_bytes"])
    @rule(to_disk=st.booleans())
    def move_journal(self, to_disk):
        """Write the journal of the memory tier anew on the disk, as when its tmpfs is full."""
        memory, disk = self.store._tiers.tiers()
        place = place_on(disk.directory, memory.tier_id) if to_disk else memory.directory

        async def work():
            assert await self.store._journal.files._rewrite(memory.tier_id, place) is None

        self.step(work(), self.state)

    @rule(data=st.data())
    def damage(self, data):
        """Flip a bit in a file of journals: what is lost stays lost, and what is left is right."""
        names = ("journal-[0-9]*", "releases-*")
        files = [path for name in names for path in self.directory.rglob(name)]
        path = data.draw(st.sampled_from(sorted(file for file in files if file.stat().st_size)))
        size = path.stat().st_size
        recent = st.integers(max(0, size - 100), size - 1)
        self.flip(path, data.draw(st.one_of(recent, st.integers(0, size - 1))))

    @precondition(lambda self: self.state)
    @rule(data=st.data())
    def release_and_damage(self, data):
        """Flip a bit in the row of a release."""
        shuffles = sorted({attempt.shuffle for _, attempt in self.state})
        self.release_shuffle(data.draw(st.sampled_from(shuffles)))
        names = data.draw(st.sampled_from(["data/journal-[0-9]*", "data/releases-*"]))
        (path,) = self.directory.glob(names)
        self.flip(path, path.stat().st_size - data.draw(st.integers(1, 30)))

    def flip(self, path, position):
        self.loop.run(self.store.close())
        damaged = bytearray(path.read_bytes())
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        self.store = self.opened(self.directory)
        found = self.loop.run(state_of(self.store))
        for (kind, attempt), bytes_ in found.items():
            # The row of a commit may be what was lost: its regions are secured as before it.
            before = self.state.get((kind, attempt), self.state.get(("committed", attempt)))
            assert before is not None
            assert before == bytes_ if kind == "committed" else before.startswith(bytes_)
        if path.name.startswith("journal-"):
            lost = {attempt for _, attempt in self.state} - {attempt for _, attempt in found}
            assert len(lost) <= 1
        self.state = found

    @invariant()
    def the_index_agrees(self):
        if hasattr(self, "store"):
            assert self.loop.run(state_of(self.store)) == self.state


StoreMachine.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=15,
    deadline=None,
    phases=[Phase.reuse, Phase.generate],  # to shrink a failure takes minutes: add Phase.shrink
)
TestStore = StoreMachine.TestCase
