"""Random plans give the same rows with Sluice as with Spark's own shuffle; `make fuzz-spark`.

``make test`` runs a few; the variables below ask for more. A plan that fails is printed as a
program, with the seed that makes it again.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from tests.spark.plans.frames import frame_plans
from tests.spark.plans.rdds import rdd_plans
from tests.support.processes import ProcessFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.spark.applications import Both
    from tests.spark.plans.plan import Plan

PLANS_VARIABLE = "SLUICE_SPARK_PLANS"
PLANS = int(os.environ.get(PLANS_VARIABLE, "10"))
SECONDS = float(os.environ.get("SLUICE_SPARK_SECONDS", "120"))
"""No plan is begun after this time."""
SEED = int(os.environ.get("SLUICE_SPARK_SEED", "0"))
SHRINK_SECONDS = 400.0
"""Time for hypothesis to find a smaller plan that fails; only in `make fuzz-spark`."""

KINDS: dict[str, tuple[Callable[[], st.SearchStrategy[Plan]], float]] = {
    "frames": (frame_plans, 0.7),
    "rdds": (rdd_plans, 0.3),
}
"""With the share of each."""


def for_each_plan(plans: st.SearchStrategy[Plan], number: int, check: Callable[[Plan], None]):
    """Call ``check`` with that many plans out of the seed; a smaller one is sought if it fails."""
    phases = [Phase.generate, *([Phase.shrink] if PLANS_VARIABLE in os.environ else [])]

    @hypothesis.seed(SEED)
    @hypothesis.settings(
        max_examples=number,
        database=None,
        deadline=None,
        phases=phases,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(plan=plans)
    def run(plan: Plan) -> None:
        check(plan)

    run()


@pytest.mark.timeout(SECONDS + SHRINK_SECONDS)
@pytest.mark.parametrize("kind", KINDS)
def test_random_plans(both: Both, kind: str):
    plans, share = KINDS[kind]
    ends = time.monotonic() + SECONDS * share
    done: list[Plan] = []
    failed = False

    def check(plan: Plan) -> None:
        nonlocal failed
        if not failed and (plan in done or time.monotonic() > ends):
            return
        done.append(plan)
        try:
            problems = both.compare("plan", **plan.parameters()).differences
        except ProcessFailed as error:
            problems = [str(error)]
        if problems:
            failed = True
            told = "\n".join(problems)
            pytest.fail(f"seed {SEED}, {kind}: {told}\n\n{plan.snippet()}", pytrace=False)

    before = both.moved()
    for_each_plan(plans(), round(PLANS * share), check)
    print(f"{len(done)} plans of {kind}, seed {SEED}")
    assert done
    assert (both.moved() - before).written_bytes > 0
