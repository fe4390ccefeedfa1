"""The figures that bench-growth makes of its runs."""

from __future__ import annotations

import pytest

from benchmarks.growth import Cost, Shape, exponent, report, series


def cost(messages: float, taskmanager: float, tasks: float) -> Cost:
    return Cost(messages, 10 * messages, 0, 0, 0, taskmanager, tasks)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_exponent_is_that_of_a_power(power: float):
    assert exponent([1, 2, 4], [3 * size**power for size in (1, 2, 4)]) == pytest.approx(power)


def test_each_size_is_doubled_alone():
    assert series(10) == {
        "maps": [Shape(10, 10), Shape(20, 10), Shape(40, 10)],
        "reducers": [Shape(10, 10), Shape(10, 20), Shape(10, 40)],
        "bytes": [Shape(10, 10, 1), Shape(10, 10, 2), Shape(10, 10, 4)],
    }


def test_figures_are_fitted_to_medians():
    runs = []
    for noise in (0.9, 1.0, 1.7):
        for shapes in series(10).values():
            runs += [
                (each, cost(0, noise * each.maps, noise * each.maps * each.reducers**2))
                for each in shapes
            ]
    runs += [(Shape(side, side), cost(5 * side, 1, 1)) for side in (50, 100)]
    figures = report(runs, 10, (50, 100, 200), "4.3.0").figures
    assert figures["exponent_reducers"] == pytest.approx(2, abs=0.02)
    assert figures["exponent_maps"] == pytest.approx(1)
    assert figures["exponent_bytes"] == pytest.approx(0)
    assert figures["taskmanager_exponent_reducers"] == pytest.approx(0)
    assert figures["exponent_messages"] == pytest.approx(1)
    assert figures["messages_100"] == 500
    assert "messages_200" not in figures
