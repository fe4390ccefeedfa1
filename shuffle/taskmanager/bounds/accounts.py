"""Counts and limits the resources that each application holds on a TaskManager.

An application has one :class:`Account`. Code that allocates something for it (an extent, a channel,
a connection) first charges the amount to the account, and returns it when the thing is freed. What
the applications of a subject hold counts for the account of their tenant too. An application above
its quota or its tenant's gets a :class:`QuotaExceeded`; other tenants are not affected.
"""

import enum
import weakref
from collections.abc import Callable
from typing import Annotated, ClassVar, Final, TypeAlias

import msgspec

from ....protocol.errors import ErrorCode, SluiceError
from ....protocol.identity import plain_name, tenant_of
from ...counters import BoundedCounts
from ...memory import SegmentOwner
from ...metric import Combined, gauge


class Resource(enum.IntEnum):
    """A resource with a quota, set by the key ``quota_`` and its name in lower case."""

    MEMORY_TIER_BYTES = 0
    """Bytes of its extents in the memory tier, including regions not written yet."""
    DISK_TIER_BYTES = 1
    """The same on all disks together."""
    NETWORK_SEGMENTS = 2
    """Segments promised to its gates, partitions and reads."""
    REGION_AREAS_BYTES = 3
    """Bytes of memory shared with its producers."""
    CONNECTIONS = 4
    """Connections of its producers, consumers and drivers."""
    OPEN_PARTITIONS = 5
    """Map outputs that are being written, and pipelined partitions until they are read."""
    CHANNELS = 6
    """Open gates, and channels of gates here and on other TaskManagers that read from here."""
    MAP_OUTPUTS = 7
    """Committed map outputs."""
    REMOTE_TIER_BYTES = 8
    """Bytes of its objects in the remote tier that this TaskManager wrote or serves."""
    METADATA_BYTES = 9
    """Bytes kept about its data: indexes of regions, in memory and in journals, map attempts of
    requests and gates, and places of the bytes that these read."""

    @property
    def key(self) -> str:
        """The key of ``[quotas]`` that sets its quota."""
        return f"quota_{self.name.lower()}"

    @property
    def words(self) -> str:
        """The resource in words, for messages."""
        return self.name.lower().replace("_", " ")


Limits: TypeAlias = tuple[int | None, ...]
"""Quota by resource; None: no quota."""

NO_LIMITS: Final[Limits] = (None,) * len(Resource)

_KEYS: Final = tuple(each.name.lower() for each in Resource)
_NO_AMOUNTS: Final[tuple[int | None, ...]] = (None,) * len(Resource)


class QuotaExceeded(SluiceError):
    """A request exceeds a quota of its application or tenant.

    Args:
        who: Whose quota, in words.
        resource: The requested resource.
        wanted: Amount that it would hold.
        limit: The quota.
        retryable: Whether the request alone fits into the quota, so that it may fit later.
    """

    code = ErrorCode.QUOTA_EXCEEDED
    retryable: bool = False

    def __init__(
        self, who: str, resource: Resource, wanted: int, limit: int, retryable: bool
    ) -> None:
        way_out = (
            "Use another TaskManager, let tasks or shuffles end" if retryable else "Ask for less"
        )
        super().__init__(
            f"{who} is at its quota of {resource.words} on this TaskManager",
            value=wanted,
            limit=limit,
            remedy=f"{way_out}, or raise {resource.key}",
        )
        self.resource = resource
        self.retryable = retryable


class HoldingStatus(msgspec.Struct, frozen=True, gc=False):
    """The holding of one resource by an application."""

    key_fields: ClassVar[tuple[str, ...]] = ("resource",)

    resource: str = ""
    """The end of the key of ``[quotas]``, such as ``channels``."""
    held: int = 0
    quota: int | None = None
    """Maximum amount that it or all applications of its subject may hold; None: no quota."""
    subject_held: int | None = None
    """Amount held by all applications of its subject; None: it has no subject."""
    used_ratio: Annotated[
        float,
        gauge(
            "Largest used part of a quota, over all applications and subjects.",
            "quota_used_ratio",
            by="resource",
            zeros=_KEYS,
            combine="max",
        ),
    ] = 0.0
    """The larger of the used parts of its own quota and its subject's; 0 without a quota."""


