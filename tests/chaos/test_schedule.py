"""The schedule of faults: what follows from a seed, and what never happens at the same time."""

from __future__ import annotations

import itertools

import pytest

from tests.chaos.schedule import MEMORY_TIERS, SPARK_CHOICES, Kind, schedule, surroundings

HOSTS = ("127.0.0.1", "127.0.0.2")


def test_the_same_seed_gives_the_same_schedule():
    assert schedule(7, 240.0, HOSTS) == schedule(7, 240.0, HOSTS)
    assert schedule(7, 240.0, HOSTS) != schedule(8, 240.0, HOSTS)


def test_a_longer_run_begins_as_a_shorter_one():
    short, long = schedule(7, 60.0, HOSTS), schedule(7, 240.0, HOSTS)
    assert [action for action in long if action.end_seconds <= 60.0][: len(short)] == short


@pytest.mark.parametrize("single_losses", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_every_kind_happens_and_all_ends_in_time(seed: int, single_losses: bool):
    actions = schedule(seed, 240.0, HOSTS, single_losses=single_losses)
    assert {action.kind for action in actions} == set(Kind)
    assert {action.host for action in actions} == set(HOSTS)
    assert max(action.end_seconds for action in actions) <= 240.0
    assert all(action.kind.instant == (action.seconds == 0) for action in actions)


@pytest.mark.parametrize("seed", range(20))
def test_one_taskmanager_at_a_time_is_in_trouble(seed: int):
    for of_executor in (True, False):
        series = [a for a in schedule(seed, 600.0, HOSTS) if a.kind.of_executor is of_executor]
        for earlier, later in itertools.pairwise(series):
            assert earlier.end_seconds < later.at_seconds


def test_settings_follow_from_the_seed_and_each_choice_is_made():
    assert surroundings(7) == surroundings(7)
    some = [surroundings(seed) for seed in range(30)]
    assert {each.memory_tier for each in some} == set(MEMORY_TIERS)
    for key, choices in SPARK_CHOICES.items():
        assert {each.spark[key] for each in some} == set(choices)


def test_a_kind_that_cannot_be_had_changes_no_other():
    everything = schedule(7, 240.0, HOSTS)
    without = schedule(7, 240.0, HOSTS, {Kind.FILL_DISK})
    assert without == [action for action in everything if action.kind is not Kind.FILL_DISK]
    assert without != everything


@pytest.mark.parametrize("seed", range(20))
def test_with_single_losses_silent_damage_comes_last_and_to_one_host(seed: int):
    actions = schedule(seed, 240.0, HOSTS, single_losses=True)
    of_taskmanagers = [action for action in actions if not action.kind.of_executor]
    silent = [action for action in of_taskmanagers if action.kind.silent]
    assert of_taskmanagers[-len(silent) :] == silent
    assert len({action.kind for action in silent}) == len(silent)
    assert len({action.host for action in silent}) == 1
