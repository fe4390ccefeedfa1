"""Charts for the docs: lines over a few named places, one panel for each unit."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

WIDTH_INCHES = 5.0
"""Of each panel."""
HEIGHT_INCHES = 3.4


class Line(NamedTuple):
    """One line: its name, and its value at each place."""

    name: str
    values: Sequence[float]


class Panel(NamedTuple):
    """Lines that share a vertical axis.

    Attributes:
        unit: Unit of that axis.
        lines: The lines.
        logarithmic: Whether the axis is logarithmic; otherwise it begins at 0.
    """

    unit: str
    lines: Sequence[Line]
    logarithmic: bool = False


def draw(target: Path, places: Sequence[str], places_name: str, panels: Sequence[Panel]) -> None:
    """Draw panels side by side into an SVG file, the same bytes for the same values.

    Args:
        target: The file.
        places: Labels along the horizontal axis, evenly spaced.
        places_name: Title of that axis.
        panels: The panels, at least one.
    """
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = target.name
    matplotlib.rcParams["svg.fonttype"] = "none"  # text as text: small, and can be searched
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(WIDTH_INCHES * len(panels), HEIGHT_INCHES), squeeze=False
    )
    for axis, panel in zip(axes[0], panels, strict=True):
        for line in panel.lines:
            axis.plot(places, line.values, marker="o", label=line.name)
        axis.set_xlabel(places_name)
        axis.set_ylabel(panel.unit)
        if panel.logarithmic:
            axis.set_yscale("log")
        else:
            axis.set_ylim(bottom=0)
        axis.grid(visible=True, which="both", alpha=0.3)
        axis.legend()
    figure.tight_layout()
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None}, facecolor="white")
    pyplot.close(figure)
