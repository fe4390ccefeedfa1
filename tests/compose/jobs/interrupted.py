"""A job that stops after its map stage, until someone writes to the named pipe ``--resume``.

The test kills a TaskManager meanwhile. The map tasks count themselves, so the last line tells how
many of them had to run again.
"""

from __future__ import annotations

import argparse
import json
import os
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import SparkContext

if TYPE_CHECKING:
    from collections.abc import Iterator

MAPS = 8
REDUCES = 6
RECORDS_PER_MAP = 40_000
KEYS = 5_000


def main() -> None:
    """Run the map stage, wait, run the reduce stage; progress is lines of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resume", type=Path, required=True)
    arguments = parser.parse_args()
    os.mkfifo(arguments.resume)
    context = SparkContext(appName="Interrupted after the map stage")
    map_runs = context.accumulator(0)

    def records(index: int) -> Iterator[tuple[int, int]]:
        map_runs.add(1)
        for position in range(RECORDS_PER_MAP):
            number = index * RECORDS_PER_MAP + position
            yield number * 7919 % KEYS, number

    sums = context.parallelize(range(MAPS), MAPS).flatMap(records).groupByKey(REDUCES)
    keys = sums.count()
    _say(stage="mapped", keys=keys, map_runs=map_runs.value)

    # Blocks until the test has opened the pipe, and so has done what it had to do.
    arguments.resume.read_text()
    result = dict(sums.mapValues(sum).collect())
    expected: dict[int, int] = {}
    for number in range(MAPS * RECORDS_PER_MAP):
        key = number * 7919 % KEYS
        expected[key] = add(expected.get(key, 0), number)
    _say(stage="reduced", right=result == expected, map_runs=map_runs.value)
    context.stop()


def _say(**progress: object) -> None:
    print(json.dumps(progress), flush=True)


if __name__ == "__main__":
    main()
