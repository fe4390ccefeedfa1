"""RDDs through Sluice: five rounds of PageRank, each with a join and a sum by key.

Ranks move along the links of a ring with shortcuts. Their sum must stay the number of pages. RDDs
of Python shuffle pickled bytes, which Sluice's own writer takes; `reduceByKey` adds up in Python
before it shuffles.

    sluice submit -- examples/spark/pagerank_rdd.py
    sluice submit --endpoints host1:7337,host2:7337 -- examples/spark/pagerank_rdd.py --pages 100000
"""

import argparse
import math
from collections.abc import Iterable, Iterator
from operator import add

from pyspark import RDD, SparkContext

DAMPING = 0.85


def links_of(page: int, pages: int) -> tuple[int, list[int]]:
    """Return a page and the pages that it links to: the next one, and one or more far away."""
    far = [(page * factor) % pages for factor in range(2, 3 + page % 3)]
    return page, [(page + 1) % pages, *far]


def shares(linked: tuple[int, tuple[Iterable[int], float]]) -> Iterator[tuple[int, float]]:
    """Divide the rank of a page among the pages that it links to."""
    _, (targets, rank) = linked
    found = list(targets)
    for target in found:
        yield target, rank / len(found)


def page_ranks(
    context: SparkContext, pages: int, rounds: int, parts: int
) -> RDD[tuple[int, float]]:
    """Return the rank of each page."""
    links = context.range(pages, numSlices=parts).map(lambda page: links_of(page, pages)).cache()
    ranks = links.mapValues(lambda _: 1.0)
    for _ in range(rounds):
        received = links.join(ranks, parts).flatMap(shares).reduceByKey(add, parts)
        # Every page has a link to it: that of the page before.
        ranks = received.mapValues(lambda total: 1 - DAMPING + DAMPING * total)
    return ranks


def main() -> None:
    """Print the pages with the highest ranks, and check the sum of all ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=4)
    arguments = parser.parse_args()
    context = SparkContext(appName="page ranks")
    ranks = page_ranks(context, arguments.pages, arguments.rounds, arguments.partitions).cache()
    for page, rank in ranks.top(3, key=lambda pair: (pair[1], -pair[0])):
        print(f"page {page}: {rank:.3f}")
    total = ranks.values().sum()
    context.stop()
    if not math.isclose(total, arguments.pages, rel_tol=1e-6):
        raise SystemExit(f"The ranks add up to {total}, not to {arguments.pages}")
    print(f"The ranks of {arguments.pages} pages add up to {total:.0f}")


if __name__ == "__main__":
    main()
