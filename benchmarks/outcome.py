"""The findings of the demo about each job, their table, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.eventlog import ShuffleUse
    from tests.support.metrics import Moved

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """One job, run with Spark's own shuffle and with Sluice.

    Attributes:
        name: The job.
        rows: Rows of its result.
        differences: Differences of the two results; empty when they are equal.
        own_seconds: Wall time with Spark's own shuffle.
        sluice_seconds: Wall time with Sluice.
        moved: Bytes that the TaskManagers moved for the job.
        spark: Bytes that Spark's tasks reported with Sluice as the shuffle.
    """

    name: str
    rows: int
    differences: tuple[str, ...]
    own_seconds: float
    sluice_seconds: float
    moved: Moved
    spark: ShuffleUse

    @property
    def accounts_agree(self) -> bool:
        """Whether Spark and the TaskManagers counted the same bytes, each way."""
        return (
            self.spark.bytes_written == self.moved.written_bytes
            and self.spark.bytes_read == self.moved.read_bytes
        )


def problems(outcomes: Sequence[JobOutcome], spark_total: ShuffleUse, moved: Moved) -> list[str]:
    """Return the reasons why the demo has failed; empty when it has not.

    Args:
        outcomes: The jobs.
        spark_total: Shuffle use of the Sluice application over all job groups.
        moved: All bytes that the TaskManagers moved for that application.
    """
    found = [
        f"{outcome.name}: results differ: {difference}"
        for outcome in outcomes
        for difference in outcome.differences
    ]
    for outcome in outcomes:
        found += _account_problems(outcome.name, outcome.spark, outcome.moved)
    found += _account_problems("the whole application", spark_total, moved)
    if moved.written_bytes == 0 or moved.read_bytes == 0:
        found.append("no shuffle byte went through the TaskManagers")
    return found


def table(outcomes: Sequence[JobOutcome]) -> Table:
    """Return the table, with a row per job and a row of totals."""
    result = Table(title="The same jobs with Spark's own shuffle and with Sluice")
    result.add_column("query")
    result.add_column("rows", justify="right")
    result.add_column("results", justify="center")
    for column in (
        "Spark s",
        "Sluice s",
        "MiB written",
        "MiB read",
        "of them\nremote",
    ):
        result.add_column(column, justify="right")
    result.add_column("Spark counts\nthe same", justify="center")
    result.add_column("buffers\nlocal", justify="right")
    result.add_column("buffers\nremote", justify="right")
    for outcome in outcomes:
        result.add_row(*_cells(outcome))
    result.add_section()
    result.add_row(*_total_cells(outcomes))
    return result


def _account_problems(name: str, spark: ShuffleUse, moved: Moved) -> list[str]:
    accounts = (
        ("written", spark.bytes_written, moved.written_bytes),
        ("read", spark.bytes_read, moved.read_bytes),
    )
    return [
        f"{name}: by Spark's count {by_spark} bytes of shuffle were {verb}, by the TaskManagers'"
        f" {by_us} ({by_us - by_spark:+d})"
        for verb, by_spark, by_us in accounts
        if by_spark != by_us
    ]


def _cells(outcome: JobOutcome) -> list[str]:
    return [
        outcome.name,
        str(outcome.rows),
        "[red]DIFFER[/red]" if outcome.differences else "[green]equal[/green]",
        f"{outcome.own_seconds:.1f}",
        f"{outcome.sluice_seconds:.1f}",
        *_moved_cells(outcome.moved),
        "[green]yes[/green]" if outcome.accounts_agree else "[red]NO[/red]",
        str(outcome.moved.read_buffers_local),
        str(outcome.moved.read_buffers_remote),
    ]


def _total_cells(outcomes: Sequence[JobOutcome]) -> list[str]:
    moved = [outcome.moved for outcome in outcomes]
    total = sum(moved[1:], moved[0])
    equal = sum(1 for outcome in outcomes if not outcome.differences)
    agreeing = sum(1 for outcome in outcomes if outcome.accounts_agree)
    return [
        "total",
        str(sum(outcome.rows for outcome in outcomes)),
        f"{equal} of {len(outcomes)}",
        f"{sum(outcome.own_seconds for outcome in outcomes):.1f}",
        f"{sum(outcome.sluice_seconds for outcome in outcomes):.1f}",
        *_moved_cells(total),
        f"{agreeing} of {len(outcomes)}",
        str(total.read_buffers_local),
        str(total.read_buffers_remote),
    ]


def _moved_cells(moved: Moved) -> list[str]:
    amounts = (moved.written_bytes, moved.read_bytes, moved.read_bytes_remote)
    return [f"{amount / _MIB:.2f}" for amount in amounts]
