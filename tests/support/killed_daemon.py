"""A daemon to be killed: it commits as fast as it can and names each acknowledged output.

Writes one line per acknowledged commit or requested release. Usage: killed_daemon DIRECTORY SEED
"""

import asyncio
import random
import sys
from pathlib import Path

import uvloop

from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
from tests.support.store import config, content, put, write_region


async def commit_two_regions(store: ShuffleStore, attempt: int, key: ShuffleKey) -> None:
    regions = [
        await write_region(store, content(attempt, size), [size - 1, 1], key=key)
        for size in (1 + attempt % 7000, 10_000)
    ]
    await store.commit(MapOutput(key, attempt, 2, tuple(regions)))


async def worker(store: ShuffleStore, number: int, rng: random.Random) -> None:
    attempt = number
    while True:
        attempt += 100
        key = ShuffleKey(f"app-{number % 2}", number)
        # an uncommitted region stays behind when we are killed
        store.begin_region(key, 0, [5000]).abort()
        if rng.random() < 0.5:
            await commit_two_regions(store, attempt, key)
            print("two", *key, attempt, flush=True)
        else:
            length = rng.choice((1, 3000, 40_000))
            await put(store, attempt, length, key=key)
            print("one", *key, attempt, length, flush=True)
        if rng.random() < 0.02:
            print("releasing", *key, flush=True)
            store.release_shuffle(key)


async def main(directory: Path, seed: int) -> None:
    store = ShuffleStore.open(config(directory, memory_tier_bytes=400_000))
    rng = random.Random(seed)
    await asyncio.gather(*(worker(store, number, rng) for number in range(4)))


uvloop.run(main(Path(sys.argv[1]), int(sys.argv[2])))
