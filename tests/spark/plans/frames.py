"""Random plans of the DataFrame API. Every step gives the columns k, v (long) and t (string).

What Spark leaves open must not show: no sums of floats, no row numbers over ties that differ
elsewhere, no limit without a total order, nothing that depends on which partition a row is in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from hypothesis import strategies as st

from tests.spark.plans.plan import MAX_ROWS, MODULUS, Data, Plan, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.spark.plans.plan import Draw

    Step: TypeAlias = Callable[[Draw, Source, Data], Data]

SCHEMA = "k long, v long, t string"
COLUMNS = '"k", "v", "t"'
KEYS = (
    'F.col("id") % 7',
    'F.col("id")',
    'F.when(F.col("id") % 10 < 8, 3).otherwise(F.col("id") % 50)',
    'F.when(F.col("id") % 5 != 0, F.col("id") % 11)',
    'F.lit(None).cast("long")',
    'F.abs(F.xxhash64("id") % 31)',
)
VALUES = (
    'F.col("id") * 13 % 101 - 50',
    'F.when(F.col("id") % 3 != 0, F.col("id"))',
    "F.lit(1)",
    f'F.xxhash64("id") % {MODULUS}',
)
TEXTS = (
    'F.hex(F.col("id") % 40)',
    'F.when(F.col("id") % 4 != 0, F.lit("grüße")).otherwise("")',
    'F.lit(None).cast("string")',
    'F.sha2(F.hex("id"), 256)',
    'F.repeat(F.hex(F.col("id") % 40), 300)',
)
_SHORT_TEXT = 'F.when(F.length("t") > 99, F.sha2(F.col("t"), 256)).otherwise(F.col("t")).alias("t")'


@st.composite
def frame_plans(draw: Draw) -> Plan:
    """Plans of two to six steps, with settings that bring out other physical plans."""
    source = Source()
    frame = _chain(draw, source, draw(st.integers(2, 6)))
    short = f'{frame.name}.select("k", "v", {_SHORT_TEXT})'
    if draw(st.booleans()):
        ordered = draw(st.sampled_from([f"{COLUMNS}", '"t", F.desc("v"), "k"']))
        rows = f"[(place, *row) for place, row in enumerate({short}.orderBy({ordered}).collect())]"
    else:
        rows = f"[tuple(row) for row in {short}.collect()]"
    return Plan(draw(_settings()), (*source.lines, f"rows = {rows}"))


@st.composite
def _settings(draw: Draw) -> dict[str, str]:
    adaptive = {
        "spark.sql.adaptive.enabled": draw(st.sampled_from(["true", "true", "false"])),
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": draw(st.sampled_from(["64m", "8k"])),
        "spark.sql.adaptive.coalescePartitions.parallelismFirst": draw(_flag()),
        "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": draw(
            st.sampled_from(["256m", "2k"])
        ),
        "spark.sql.adaptive.forceOptimizeSkewedJoin": draw(_flag()),
    }
    return adaptive | {
        "spark.sql.shuffle.partitions": str(draw(st.sampled_from([1, 3, 8, 16]))),
        "spark.sql.autoBroadcastJoinThreshold": draw(st.sampled_from(["-1", "-1", "10m"])),
        "spark.sql.join.preferSortMergeJoin": draw(_flag()),
    }


def _flag() -> st.SearchStrategy[str]:
    return st.sampled_from(["true", "false"])


def _chain(draw: Draw, source: Source, steps: int) -> Data:
    frame = draw(st.sampled_from(_BEGINNINGS))(draw, source)
    for _ in range(steps):
        frame = draw(st.sampled_from(STEPS))(draw, source, frame)
    return frame


# ---- where rows come from -----------------------------------------------------------------------


def _range(draw: Draw, source: Source) -> Data:
    rows, maps = draw(st.sampled_from([700, 2000, 700, 2000, 40, 0, 1])), draw(st.integers(1, 6))
    columns = [
        f'({draw(st.sampled_from(choices))}).alias("{name}")'
        for name, choices in (("k", KEYS), ("v", VALUES), ("t", TEXTS))
    ]
    few = draw(st.sampled_from(["", "", f'.where("id < {rows // 7}")']))  # leaves empty partitions
    return source.data(
        f"spark.range(0, {rows}, 1, {maps}){few}.select(\n    " + ",\n    ".join(columns) + ",\n)",
        rows,
    )


def _literal(draw: Draw, source: Source) -> Data:
    small = st.none() | st.integers(-3, 9)
    text = st.none() | st.sampled_from(["", "a", "B", "ä", "long" * 20])
    rows = draw(st.lists(st.tuples(small, small, text), max_size=12))
    return source.data(f'spark.createDataFrame({rows!r}, "{SCHEMA}")', len(rows))


_BEGINNINGS = (_range, _range, _range, _range, _literal)


# ---- steps --------------------------------------------------------------------------------------


def _plain(pattern: str) -> Step:
    """A step that takes away rows or keeps their number; ``{0}`` is the frame."""

    def step(draw: Draw, source: Source, frame: Data) -> Data:
        return source.data(pattern.replace("{0}", frame.name), frame.most_rows)

    return step


def _aggregate(draw: Draw, source: Source, frame: Data) -> Data:
    by = draw(st.sampled_from([("k",), ("t",), ("k", "t"), ()]))
    grouping = draw(st.sampled_from(["groupBy", "groupBy", "rollup", "cube"])) if by else "groupBy"
    total = draw(
        st.sampled_from(
            [f'F.sum("v") % {MODULUS}', 'F.count("*")', 'F.countDistinct("v", "t")', 'F.max("v")']
        )
    )
    texts = ['F.max("t")', 'F.sha2(F.concat_ws(",", F.sort_array(F.collect_set("t"))), 256)']
    columns = [f'({total}).cast("long").alias("v")']
    if "k" not in by:
        columns.append('F.min("k").alias("k")')
    if "t" not in by:
        columns.append(f'{draw(st.sampled_from(texts))}.alias("t")')
    keys = ", ".join(f'"{key}"' for key in by)
    return source.data(
        f"{frame.name}.{grouping}({keys}).agg({', '.join(columns)}).select({COLUMNS})",
        min(MAX_ROWS, 4 * frame.most_rows + 1),
    )


def _join(draw: Draw, source: Source, frame: Data) -> Data:
    kind = draw(st.sampled_from(["inner", "left", "right", "full", "left_semi", "left_anti"]))
    right = _chain(draw, source, draw(st.integers(0, 1)))
    if frame.most_rows * right.most_rows > MAX_ROWS:
        right = _one_per_key(source, right)
    most = min(MAX_ROWS, frame.most_rows + right.most_rows)
    if frame.most_rows * right.most_rows <= MAX_ROWS:
        most = max(most, frame.most_rows * right.most_rows)
    hint = draw(st.sampled_from(["", "", '.hint("merge")', '.hint("shuffle_hash")']))
    on = draw(st.sampled_from(["l.k = r.k", "l.k <=> r.k", "l.k = r.k AND l.v <= r.v"]))
    left = f'{frame.name}.alias("l")'
    joined = f'{left}.join({right.name}.alias("r"){hint}, F.expr("{on}"), "{kind}")'
    if kind in ("left_semi", "left_anti"):
        return source.data(f'{joined}.select("l.k", "l.v", "l.t")', frame.most_rows)
    value = f'(F.coalesce("l.v", F.lit(3)) - F.coalesce("r.v", F.lit(5))) % {MODULUS}'
    return source.data(
        f'{joined}.select(\n    F.coalesce("l.k", "r.k").alias("k"), ({value}).alias("v"),'
        '\n    F.concat_ws("-", F.substring("l.t", 1, 50), F.substring("r.t", 1, 50)).alias("t"),'
        "\n)",
        most,
    )


def _one_per_key(source: Source, frame: Data) -> Data:
    return source.data(
        f'{frame.name}.groupBy("k").agg(F.max("v").alias("v"), F.min("t").alias("t"))',
        frame.most_rows,
    )


def _set_operation(draw: Draw, source: Source, frame: Data) -> Data:
    right = _chain(draw, source, draw(st.integers(0, 1)))
    operation = draw(
        st.sampled_from(["union", "unionByName", "intersect", "intersectAll", "subtract"])
        | st.just("exceptAll")
    )
    most = frame.most_rows + right.most_rows
    if most > MAX_ROWS:
        operation = "subtract"
        most = frame.most_rows
    return source.data(f"{frame.name}.{operation}({right.name})", most)


def _repartition(draw: Draw, source: Source, frame: Data) -> Data:
    number = draw(st.sampled_from([1, 2, 5, 9]))
    how = draw(
        st.sampled_from(
            [
                f"repartition({number})",
                f'repartition({number}, "k")',
                f'repartition({number}, "k", "t")',
                f'repartitionByRange({number}, "v", "k")',
                f'repartitionByRange({number}, F.desc("t"))',
                f"coalesce({number})",
                'hint("rebalance")',
                'repartition("t")',
                "",
            ]
        )
    )
    if how:
        return source.data(f"{frame.name}.{how}", frame.most_rows)
    # PySpark 3.5 takes no column in hint().
    query = "SELECT /*+ REBALANCE(k) */ * FROM {frame}"
    return source.data(f'spark.sql("{query}", frame={frame.name})', frame.most_rows)


def _window(draw: Draw, source: Source, frame: Data) -> Data:
    by = draw(st.sampled_from(['"k"', '"t"', 'F.col("v") % 5']))
    window = f'Window.partitionBy({by}).orderBy("v", "k", "t")'
    function = draw(
        st.sampled_from(
            [
                "F.row_number().over({0})",
                "F.dense_rank().over({0})",
                f'F.sum("v").over({{0}}) % {MODULUS}',
                'F.lag("v", 2).over({0})',
                'F.max("v").over({0}.rowsBetween(-3, 0))',
            ]
        )
    ).replace("{0}", window)
    return source.data(
        f'{frame.name}.select("k", ({function}).cast("long").alias("v"), "t")', frame.most_rows
    )


def _limit(draw: Draw, source: Source, frame: Data) -> Data:
    count = draw(st.sampled_from([0, 5, 300]))
    return source.data(f"{frame.name}.orderBy({COLUMNS}).limit({count})", count)


def _explode(draw: Draw, source: Source, frame: Data) -> Data:
    if frame.most_rows * 4 > MAX_ROWS:
        frame = _limit(draw, source, frame)
    explode = draw(st.sampled_from(["explode", "explode_outer"]))
    array = 'F.when(F.col("v") % 4 != 0, F.sequence(F.lit(0).cast("long"), F.abs(F.col("v") % 4)))'
    return source.data(
        f'{frame.name}.select("k", F.{explode}({array}).alias("v"), "t")',
        4 * frame.most_rows,
    )


def _python(pattern: str) -> Step:
    """A step with a Python function, whose definition comes before it."""
    definition, expression = pattern.split("\n---\n")

    def step(draw: Draw, source: Source, frame: Data) -> Data:
        if definition not in source.lines:
            source.lines.append(definition)
        return source.data(expression.replace("{0}", frame.name), frame.most_rows)

    return step


_UDF = f"""\
twice = F.udf(lambda value: None if value is None else value * 2 % {MODULUS}, "long")
---
{{0}}.select("k", twice("v").alias("v"), "t")"""

_MAP_IN_PANDAS = """\
def next_value(batches):
    for batch in batches:
        yield batch.assign(v=batch["v"] + 1)
