"""How long the tests of a fuzzer go on, and in which bounds."""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING

import hypothesis
from hypothesis import HealthCheck, settings

from sluice.protocol import schema as m
from tests.support.memory_budget import MIB

if TYPE_CHECKING:
    from collections.abc import Callable

FUZZ_SECONDS = float(os.environ.get("SLUICE_FUZZ_SECONDS", "0"))
"""How long all tests together go on; 0: one short round."""

EXAMPLES_A_ROUND = 300 if FUZZ_SECONDS else 40
PATIENCE_SECONDS = 30
MAX_GROWTH_BYTES = 64 * MIB
"""Resident memory that a run may take beside that at its beginning, however long it is. Within a
minute it takes 22 MiB, of which 14 are there after the first round: modules of hypothesis, and what
the C library keeps for its next use."""

SHARE = 1 / 9
"""Share of each test that calls :func:`run_rounds` in the time."""

OF_ALL = {m.ErrorResponse, m.CloseRequest, m.Ping, m.Pong}
"""Messages of every connection; handlers get the last two never."""


def run_once(test: Callable[[], None], examples: int, seed: int = 1) -> None:
    """Run a hypothesis test."""
    hypothesis.seed(seed)(_bounded(test, examples))()


def run_rounds(test: Callable[[], None]) -> None:
    """Run a hypothesis test once, or again and again with other seeds until the time is over."""
    end = time.monotonic() + FUZZ_SECONDS * SHARE
    bounded = _bounded(test, EXAMPLES_A_ROUND)  # hypothesis allows this once for a test
    while True:
        number = random.SystemRandom().getrandbits(32) if FUZZ_SECONDS else 1
        hypothesis.seed(number)(bounded)()
        if time.monotonic() >= end:
            return


def _bounded(test: Callable[[], None], examples: int) -> Callable[[], None]:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )(test)
