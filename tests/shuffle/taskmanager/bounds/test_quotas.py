"""The quotas that follow from the settings."""

from __future__ import annotations

import pytest

from sluice.shuffle.taskmanager.bounds.accounts import Resource
from sluice.shuffle.taskmanager.bounds.quotas import QuotaConfig, Quotas, parse_override
from sluice.shuffle.taskmanager.config.taskmanager_config import ConfigError, load

WHOLE = 1000
WHOLES = dict.fromkeys(Resource, WHOLE)
TENANT = f"@bbbbbbbb{'a' * 16}"
NO_SUBJECT = f"aaaaaaaa{'b' * 16}"
"""The namespace of an application of the secret's owner."""


def limit(resource: Resource, application_id: str = "app", **settings) -> int | None:
    return Quotas(QuotaConfig(**settings), WHOLES).limits_of(application_id)[resource]


def test_percentages_are_of_the_whole():
    assert limit(Resource.DISK_TIER_BYTES, quota_disk_tier_bytes="25 %") == WHOLE // 4
    assert limit(Resource.DISK_TIER_BYTES, quota_disk_tier_bytes="25%") == WHOLE // 4
    assert limit(Resource.DISK_TIER_BYTES, quota_disk_tier_bytes="1 KiB") == 1024
    assert limit(Resource.NETWORK_SEGMENTS, quota_network_segments=7) == 7


def test_a_percentage_of_little_is_at_least_one():
    quotas = Quotas(QuotaConfig(quota_network_segments="1 %"), dict.fromkeys(Resource, 3))
    assert quotas.limits_of("app")[Resource.NETWORK_SEGMENTS] == 1


def test_none_is_no_quota():
    assert limit(Resource.CHANNELS, quota_channels="none") is None
    assert limit(Resource.MEMORY_TIER_BYTES, quota_memory_tier_bytes="none") is None


def test_the_first_override_that_matches_and_names_a_resource_decides():
    settings = {
        "quota_overrides": (
            "etl-*: channels = 10",
            "etl-big: channels = 20, disk_tier_bytes = 50 %",
            "*: map_outputs = none",
        )
    }
    assert limit(Resource.CHANNELS, "etl-big", **settings) == 10
    assert limit(Resource.DISK_TIER_BYTES, "etl-big", **settings) == WHOLE // 2
    assert limit(Resource.MAP_OUTPUTS, "etl-big", **settings) is None
    assert limit(Resource.CHANNELS, "adhoc", **settings) == QuotaConfig().quota_channels


def test_an_override_is_for_the_name_without_its_namespace():
    settings = {"quota_overrides": "etl: channels = 10"}
    assert limit(Resource.CHANNELS, f"etl@{NO_SUBJECT}", **settings) == 10
    assert limit(Resource.CHANNELS, "etl@short", **settings) == QuotaConfig().quota_channels


@pytest.mark.parametrize(
    ("subject", "most"), [("alice", 10), ("bob", 30), ("malice", 30), ("", 30)]
)
def test_quotas_are_those_of_a_subject_and_its_applications_have_none(subject, most):
    """Whoever has a token names applications as it likes."""
    quotas = Quotas(QuotaConfig(quota_overrides="alice: channels = 10", quota_channels=30), WHOLES)
    assert quotas.limits_of(TENANT, subject)[Resource.CHANNELS] == most
    for name in ("app-1", "alice"):
        assert quotas.limits_of(f"{name}{TENANT}", subject)[Resource.CHANNELS] is None


@pytest.mark.parametrize(
    ("subject", "name", "most"),
    [
        ("alice", "app-1", 10),
        ("alice", "nightly", 20),
        ("bob", "app-1", None),
        ("bob", "alice/app-1", None),  # a name that anybody may choose
        ("malice", "app-1", None),
    ],
)
def test_an_override_with_a_slash_is_for_each_application_of_a_subject(subject, name, most):
    overrides = ("*/nightly: channels = 20", "alice/*: channels = 10")
    quotas = Quotas(QuotaConfig(quota_overrides=overrides, quota_channels=30), WHOLES)
    assert quotas.limits_of(f"{name}{TENANT}", subject)[Resource.CHANNELS] == most
    assert quotas.limits_of(TENANT, subject)[Resource.CHANNELS] == 30
    assert quotas.limits_of("alice/app-1")[Resource.CHANNELS] == 30


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("etl", '"etl" is not an override'),
        ("etl: speed = 3", 'names the resource "speed": use one of memory_tier_bytes'),
        ("etl: channels", 'names the resource "channels": use one of'),
        ("etl: channels = 5 %", "channels = 5 %: must be a whole number of at least 1"),
        ("etl: channels = 0", "channels = 0: must be a whole number of at least 1"),
        ("etl: disk_tier_bytes = 0 %", "must be between 1 % and 100 %"),
        ("etl: disk_tier_bytes = 101 %", "must be between 1 % and 100 %"),
        ("etl: disk_tier_bytes = 4 GB", '"GB" is not a unit of size'),
    ],
)
def test_a_wrong_override_is_refused_with_value_and_remedy(rule, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        parse_override(rule)
    with pytest.raises(ConfigError) as caught:
        load(None, {"SLUICE_QUOTA_OVERRIDES": rule}, {})
    assert "quota_overrides" in str(caught.value)
    assert message.split(":")[0] in str(caught.value)


def test_several_overrides_are_given_in_a_variable():
    config = load(None, {"SLUICE_QUOTA_OVERRIDES": "a: channels = 1; b: channels = 2"}, {})
    assert config.quotas.quota_overrides == ("a: channels = 1", "b: channels = 2")


@pytest.mark.parametrize("value", ["0 %", "200 %", "-1", "many", 0])
def test_a_wrong_share_is_refused(value):
    with pytest.raises(ConfigError) as caught:
        load(None, {}, {"quota_disk_tier_bytes": value})
    assert "quota_disk_tier_bytes" in str(caught.value)
