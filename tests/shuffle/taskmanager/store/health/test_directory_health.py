"""The table of the health of a directory, and how often one that fails again is taken back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.shuffle.taskmanager.store.health.directory_health import (
    GOOD_TO_FORGET,
    GOOD_TO_RETURN,
    MAX_TO_RETURN,
    Change,
    Condition,
    DirectoryHealth,
    Finding,
    HealthState,
)

GOOD, BAD, GONE, UNLOCKED, UNKNOWN = (Finding(condition, "why") for condition in Condition)


def good_until_back(health: DirectoryHealth) -> int:
    """Return how many good probes take a directory back."""
    for number in range(1, 1000):
        if health.take(GOOD) is not Change.NONE:
            return number
    raise AssertionError("it never comes back")


@pytest.mark.parametrize(
    ("state", "finding", "next_state", "change"),
    [
        (HealthState.IN_USE, GOOD, HealthState.IN_USE, Change.NONE),
        (HealthState.IN_USE, BAD, HealthState.OUT, Change.LEAVE_OUT),
        (HealthState.IN_USE, GONE, HealthState.LOST, Change.LOSE),
        (HealthState.OUT, GOOD, HealthState.OUT, Change.NONE),
        (HealthState.OUT, BAD, HealthState.OUT, Change.NONE),
        (HealthState.OUT, GONE, HealthState.LOST, Change.LOSE),
        (HealthState.LOST, GOOD, HealthState.LOST, Change.NONE),
        (HealthState.LOST, BAD, HealthState.LOST, Change.NONE),
        (HealthState.LOST, GONE, HealthState.LOST, Change.NONE),
        (HealthState.IN_USE, UNLOCKED, HealthState.IN_USE, Change.NONE),
        (HealthState.OUT, UNLOCKED, HealthState.OUT, Change.NONE),
        (HealthState.IN_USE, UNKNOWN, HealthState.IN_USE, Change.NONE),
        (HealthState.OUT, UNKNOWN, HealthState.OUT, Change.NONE),
        (HealthState.LOST, UNKNOWN, HealthState.LOST, Change.NONE),
    ],
)
def test_one_probe(state, finding, next_state, change):
    health = DirectoryHealth(state)
    assert health.take(finding) is change
    assert health.state is next_state


@pytest.mark.parametrize("state", [HealthState.IN_USE, HealthState.OUT])
@pytest.mark.parametrize("between", [GOOD, BAD])
def test_a_lock_that_is_missing_twice_in_a_row_ends_it_once(state, between):
    health = DirectoryHealth(state)
    assert health.take(UNLOCKED) is Change.NONE
    health.take(between)
    assert health.take(UNLOCKED) is Change.NONE
    assert health.take(UNKNOWN) is Change.NONE
    assert health.take(UNLOCKED) is Change.STOP
    assert health.take(UNLOCKED) is Change.NONE


@pytest.mark.parametrize(
    ("state", "change"),
    [(HealthState.OUT, Change.TAKE_BACK), (HealthState.LOST, Change.MAKE_ANEW)],
)
def test_good_probes_in_a_row_take_a_directory_back(state, change):
    health = DirectoryHealth(state)
    for _ in range(GOOD_TO_RETURN - 1):
        assert health.take(GOOD) is Change.NONE
    health.take(BAD)
    for _ in range(GOOD_TO_RETURN - 1):
        assert health.take(GOOD) is Change.NONE
    assert health.take(GOOD) is change
    assert health.state is HealthState.IN_USE


def test_one_that_fails_again_and_again_comes_back_more_and_more_slowly():
    health = DirectoryHealth()
    needed = []
    for _ in range(9):
        health.failed()
        needed.append(good_until_back(health))
    assert needed == [3, 6, 12, 24, 48, 96, 192, MAX_TO_RETURN, MAX_TO_RETURN]
    for _ in range(GOOD_TO_FORGET):
        assert health.take(GOOD) is Change.NONE
    health.take(BAD)
    assert good_until_back(health) == GOOD_TO_RETURN


@pytest.mark.parametrize("empty", [False, True])
def test_one_that_could_not_be_used_again_is_tried_later(empty):
    health = DirectoryHealth(HealthState.LOST)
    assert good_until_back(health) == GOOD_TO_RETURN
    health.stays_out(empty=empty)
    assert good_until_back(health) == GOOD_TO_RETURN


@given(st.lists(st.sampled_from([GOOD, BAD, GONE, None]), max_size=60))
def test_what_was_lost_comes_back_empty_only(findings):
    health = DirectoryHealth()
    lost = False
    for finding in findings:
        if finding is None:
            health.failed()
            continue
        change = health.take(finding)
        lost |= change is Change.LOSE
        assert change is not (Change.TAKE_BACK if lost else Change.MAKE_ANEW)
        lost &= change is not Change.MAKE_ANEW
        assert (health.state is HealthState.LOST) == lost
