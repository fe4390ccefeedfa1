"""Names of objects: short, safe, and different for different things."""

from hypothesis import given
from hypothesis import strategies as st

from sluice.shuffle.names import MapAttemptKey, ShuffleKey
from sluice.shuffle.taskmanager.store.objects.remote_names import (
    manifest_name,
    moved_region,
    name_of_application,
    number_in,
    region_name,
)

applications = st.text(min_size=0, max_size=400)


@given(applications)
def test_a_name_is_one_safe_part(application_id):
    name = name_of_application(application_id)
    assert 0 < len(name) <= 200
    assert name not in (".", "..")
    assert all(each.isascii() and (each.isalnum() or each in "._-=") for each in name)


@given(applications, applications)
def test_different_applications_have_different_names(one, other):
    assert (one == other) == (name_of_application(one) == name_of_application(other))


def test_usual_applications_can_be_recognised():
    assert name_of_application("app-20261124-0007") == "app-20261124-0007"
    assert name_of_application("team/etl") == "team=2Fetl"


@given(st.integers(0, 2**63 - 1))
def test_a_number_is_found_in_the_name_of_its_region(number):
    assert number_in(region_name("app", "0" * 16, number).rpartition("/")[2]) == number
    assert number_in("manifest") is None
    assert number_in("not-a-hex-number") is None


def test_what_moved_lies_below_its_map_output():
    attempt = MapAttemptKey(ShuffleKey("app", 3), 7)
    assert manifest_name(attempt) == "moved/app/3/7/manifest"
    assert moved_region(attempt, "ab", 2) == "moved/app/3/7/ab-2"
