"""Mistakes that the simulation should notice: small changes of the product, one at a time.

Each stands for a class: a release that is undone, an answer that is too early, a copy that is not
made again. :mod:`tests.simulation.mutants` applies them.
"""

# Longer than 450 lines, because it is a table.

from __future__ import annotations

from typing import Final, NamedTuple

from tests.simulation.plan import BUCKET_KINDS

STORE, REPLICAS, DRAIN, MEMBERSHIP = "store", "replicas", "drain", "membership"
REMOTE = "remote tier"

_STORE = "shuffle/taskmanager/store/"
_REMOTE = _STORE + "remote/"
_REPLICAS = "shuffle/taskmanager/replicas/"
_CLUSTER = "shuffle/taskmanager/cluster/"
_SERVE = "shuffle/taskmanager/serve/"
_DRIVERS = "shuffle/taskmanager/drivers/"
_INGEST = "shuffle/taskmanager/ingest/"

_ENDS = ("kill", "restart", "power cut")
_DISKS = ("disk hangs", "disk slow", "disk full", "disk fails")
_LINKS = ("partition", "one way", "isolate", "half-open", "driver cut")


class Mutation(NamedTuple):
    """One change.

    Attributes:
        area: The part of the product: one of the five names above.
        what: What it does wrong.
        path: The module.
        old: Text that is in the module once.
        new: What stands there instead.
        faults: Kinds of faults of which a seed needs one to notice it; empty: any seed may.
        never: Why no simulation can notice it; empty: it must.
    """

    area: str
    what: str
    path: str
    old: str
    new: str
    faults: tuple[str, ...] = ()
    never: str = ""