class ApplicationStatus(msgspec.Struct, frozen=True, gc=False):
    """One application with data or connections on this TaskManager."""

    key_fields: ClassVar[tuple[str, ...]] = ("application_id",)

    application_id: str = ""
    connections: int = 0
    expires_in_seconds: Annotated[float | None, Combined("max")] = None
    """Time until its data is dropped; None while it has a connection."""
    stored_bytes: int = 0
    holdings: tuple[HoldingStatus, ...] = ()


class Account(SegmentOwner):
    """The resources held by one application, or by a tenant; the owner of its segment pools.

    Made by :meth:`Accounts.of`. It exists as long as it holds anything or is referenced.

    Args:
        accounts: All accounts.
        application_id: The application, or the name of a tenant.
        parent: The account of the application's tenant; None: it is a tenant of its own.

    Attributes:
        parent: The account of the tenant.
        subject: The subject of a tenant; empty: it has none, or no connection has proven it yet.
        holders: Number of a tenant's applications that hold any of a resource, by resource.
    """

    parent: "Account | None"

    def __init__(
        self, accounts: "Accounts", application_id: str, parent: "Account | None" = None
    ) -> None:
        super().__init__(application_id, parent)
        self.application_id: Final = application_id
        self.subject = ""
        self.holders: Final = [0] * len(Resource)
        self._accounts: Final = accounts
        self._limits = NO_LIMITS
        self._held: Final = [0] * len(Resource)
        self._in_use = 0

    @property
    def held(self) -> tuple[int, ...]:
        """Amount held of each resource."""
        return tuple(self._held)

    def status(self) -> tuple[HoldingStatus, ...]:
        """Return the amounts held and the lowest quota of each resource."""
        tenant = self.parent
        subject_amounts = _NO_AMOUNTS if tenant is None else tenant._held
        subject_limits = NO_LIMITS if tenant is None else tenant._limits
        found = []
        for key, held, limit, subject_held, subject_limit in zip(
            _KEYS, self._held, self._limits, subject_amounts, subject_limits, strict=True
        ):
            quota = limit
            ratio = held / limit if limit else 0.0
            if subject_limit is not None and subject_held is not None:
                quota = subject_limit if limit is None else min(limit, subject_limit)
                ratio = max(ratio, subject_held / subject_limit if subject_limit else 0.0)
            found.append(HoldingStatus(key, held, quota, subject_held, ratio))
        return tuple(found)

    @property
    def promised_segments(self) -> int:
        """Segments promised to its pools and requests."""
        return self._held[Resource.NETWORK_SEGMENTS]

    @property
    def limit_segments(self) -> int | None:
        """Its own quota of network segments."""
        return self._limits[Resource.NETWORK_SEGMENTS]

    def check(self, segments: int) -> None:
        """Check that more segments may be promised to a pool of the application.

        Raises:
            QuotaExceeded: They would exceed its quota.
        """
        self.require_room(Resource.NETWORK_SEGMENTS, segments)

    def promise(self, segments: int) -> None:
        """Add to the segments promised to it; a negative number subtracts."""
        if segments > 0:
            self.hold(Resource.NETWORK_SEGMENTS, segments)
        elif segments:
            self.give_back(Resource.NETWORK_SEGMENTS, -segments)

    def set_limits(self, limits: Limits) -> None:
        """Change the quotas. Amounts above a new quota stay held until they are freed."""
        self._limits = limits

    def amount(self, resource: Resource) -> int:
        """Return how much of a resource is held."""
        return self._held[resource]

    def sharers(self, resource: Resource) -> int:
        """Return how many hold any of a resource, always including this one.

        They are the applications of its tenant, or all tenants if it is one.
        """
        holders = (self.parent or self._accounts).holders
        return holders[resource] + (self._held[resource] == 0)

    def has_room(self, resource: Resource, amount: int = 1) -> bool:
        """Return whether the application may hold ``amount`` more."""
        return self._at_quota(resource, amount) is None

    def require_room(self, resource: Resource, amount: int = 1) -> None:
        """Check that the application may hold ``amount`` more, without taking it.

        Raises:
            QuotaExceeded: It may not.
        """
        full = self._at_quota(resource, amount)
        if full is not None:
            raise full.exceeded(resource, amount)

    def take(self, resource: Resource, amount: int = 1) -> None:
        """Take ``amount`` of a resource for the application.

        Raises:
            QuotaExceeded: It would exceed its quota; nothing is taken.
        """
        self.require_room(resource, amount)
        self.hold(resource, amount)

    def hold(self, resource: Resource, amount: int = 1) -> None:
        """Take ``amount`` without a quota check: it was adopted, or checked before."""
        before = self._held[resource]
        self._held[resource] = before + amount
        if before == 0 and amount:
            (self.parent or self._accounts).holders[resource] += 1
            self._in_use += 1
            if self._in_use == 1:
                self._accounts.opened(self)
        if self.parent is not None:
            self.parent.hold(resource, amount)

    def give_back(self, resource: Resource, amount: int = 1) -> None:
        """Return ``amount``.

        Raises:
            ValueError: The application holds less: a bug in this TaskManager.
        """
        after = self._held[resource] - amount
        if after < 0:
            raise ValueError(
                f"{self.application_id} gives back {amount} {resource.words} "
                f"and holds {self._held[resource]}"
            )
        self._held[resource] = after
        if after == 0 and amount:
            (self.parent or self._accounts).holders[resource] -= 1
            self._in_use -= 1
            if self._in_use == 0:
                self._accounts.closed(self)
        if self.parent is not None:
            self.parent.give_back(resource, amount)

    def exceeded(self, resource: Resource, amount: int) -> QuotaExceeded:
        """Return the error for a request of ``amount``, and count it."""
        limit = self._limits[resource] or 0
        self._accounts.refused.bump(resource.name.lower())
        who = "Application"
        if _is_tenant(self.application_id):
            who = f"Subject {self.subject}" if self.subject else "Token"
        wanted = self._held[resource] + amount
        return QuotaExceeded(who, resource, wanted, limit, amount <= limit)

    def _at_quota(self, resource: Resource, amount: int) -> "Account | None":
        """Return the first account that may not hold so much more: its own or its tenant's."""
        limit = self._limits[resource]
        if limit is not None and self._held[resource] + amount > limit:
            return self
        return None if self.parent is None else self.parent._at_quota(resource, amount)

    def __repr__(self) -> str:
        held = {
            each.words: amount for each, amount in zip(Resource, self._held, strict=True) if amount
        }
        return f"<Account {self.application_id} {held}>"


