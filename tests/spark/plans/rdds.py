"""Random plans of the RDD API. Every step gives pairs of a key (int or None) and an int.

PySpark hashes and combines in Python; what Spark leaves open (the order of values, ties of a sort)
does not show in any step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from hypothesis import strategies as st

from tests.spark.plans.plan import MAX_ROWS, MODULUS, Data, Plan, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.spark.plans.plan import Draw

    Step: TypeAlias = Callable[[Draw, Source, Data], Data]

KEYS = (
    "n % 7",
    "n",
    "3 if n % 10 < 8 else n % 50",
    "None if n % 5 == 0 else n % 11",
    "None",
)
VALUES = ("n * 13 % 101 - 50", "1", f"n * 7919 % {MODULUS}")

_TOTAL_ORDER = "lambda pair: (pair[0] is not None, pair[0] or 0, pair[1])"
_DEFINITIONS = f"""\
def add(left, right):
    return (left + right) % {MODULUS}


def difference(both):
    return ((both[0] or 3) - (both[1] or 5)) % {MODULUS}


def totals(groups):
    return sum((place + 1) * sum(values) for place, values in enumerate(groups)) % {MODULUS}
"""


@st.composite
def rdd_plans(draw: Draw) -> Plan:
    """Plans of two to six steps."""
    source = Source([_DEFINITIONS])
    pairs = _chain(draw, source, draw(st.integers(2, 6)))
    if draw(st.booleans()):
        parts = draw(st.integers(1, 6))
        ordered = f"{pairs.name}.sortBy({_TOTAL_ORDER}, numPartitions={parts})"
        rows = f"[(place, *pair) for place, pair in enumerate({ordered}.collect())]"
    else:
        rows = f"{pairs.name}.collect()"
    return Plan({}, (*source.lines, f"rows = {rows}"))


def _chain(draw: Draw, source: Source, steps: int) -> Data:
    pairs = _parallelize(draw, source)
    for _ in range(steps):
        pairs = draw(st.sampled_from(STEPS))(draw, source, pairs)
    return pairs


def _parallelize(draw: Draw, source: Source) -> Data:
    rows, slices = draw(st.sampled_from([700, 2000, 700, 2000, 40, 0, 1])), draw(st.integers(1, 6))
    key, value = draw(st.sampled_from(KEYS)), draw(st.sampled_from(VALUES))
    return source.data(
        f"spark.sparkContext.parallelize(range({rows}), {slices}).map(lambda n: ({key}, {value}))",
        rows,
    )


def _plain(pattern: str) -> Step:
    """A step that makes no more pairs; ``{0}`` is the RDD, ``{1}`` a number of partitions."""

    def step(draw: Draw, source: Source, pairs: Data) -> Data:
        parts = str(draw(st.integers(1, 7))) if "{1}" in pattern else ""
        text = pattern.replace("{0}", pairs.name).replace("{1}", parts)
        return source.data(text, pairs.most_rows)

    return step


def _join(draw: Draw, source: Source, pairs: Data) -> Data:
    right = _chain(draw, source, draw(st.integers(0, 1)))
    most = pairs.most_rows * right.most_rows
    if most > MAX_ROWS:
        right = source.data(f"{right.name}.reduceByKey(add)", right.most_rows)
        most = min(MAX_ROWS, pairs.most_rows + right.most_rows)
    join = draw(st.sampled_from(["join", "leftOuterJoin", "rightOuterJoin", "fullOuterJoin"]))
    return source.data(
        f"{pairs.name}.{join}({right.name}, {draw(st.integers(1, 7))}).mapValues(difference)",
        max(most, pairs.most_rows + right.most_rows),
    )


def _with_another(pattern: str) -> Step:
    """A step with a second RDD, ``{2}``, that makes no more pairs than both have."""

    def step(draw: Draw, source: Source, pairs: Data) -> Data:
        right = _chain(draw, source, draw(st.integers(0, 1)))
        text = pattern.replace("{0}", pairs.name).replace("{2}", right.name)
        text = text.replace("{1}", str(draw(st.integers(1, 7))))
        return source.data(text, min(MAX_ROWS, pairs.most_rows + right.most_rows))

    return step


def _explode(draw: Draw, source: Source, pairs: Data) -> Data:
    if pairs.most_rows * 3 > MAX_ROWS:
        return source.data(f"{pairs.name}.distinct()", pairs.most_rows)
    return source.data(
        f"{pairs.name}.flatMap(lambda pair: [(pair[0], pair[1] + n) for n in range(pair[1] % 4)])",
        3 * pairs.most_rows,
    )


_IN_PARTITIONS = """\
{0}.map(lambda pair: ((pair[0] or 0, pair[1]), 1)).repartitionAndSortWithinPartitions({1}, \
lambda key: hash(key[0])).mapPartitions(sorted_totals)"""

_SORTED_TOTALS = f"""\
def sorted_totals(pairs):
    last = None
    for (key, value), _ in pairs:
        if last is not None and (key, value) < last:
            raise ValueError(f"{{(key, value)}} comes after {{last}}")
        last = (key, value)
        yield key, value % {MODULUS}
"""


def _sort_within_partitions(draw: Draw, source: Source, pairs: Data) -> Data:
    if _SORTED_TOTALS not in source.lines:
        source.lines.append(_SORTED_TOTALS)
    return _plain(_IN_PARTITIONS)(draw, source, pairs)


STEPS: Sequence[Step] = (
    _join,
    _join,
    _explode,
    _sort_within_partitions,
    _plain("{0}.reduceByKey(add, {1})"),
    _plain("{0}.reduceByKey(add, {1})"),
    _plain("{0}.groupByKey({1}).mapValues(lambda values: totals([values]))"),
    _plain("{0}.groupByKey({1}).mapValues(lambda values: totals([values]))"),
    _plain("{0}.foldByKey(0, add, {1})"),
    _plain("{0}.aggregateByKey(0, add, add, {1})"),
    _plain("{0}.combineByKey(lambda value: value, add, add, {1})"),
    _plain("{0}.distinct({1})"),
    _plain(f"{{0}}.sortBy({_TOTAL_ORDER}, False, {{1}})"),
    _plain(
        f"{{0}}.sortBy({_TOTAL_ORDER}, numPartitions={{1}}).zipWithIndex()"
        ".map(lambda both: (both[0][0], both[1]))"
    ),
    _plain("{0}.map(lambda pair: (pair[0] or 0, pair[1])).sortByKey(numPartitions={1})"),
    _plain("{0}.repartition({1})"),
    _plain("{0}.coalesce({1}, shuffle=True)"),
    _plain("{0}.partitionBy({1})"),
    _plain("{0}.map(lambda pair: (pair[1] % 23, pair[0] or 0))"),
    _plain("{0}.filter(lambda pair: pair[1] % 3 != 0)"),
    _with_another("{0}.union({2}).distinct({1})"),
    _with_another("{0}.union({2}).reduceByKey(add, {1})"),
    _with_another("{0}.cogroup({2}, {1}).mapValues(totals)"),
    _with_another("{0}.intersection({2})"),
    _with_another("{0}.subtractByKey({2}, {1})"),
)