MUTATIONS: Final = (
    # ---- remote tier ---------------------------------------------------------------------------
    Mutation(
        REMOTE,
        "what is released while it is uploaded stays in the bucket",
        _REMOTE + "output_uploads.py",
        "        if is_over and names is not None:\n",
        "        if False:\n",
    ),
    Mutation(
        REMOTE,
        "a copy with other bytes is taken for a copy",
        _REMOTE + "output_uploads.py",
        "    if manifest.num_subpartitions != output.num_subpartitions or not _same_bytes(\n"
        "        manifest.regions, output.regions\n    ):\n",
        "    if not manifest.regions and output.regions:\n",
    ),
    Mutation(
        REMOTE,
        "a manifest is written before its regions",
        _REMOTE + "output_uploads.py",
        "            await self._copy_all(output.regions, names, output.key.application_id)\n",
        "            await self.tier.objects.put(manifest_name(attempt), "
        "pack_manifest(output, names))\n"
        "            await self._copy_all(output.regions, names, output.key.application_id)\n",
        ("kill", "power cut"),
    ),
    Mutation(
        REMOTE,
        "the objects of a manifest whose answer was lost are deleted",
        _REMOTE + "output_uploads.py",
        "                if unknown.missing and failure.is_answer:\n",
        "                if unknown:\n",
        ("bucket mute",),
    ),
    Mutation(
        REMOTE,
        "a copy that fails is not made again",
        _REPLICAS + "application_copies.py",
        "            self._stalled_remote.add(attempt, reason)\n",
        "            pass\n",
        BUCKET_KINDS,
    ),
    Mutation(
        REMOTE,
        "a release deletes nothing in the bucket",
        _REMOTE + "remote_outputs.py",
        "        known = self._moved.pop(key, {})\n        moved = {",
        "        known = self._moved.pop(key, {})\n        return\n        moved = {",
    ),
    Mutation(
        REMOTE,
        "the end of an application deletes nothing in the bucket",
        _REMOTE + "remote_outputs.py",
        "        self._in_background(delete())\n",
        "        delete().close()\n",
        never="the sweep deletes it later",
    ),
    Mutation(
        REMOTE,
        "the sweep deletes nothing of applications that are gone",
        _REMOTE + "remote_sweep.py",
        "            if name not in known:\n"
        '                await self._remove_old(f"{MOVED}/{name}", before)\n',
        "            pass\n",
    ),
    Mutation(
        REMOTE,
        "the sweep deletes what lives",
        _REMOTE + "remote_sweep.py",
        "            if name not in known:\n"
        '                await self._remove_old(f"{MOVED}/{name}", before)\n',
        '            await self._remove_old(f"{MOVED}/{name}", before)\n',
    ),
    Mutation(
        REMOTE,
        "the space of a copy that is released stays charged",
        _REMOTE + "remote_copies.py",
        "        for copy in gone.values():\n            copy.space.release()\n",
        "",
    ),
    Mutation(
        REMOTE,
        "a moved map output that is found has the regions in another order",
        _REMOTE + "remote_outputs.py",
        "                regions,\n                is_moved=True,\n",
        "                regions[::-1],\n                is_moved=True,\n",
    ),
    # ---- store ---------------------------------------------------------------------------------
    Mutation(
        STORE,
        "a commit is answered before it is in the journals",
        _INGEST + "stored_output.py",
        "        await self._services.commit(output, began, self.span)\n"
        "        self._storing = None\n"
        "        self._counters.map_outputs_committed += 1\n"
        "        self._end_span(output, None)\n"
        "        self._end(drop=False)\n"
        "        self._connection.send(PartitionFinished(self.number))\n",
        "        self._connection.send(PartitionFinished(self.number))\n"
        "        await self._services.commit(output, began, self.span)\n"
        "        self._storing = None\n"
        "        self._counters.map_outputs_committed += 1\n"
        "        self._end_span(output, None)\n"
        "        self._end(drop=False)\n",
        ("kill", *_DISKS),
    ),
    Mutation(
        STORE,
        "a commit is visible when the first of its journals has it",
        _STORE + "journal/journal_writer.py",
        "if not row.arenas or not row.needs_all:\n                self._publish(row)",
        "if row.arenas or not row.arenas:\n                self._publish(row)",
        _DISKS,
    ),
    Mutation(
        STORE,
        "a release is acknowledged before a journal has it",
        _STORE + "journal/journal_writer.py",
        "return None if last is None or (last.done() and last.exception() is None) else last",
        "return None if last is None or last else last",
        ("kill", *_DISKS),
    ),
    Mutation(
        STORE,
        "a release does not refuse the commits under way",
        _STORE + "journal/journal_writer.py",
        "                self._refuse(entry, error)\n",
        "",
        _DISKS,
    ),
    Mutation(
        STORE,
        "space is free before the journal beside it has the release",
        _STORE + "journal/journal_writer.py",
        "extents = [each.extent for each in (*regions, *refused) if each.extent is not None]\n"
        "        arenas = {arena for arena, lane",
        "extents: list[Extent] = []\n"
        "        for region in (*regions, *refused):\n"
        "            region.release()\n"
        "        arenas = {arena for arena, lane",
        ("kill", *_DISKS),
        never="nobody reads what a driver has begun to release, the driver repeats the release, "
        "and of two map outputs with the same bytes a start keeps the newer one",
    ),
    Mutation(
        STORE,
        "a journal without room forgets its releases",
        _STORE + "journal/journal_lane.py",
        "                self._late.append(each)\n",
        "                pass\n",
        ("disk full",),
    ),
    Mutation(
        STORE,
        "space is used again while a hanging disk may still get the row",
        _STORE + "journal/journal_lane.py",
        "                    region.extent.retain()\n"
        "                    self._doubtful_extents.append(region.extent)\n",
        "                    pass\n",
        ("disk hangs",),
    ),
    Mutation(
        STORE,
        "a rewritten journal lacks the releases under way",
        _STORE + "journal/journal_writer.py",
        "return list(dict.fromkeys([*self._missed, *self._newest, *waiting]))",
        "return []",
        _DISKS,
    ),
    Mutation(
        STORE,
        "a rewritten journal lacks the releases of shuffles",
        _STORE + "journal/journal_files.py",
        "packed = [*self._index.secured_in(arena), *self._index.released_rows()]",
        "packed = [*self._index.secured_in(arena)]",
        _DISKS,
    ),
    Mutation(
        STORE,
        "a start forgets the releases of shuffles",
        _STORE + "journal/replay.py",
        "                self._undo(arenas, shuffles.pop(key.shuffle_id, {}).values())\n",
        "                self._undo(arenas, shuffles.get(key.shuffle_id, {}).values())\n",
        _ENDS,
    ),
    Mutation(
        STORE,
        "a start releases one map attempt too many",
        _STORE + "journal/replay.py",
        "released = [each for each in attempts if each < end]",
        "released = [each for each in attempts if each <= end]",
        _ENDS,
    ),
    Mutation(
        STORE,
        "a release with a bound takes one map attempt too many",
        _STORE + "output_index.py",
        "        for map_attempt_id in [each for each in entry.outputs if each >= end]:\n",
        "        for map_attempt_id in [each for each in entry.outputs if each > end]:\n",
    ),
    Mutation(
        STORE,
        "a start adopts what one of its journals lacks",
        _STORE + "journal/replay.py",
        "        if region.tier_id not in arenas and is_arena(region.tier_id):\n"
        "            return False\n",
        "        if region.tier_id not in arenas and is_arena(region.tier_id):\n"
        "            continue\n",
        ("kill", *_DISKS),
    ),
    Mutation(
        STORE,
        "a start does not charge what it adopts",
        _STORE + "journal/adoption.py",
        "            Extent.charge_all(extents, self._accounts.of(key.application_id))\n",
        "",
        _ENDS,
    ),
    Mutation(
        STORE,
        "rows of a directory that was away in the last run count",
        _STORE + "journal/recovery.py",
        "        if run < last_run:\n",
        "        if run < 0:\n",
        ("disk hangs", "disk fails"),
    ),
    Mutation(
        STORE,
        "a directory that fails its probe goes on",
        _STORE + "store_health.py",
        '        """Store nothing new in a directory; its content can still be read."""\n'
        "        tier.fail(reason)\n",
        '        """Store nothing new in a directory; its content can still be read."""\n',
        ("disk hangs", "disk fails"),
    ),
    Mutation(
        STORE,
        "a full directory is not tried again",
        _STORE + "journal/journal_lane.py",
        "        self._retry = None\n        self._must_look = True\n        self._begin()\n",
        "        self._retry = None\n",
        ("disk full",),
    ),
    # ---- replicas ------------------------------------------------------------------------------
    Mutation(
        REPLICAS,
        "a map output has one copy too few",
        _REPLICAS + "holdings.py",
        "return max(self.replicas - 1 - len(self.others), 0)",
        "return max(self.replicas - 2 - len(self.others), 0)",
    ),
    Mutation(
        REPLICAS,
        "a copy whose origin is lost is not copied",
        _REPLICAS + "holdings.py",
        "        return bool(self.origin) and self.origin in self.others\n",
        "        return bool(self.origin)\n",
        ("leave", "kill", "power cut"),
    ),
    Mutation(
        REPLICAS,
        "the copies at a lost TaskManager still count",
        _REPLICAS + "holdings.py",
        "        for attempt in affected:\n            self.has_not(attempt, taskmanager_id)\n",
        "",
        ("leave", "kill", "power cut"),
    ),
    Mutation(
        REPLICAS,
        "a TaskManager that comes back is not asked for its copies",
        _REPLICAS + "holdings.py",
        "                holding.doubtful.add(taskmanager_id)\n",
        "                pass\n",
        ("power cut",),
    ),
    Mutation(
        REPLICAS,
        "a producer that waits for copies does not",
        _REPLICAS + "replication.py",
        "                copies.await_copies(attempt)\n",
        "                pass\n",
    ),
    Mutation(
        REPLICAS,
        "a map output without a place is not tried again",
        _REPLICAS + "stalled_outputs.py",
        "        if self._timer is None and not self._closed:\n            pause_seconds",
        "        if self._closed:\n            pause_seconds",
        ("disk full", "kill", "isolate"),
    ),
    Mutation(
        REPLICAS,
        "what changes while a map output is copied is forgotten",
        _REPLICAS + "application_copies.py",
        "                self._again.add(attempt)\n",
        "                pass\n",
        ("kill", "power cut", "partition", "isolate"),
    ),
    Mutation(
        REPLICAS,
        "the copies of a lost TaskManager are not made again",
        _REPLICAS + "application_copies.py",
        "            self.enqueue(again)\n",
        "",
        ("leave", "kill", "power cut"),
    ),
    Mutation(
        REPLICAS,
        "adopted map outputs never get their copies",
        _REPLICAS + "replication.py",
        "        for application_id, attempts in short.items():\n"
        "            self._of(application_id).enqueue(attempts)\n",
        "",
        ("leave", "power cut"),
    ),
    Mutation(
        REPLICAS,
        "a refused copy counts as one that is there",
        _REPLICAS + "copier.py",
        "        if error.code is not ErrorCode.DUPLICATE_MAP_OUTPUT:\n            raise\n",
        "",
        ("kill", "disk full", "disk fails", "restart"),
    ),
    Mutation(
        REPLICAS,
        "an earlier copy of the same name counts, whatever its bytes",
        _SERVE + "new_copies.py",
        "    if checksum is None or found.checksum() == checksum:\n",
        "    if checksum is None or found.checksum():\n",
        ("kill", "reset", "partition", "half-open"),
    ),
    Mutation(
        REPLICAS,
        "a copy is accepted after the release of its shuffle",
        _STORE + "releases.py",
        "return self._find(attempt.shuffle) == _UNBOUNDED or self.has(attempt)",
        "return False",
        ("driver cut", *_LINKS),
    ),
    Mutation(
        REPLICAS,
        "a commit is accepted after the release of its map attempt",
        _STORE + "releases.py",
        "return end is not None and attempt.map_attempt_id < end",
        "return False",
    ),
    # ---- drain ---------------------------------------------------------------------------------
    Mutation(
        DRAIN,
        "receivers are not asked again for what they took",
        _REPLICAS + "migration.py",
        "                await run_together(self._confirm(each) for each in applications)\n",
        "",
        ("leave",),
    ),
    Mutation(
        DRAIN,
        "a receiver without the map output confirms it",
        _REPLICAS + "target.py",
        "                if await is_there(leg, output, copy_of):\n"
        '                    return Outcome.COPIED, ""\n',
        "                await is_there(leg, output, copy_of)\n"
        '                return Outcome.COPIED, ""\n',
        ("leave",),
    ),
    Mutation(
        DRAIN,
        "what a receiver took stays moved when it is away",
        _REPLICAS + "migration.py",
        "        if now in (Presence.AWAY, Presence.LOST):\n",
        "        if now is None:\n",
        ("leave", "drain"),
    ),
    Mutation(
        DRAIN,
        "map outputs that are taken back count as moved",
        _SERVE + "moved_outputs.py",
        "            self._at[place] -= 1\n",
        "            self._at[place] -= 0\n",
        ("leave", "drain"),
    ),
    Mutation(
        DRAIN,
        "a map output that nobody takes counts as moved",
        _REPLICAS + "migration.py",
        "                if outcome is Outcome.COPIED:\n                    del",
        "                if outcome is not Outcome.ABSENT:\n                    del",
        ("leave",),
    ),
    Mutation(
        DRAIN,
        "released map outputs count as moved",
        _REPLICAS + "migration.py",
        "places = {each: place for each, place in places.items() if is_same[each]}",
        "places = {each: place for each, place in places.items() if here is not None}",
        ("leave",),
    ),
    Mutation(
        DRAIN,
        "a TaskManager that drains takes new map outputs",
        "shuffle/taskmanager/wiring.py",
        "        self.producer_services.draining = True\n",
        "        self.producer_services.draining = False\n",
        ("leave",),
    ),
    Mutation(
        DRAIN,
        "a move has no pass",
        _REPLICAS + "migration.py",
        "            for number in range(PASSES):\n",
        "            for number in range(PASSES - 3):\n",
        ("leave", "drain"),
    ),
    Mutation(
        DRAIN,
        "moved map outputs stay elsewhere after an undrain",
        _REPLICAS + "migration.py",
        "for key, map_attempt_ids in self._moved.take_back_all().items():",
        "for key, map_attempt_ids in dict[ShuffleKey, list[int]]().items():",
        ("drain",),
    ),
    # ---- membership ----------------------------------------------------------------------------
    Mutation(
        MEMBERSHIP,
        "a TaskManager that is away is never lost",
        _CLUSTER + "taskmanager_watch.py",
        "        if presence is Presence.AWAY:\n            self._start_deadline()\n",
        "        if presence is None:\n            self._start_deadline()\n",
        ("leave", "kill", "power cut"),
    ),
    Mutation(
        MEMBERSHIP,
        "any TaskManager at the address is the one that was there",
        _CLUSTER + "taskmanager_watch.py",
        "        if leg.place.taskmanager_id != expected:\n",
        "        if not leg.place.taskmanager_id:\n",
        ("leave",),
    ),
    Mutation(
        MEMBERSHIP,
        "a connection that ends does not mean away",
        _CLUSTER + "taskmanager_watch.py",
        "            if self.presence in (Presence.PRESENT, Presence.UNKNOWN):\n"
        "                self._is(Presence.AWAY)\n",
        "            if self.presence is Presence.UNKNOWN:\n"
        "                self._is(Presence.AWAY)\n",
        ("leave", "kill", "power cut"),
    ),
    Mutation(
        MEMBERSHIP,
        "TaskManagers with copies are not watched",
        _CLUSTER + "watches.py",
        "        for place in wanted:\n            self.watch(place)\n",
        "",
        ("leave", "power cut"),
    ),
    Mutation(
        MEMBERSHIP,
        "watches of TaskManagers without copies never end",
        _CLUSTER + "watches.py",
        "        for place in self._by_place.keys() - wanted:\n"
        "            self._end(self._by_place.pop(place))\n",
        "",
    ),
    Mutation(
        MEMBERSHIP,
        "a replaced TaskManager stays known",
        _CLUSTER + "known_taskmanagers.py",
        "                del self._members[other_id]\n",
        "                pass\n",
        ("leave",),
    ),
    Mutation(
        MEMBERSHIP,
        "a copier revives an application that has ended",
        _DRIVERS + "applications.py",
        "        has_ended = application_id in self._ended\n",
        "        has_ended = False\n",
        _LINKS,
    ),
    Mutation(
        MEMBERSHIP,
        "what is written after the end of an application stays",
        _DRIVERS + "applications.py",
        "                # Data that an executor may have written after the end.\n"
        "                self._release(application_id)\n",
        "",
    ),
    Mutation(
        MEMBERSHIP,
        "an application whose clients are gone never expires",
        _DRIVERS + "applications.py",
        "        elif application.clients == 0 and (\n",
        "        elif application.clients < 0 and (\n",
    ),
    Mutation(
        MEMBERSHIP,
        "two TaskManagers keep an application alive for each other",
        _DRIVERS + "applications.py",
        "        if application is not None and application.clients:\n            return 0\n",
        "        if application is not None:\n            return 0\n",
        _LINKS,
    ),
)