def _is_tenant(name: str) -> bool:
    """Return whether a name is that of a tenant, and of no application."""
    return name != "" and plain_name(name) == ""


def _no_limits(application_id: str, subject: str) -> Limits:
    return NO_LIMITS


class Accounts:
    """The accounts of all applications of a TaskManager, and of their tenants.

    Attributes:
        refused: Requests refused by a quota, by resource; only grows.
        holders: Number of tenants that hold any of a resource, by resource.
    """

    def __init__(self) -> None:
        self.refused = BoundedCounts()
        self.holders = [0] * len(Resource)
        self._limits_of: Callable[[str, str], Limits] = _no_limits
        self._all: weakref.WeakValueDictionary[str, Account] = weakref.WeakValueDictionary()
        self._in_use: dict[str, Account] = {}

    def of(self, application_id: str, subject: str = "") -> Account:
        """Return the account of an application; it stays while it holds anything.

        Args:
            application_id: The application.
            subject: The subject of its token, if proven; empty: not known.
        """
        account = self._all.get(application_id)
        if account is None:
            tenant = tenant_of(application_id)
            parent = None if tenant == application_id else self.of(tenant)
            account = self._all[application_id] = Account(self, application_id, parent)
            self._limit(account)
        tenant_account = account.parent or account
        if subject and subject != tenant_account.subject:
            tenant_account.subject = subject
            for each in list(self._all.values()):
                if tenant_account in (each, each.parent):
                    self._limit(each)
        return account

    def set_limits(self, limits_of: Callable[[str, str], Limits]) -> None:
        """Set the quotas of all applications and tenants.

        Args:
            limits_of: Returns the quotas of an application or tenant, given the subject.
        """
        self._limits_of = limits_of
        for account in list(self._all.values()):
            self._limit(account)

    def in_use(self) -> list[Account]:
        """Return the accounts of applications that hold anything."""
        return [each for name, each in self._in_use.items() if not _is_tenant(name)]

    def opened(self, account: Account) -> None:
        """Register an account that now holds something."""
        self._in_use[account.application_id] = account

    def closed(self, account: Account) -> None:
        """Unregister an account that holds nothing."""
        del self._in_use[account.application_id]

    def _limit(self, account: Account) -> None:
        subject = (account.parent or account).subject
        account.set_limits(self._limits_of(account.application_id, subject))
