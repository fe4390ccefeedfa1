"""The status of an application: its connections, its data, what it holds of each resource."""

import msgspec


class HoldingStatus(msgspec.Struct, frozen=True, gc=False):
    """The holding of one resource by an application."""

    resource: str = ""
    """The end of the key of ``[quotas]``, such as ``channels``."""
    held: int = 0
    quota: int | None = None
    """Maximum amount that it may hold; None: no quota."""


class ApplicationStatus(msgspec.Struct, frozen=True, gc=False):
    """One application with data or connections on this TaskManager."""

    application_id: str = ""
    connections: int = 0
    expires_in_seconds: float | None = None
    """Time until its data is dropped; None while it has a connection."""
    stored_bytes: int = 0
    holdings: tuple[HoldingStatus, ...] = ()
