"""The quotas of tenants: settings, and the resulting limits on this host.

Quotas are those of a tenant: of all applications of a token's subject together, or of an
application without a token. An override is ``PATTERN: RESOURCE = VALUE, ...``. Patterns are shell
patterns with ``*``, ``?`` and ``[abc]`` for subjects, or for names of applications without a token.
A pattern ``SUBJECT/NAME`` sets quotas for single applications, within those of their tenant. For
each resource, the first matching override that names it applies.

    alice: disk_tier_bytes = 20 %, channels = 10000
    alice/adhoc-*: map_outputs = 1000
"""

from __future__ import annotations

import fnmatch
import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from ....protocol.identity import plain_name, tenant_of
from ....transport.settings import NONE_ALLOWED, Bytes, Count, Settings, parse_size, split_rules
from .accounts import Resource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .accounts import Limits

_WHOLE: Final = 100
_PERCENT: Final = re.compile(r"\s*([0-9]+)\s*%\s*")
_RULE: Final = re.compile(r"(?P<pattern>[^\s:]+)\s*:\s*(?P<quotas>\S.*)", re.DOTALL)
_FORM: Final = (
    'the form is "PATTERN: RESOURCE = VALUE, ...", such as "alice: disk_tier_bytes = 20 %, '
    'channels = 10000"'
)
_NAMES: Final = {resource.name.lower(): resource for resource in Resource}


def _parse_share(value: object) -> object:
    if value is None:
        return None
    match = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        try:
            return parse_size(value)
        except ValueError as error:
            raise ValueError(f'{error}, or a part of the whole such as "50 %"') from None
    if not 1 <= int(match[1]) <= _WHOLE:
        raise ValueError("must be between 1 % and 100 %")
    return f"{match[1]} %"


Share = Annotated[
    Annotated[int, Field(ge=1)] | str | None, BeforeValidator(_parse_share), NONE_ALLOWED
]
"""An amount, or a percentage of the TaskManager's total; None: no quota."""

Size = Annotated[Annotated[Bytes, Field(ge=1)] | None, NONE_ALLOWED]

Most = Annotated[Annotated[Count, Field(ge=1)] | None, NONE_ALLOWED]
"""A whole number; None: no quota."""


