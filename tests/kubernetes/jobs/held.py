"""A job whose tasks stop at points of its map and reduce stage until the test releases the point.

A task that arrives at a point makes a file ``arrived-POINT-INDEX`` in the directory that all pods
share with the test, and goes on when there is a file ``go-POINT``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import SparkContext

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

RECORDS_PER_MAP = 20_000
KEYS = 5_000
LOOK_SECONDS = 0.1
FORGOTTEN_SECONDS = 600.0


def hold(shared: Path, point: str, index: int) -> None:
    """Wait until the test releases a point."""
    (shared / f"arrived-{point}-{index}").touch()
    deadline = time.monotonic() + FORGOTTEN_SECONDS
    while not (shared / f"go-{point}").exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the test has not released {point}")
        time.sleep(LOOK_SECONDS)


def main() -> None:
    """Sum numbers by key; the last line of output is the outcome as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--maps", type=int, default=8)
    parser.add_argument("--reduces", type=int, default=8)
    parser.add_argument("--hold-map", type=int, help="map tasks from this index on stop at `map`")
    parser.add_argument(
        "--hold-reduce", type=int, help="reduce tasks from this index on stop at `reduce`"
    )
    given = parser.parse_args()
    shared, hold_map, hold_reduce = given.shared, given.hold_map, given.hold_reduce
    context = SparkContext(appName="Held")

    def records(index: int, _: Iterable[int]) -> Iterator[tuple[int, int]]:
        if hold_map is not None and index >= hold_map:
            hold(shared, "map", index)
        for position in range(RECORDS_PER_MAP):
            number = index * RECORDS_PER_MAP + position
            yield number * 7919 % KEYS, number

    def sums(index: int, groups: Iterable[tuple[int, Iterable[int]]]) -> Iterator[tuple[int, int]]:
        if hold_reduce is not None and index >= hold_reduce:
            hold(shared, "reduce", index)
        for key, values in groups:
            yield key, sum(values)

    numbers = context.parallelize(range(given.maps), given.maps)
    grouped = numbers.mapPartitionsWithIndex(records).groupByKey(given.reduces)
    found = sorted(grouped.mapPartitionsWithIndex(sums).collect())
    expected: dict[int, int] = {}
    for number in range(given.maps * RECORDS_PER_MAP):
        key = number * 7919 % KEYS
        expected[key] = expected.get(key, 0) + number
    digest = hashlib.sha256(repr(found).encode()).hexdigest()
    context.stop()
    print(json.dumps({"right": found == sorted(expected.items()), "digest": digest}), flush=True)


if __name__ == "__main__":
    main()
