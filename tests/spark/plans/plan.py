"""A plan: a small Spark job written by a generator, kept as the source text that runs.

So what failed is what is printed, and can be pasted into a file and run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

MAX_ROWS = 20_000
"""No step of a plan makes more; joins of skewed inputs would otherwise."""

MODULUS = 1_000_003
"""Values stay below it, so that no sum of sums overflows."""

_IMPORTS = """\
import pandas as pd
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F
"""
_SESSION = "spark = SparkSession.builder.getOrCreate()\n"

T = TypeVar("T")


class Draw(Protocol):
    """The function that hypothesis gives to a composite strategy, to draw values with."""

    def __call__(self, strategy: SearchStrategy[T]) -> T:
        """Choose a value."""


@dataclass(frozen=True, slots=True)
class Data:
    """A data set of a plan: the variable that holds it, and a bound on its rows."""

    name: str
    most_rows: int


@dataclass(slots=True)
class Source:
    """The lines of a plan while it is being written."""

    lines: list[str] = field(default_factory=list)

    def data(self, expression: str, most_rows: int) -> Data:
        """Add a line that gives a new variable this value."""
        name = f"data{len(self.lines)}"
        self.lines.append(f"{name} = {expression}")
        return Data(name, most_rows)


@dataclass(frozen=True, slots=True)
class Plan:
    """A job: SQL settings, and source text that leaves its result in ``rows``."""

    settings: dict[str, str]
    lines: tuple[str, ...]

    @property
    def source(self) -> str:
        """Return the source of the plan; it needs a session named ``spark``."""
        return "\n".join([_IMPORTS, *self.lines, ""])

    def snippet(self) -> str:
        """A whole program."""
        settings = [f'spark.conf.set("{key}", "{value}")' for key, value in self.settings.items()]
        last = "print(*sorted(rows, key=repr), sep='\\n')"
        return "\n".join([_IMPORTS, _SESSION, *settings, "", *self.lines, last, ""])

    def parameters(self) -> dict[str, Any]:
        """Return the arguments of the job ``plan``."""
        return {"settings": self.settings, "source": self.source}

    def __repr__(self) -> str:
        return f"<plan of {len(self.lines)} lines>"  # its text is printed as a program