class QuotaConfig(Settings):
    """The most that a subject's applications hold, or one without a token.

    `"none"`: no quota.
    """

    quota_memory_tier_bytes: Share = "100 %"
    """Bytes in the memory tier, or a percentage such as `"50 %"`. Above it, regions go to disk."""

    quota_disk_tier_bytes: Share = "80 %"
    """Bytes on all disks together, or a percentage of their room at the start."""

    quota_network_segments: Share = "50 %"
    """Segments of gates, partitions and reads, or a percentage of the pool."""

    quota_region_areas_bytes: Share = "50 %"
    """Memory shared with producers, or a percentage of `region_areas_bytes`. Above it, producers
    send their regions."""

    quota_connections: Share = "50 %"
    """Connections of producers, consumers and drivers, or a percentage of those that are accepted.
    One is reserved for the driver."""

    quota_open_partitions: Most = 16384
    """Map outputs being written, and pipelined partitions until they are read (HYBRID_FULL: until
    they are released)."""

    quota_channels: Most = 65536
    """Open channels of its reduce tasks, and of other TaskManagers that read from this one."""

    quota_map_outputs: Most = 500_000
    """Committed map outputs. Checked when a map output is opened, not when it is committed."""

    quota_remote_tier_bytes: Share = "100 %"
    """Bytes in the remote tier, or a percentage of `remote_quota_bytes`."""

    quota_metadata_bytes: Size = 512 * 1024 * 1024
    """Bytes kept about its data: the lengths of the blocks of map outputs, in memory and in
    journals, what open gates read, and the TaskManagers that drivers name. Ten million blocks take
    about 80 MB."""

    quota_overrides: Annotated[tuple[str, ...], BeforeValidator(split_rules)] = ()
    """Rules of the form `PATTERN: RESOURCE = VALUE, ...` for the subjects that match, such as
    `alice: disk_tier_bytes = 20 %, channels = 10000`, or for each application of a subject, such as
    `alice/adhoc-*: map_outputs = 1000`; see `docs/operate/limits.md`. A resource is a key above
    without `quota_`. As a flag or variable: separated by semicolons."""

    @field_validator("quota_overrides")
    @classmethod
    def _rules(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for rule in given:
            parse_override(rule)
        return given

    @property
    def usual(self) -> tuple[int | str | None, ...]:
        """Quota of each resource for a tenant without an override."""
        return (
            self.quota_memory_tier_bytes,
            self.quota_disk_tier_bytes,
            self.quota_network_segments,
            self.quota_region_areas_bytes,
            self.quota_connections,
            self.quota_open_partitions,
            self.quota_channels,
            self.quota_map_outputs,
            self.quota_remote_tier_bytes,
            self.quota_metadata_bytes,
        )


@dataclass(frozen=True, slots=True)
class Override:
    """Quotas for the tenants or applications whose names match a pattern."""

    pattern: str
    quotas: Mapping[Resource, int | str | None]

    def applies_to(self, application_id: str, subject: str) -> bool:
        """Return whether these quotas apply to an application or tenant."""
        name = plain_name(application_id)
        if "/" in self.pattern:
            return name != "" and fnmatch.fnmatchcase(f"{subject}/{name}", self.pattern)
        is_tenant = tenant_of(application_id) == application_id
        return is_tenant and fnmatch.fnmatchcase(name or subject, self.pattern)


@functools.lru_cache(maxsize=1024)
def parse_override(text: str) -> Override:
    """Read an override.

    Raises:
        ValueError: The text is not an override; the error has the form and an example.
    """
    match = _RULE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'"{text}" is not an override: {_FORM}')
    quotas: dict[Resource, int | str | None] = {}
    for part in match["quotas"].split(","):
        name, equals, value = (each.strip() for each in part.partition("="))
        resource = _NAMES.get(name)
        if not equals or resource is None:
            raise ValueError(
                f'"{text}" names the resource "{name}": use one of {", ".join(_NAMES)}; {_FORM}'
            )
        quotas[resource] = _parse_value(text, resource, value)
    return Override(match["pattern"], quotas)


def _parse_value(text: str, resource: Resource, value: str) -> int | str | None:
    try:
        quota: int | str | None = getattr(QuotaConfig(**{resource.key: value}), resource.key)
    except ValidationError as error:
        details = error.errors()[0]
        refused = details["type"] == "value_error"
        reason = details["ctx"]["error"] if refused else "must be a whole number of at least 1"
        raise ValueError(f'"{text}": {resource.name.lower()} = {value}: {reason}') from None
    return quota


class Quotas:
    """The limits of every tenant and application on this host.

    Args:
        config: The settings.
        wholes: Total amounts of resources, for percentages. Resources not in it are unlimited, so
            a percentage of them is no limit.
    """

    def __init__(self, config: QuotaConfig, wholes: Mapping[Resource, int]) -> None:
        self._usual = config.usual
        self._overrides = [parse_override(text) for text in config.quota_overrides]
        self._wholes = wholes

    def limits_of(self, application_id: str, subject: str = "") -> Limits:
        """Return the quota of each resource for an application or tenant.

        An application with a tenant has quotas of its own by overrides only.

        Args:
            application_id: Its name, with its namespace if it has one.
            subject: The subject of its token; empty: none, or not known.
        """
        overrides = [each for each in self._overrides if each.applies_to(application_id, subject)]
        is_tenant = tenant_of(application_id) == application_id
        usual = self._usual if is_tenant else (None,) * len(Resource)
        return tuple(self._limit(resource, overrides, usual[resource]) for resource in Resource)

    def _limit(
        self, resource: Resource, overrides: list[Override], usual: int | str | None
    ) -> int | None:
        quota = next(
            (each.quotas[resource] for each in overrides if resource in each.quotas), usual
        )
        if not isinstance(quota, str):
            return quota
        whole = self._wholes.get(resource)
        return None if whole is None else max(1, whole * int(quota.split()[0]) // _WHOLE)