---
{0}.mapInPandas(next_value, "k long, v long, t string")"""

_APPLY_IN_PANDAS = f"""\
def one_of_group(group):
    total = int(group["v"].fillna(0).sum()) % {MODULUS}
    text = max((text for text in group["t"] if isinstance(text, str)), default=None)
    texts = pd.Series([text], dtype=object)  # else PySpark fails where pandas takes None for a str
    return pd.DataFrame({{"k": group["k"].iloc[:1].to_numpy(), "v": [total], "t": texts}})
---
{{0}}.groupBy("k").applyInPandas(one_of_group, "k long, v long, t string")"""

_MAP_OF_RDD = """\
def swapped(row):
    return (row.v, row.k, row.t)
---
spark.createDataFrame({0}.rdd.map(swapped), "k long, v long, t string")"""

STEPS: Sequence[Step] = (
    _aggregate,
    _aggregate,
    _aggregate,
    _join,
    _join,
    _join,
    _set_operation,
    _set_operation,
    _repartition,
    _repartition,
    _repartition,
    _window,
    _window,
    _limit,
    _explode,
    _plain("{0}.distinct()"),
    _plain('{0}.where("k > 2 OR k IS NULL")'),
    _plain('{0}.where("v < -1000000")'),
    _python(_UDF),
    _python(_MAP_IN_PANDAS),
    _python(_APPLY_IN_PANDAS),
    _python(_MAP_OF_RDD),
)
