"""NaN and infinity are refused as options."""

from __future__ import annotations

import pytest

from tests.cli.rig import NOWHERE, run


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "NaN"])
@pytest.mark.parametrize(
    "command",
    [
        ("top", NOWHERE, "--interval"),
        ("drain", NOWHERE, "--wait"),
        ("bench", "disk", "--seconds"),
    ],
    ids=lambda command: command[0],
)
def test_number_that_is_not_finite_is_wrong_usage(command, number):
    result = run(*command, number)
    assert result.exit_code == 2
    assert "is not a finite number" in result.output or "is not in the range" in result.output
    assert result.stdout == ""
