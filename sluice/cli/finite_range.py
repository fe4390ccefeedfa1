"""The type of options that are numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Sequence


class FiniteRange(click.FloatRange):
    """A number in a range; NaN and infinity, which are in any range for click, are refused."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read a number."""
        number: float = super().convert(value, param, ctx)
        require_finite([number], param, ctx)
        return number


def require_finite(
    numbers: Sequence[float], param: click.Parameter | None, ctx: click.Context | None
) -> None:
    """Refuse NaN and infinity.

    Raises:
        click.BadParameter: One of the numbers is not finite.
    """
    for number in numbers:
        if not math.isfinite(number):
            raise click.BadParameter(f"{number} is not a finite number", ctx, param)
