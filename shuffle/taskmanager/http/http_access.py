"""Access rules of the HTTP port: who may see names and change the TaskManager.

With a cluster secret a request proves itself by an access token. Without one the TaskManager serves
this host only, or anybody: then names are open, and drain requests must come from its own host.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import time
from typing import TYPE_CHECKING, Final

from ....protocol.access_token import NO_TOKEN, SCOPE_STATUS, check_access_token
from ....protocol.errors import AuthenticationFailed, NotPermitted
from ....transport.errors import counted, one_line
from ...counters import BoundedCounts
from ..status.reasons import NO_HEADER, OTHER_HOST

if TYPE_CHECKING:
    from aiohttp import web

    from ....protocol.identity import ClusterSecrets

logger = logging.getLogger(__name__)

DRAIN_HEADER: Final = "X-Sluice-Drain"

_SCHEME: Final = "bearer"
_REALM: Final = 'Bearer realm="sluice"'


class HttpAccess:
    """The rules of one HTTP port.

    Args:
        secrets: The cluster secrets whose tokens are accepted; None: there are no tokens.
        names_on_loopback: Whether this host may read names without a token.
        refused: Counts refused requests, by reason.
    """

    def __init__(
        self,
        secrets: ClusterSecrets | None = None,
        *,
        names_on_loopback: bool = False,
        refused: BoundedCounts | None = None,
    ) -> None:
        self._secrets = secrets
        self._names_on_loopback = names_on_loopback
        self.refused = BoundedCounts() if refused is None else refused

    def require(self, request: web.Request, scope: str) -> None:
        """Check that a request may use a scope.

        Raises:
            web.HTTPException: It may not; the answer has the reason as JSON.
        """
        try:
            if self._secrets is not None:
                self._require_token(request, scope, self._secrets)
            elif scope != SCOPE_STATUS:
                _require_this_host(request)
        except AuthenticationFailed as error:
            self.refused.bump(error.reason)
            extra = counted(
                f"HTTP requests refused because of {error.reason}", f"{request.remote}:"
            )
            logger.warning(
                "refusing %s %s: %s",
                request.remote,
                one_line(request.path),
                error.reason,
                extra=extra,
            )
            raise _answer(error, scope, has_tokens=self._secrets is not None) from error

    def _require_token(self, request: web.Request, scope: str, secrets: ClusterSecrets) -> None:
        kind, _, text = request.headers.get("Authorization", "").partition(" ")
        token = text.strip() if kind.lower() == _SCHEME else ""
        by_choice = self._names_on_loopback and scope == SCOPE_STATUS and not token
        if by_choice and _is_on_loopback(request):
            return
        check_access_token(token, scope, secrets, time.time())


def _require_this_host(request: web.Request) -> None:
    if not _is_from_this_host(request):
        raise NotPermitted(
            "This can be asked for from the TaskManager's own host only",
            reason=OTHER_HOST,
            remedy="Give the TaskManager a cluster secret to ask from other hosts with a token",
        )
    if DRAIN_HEADER not in request.headers:  # which no form of a web page can send
        raise NotPermitted(f"The header {DRAIN_HEADER} is missing", reason=NO_HEADER)


def _is_from_this_host(request: web.Request) -> bool:
    """Return whether a request comes from this host."""
    transport = request.transport
    own = None if transport is None else transport.get_extra_info("sockname")
    if request.remote is None or own is None:
        return False
    return request.remote == own[0] or _is_on_loopback(request)


def _is_on_loopback(request: web.Request) -> bool:
    return request.remote is not None and ipaddress.ip_address(request.remote).is_loopback


def _answer(error: AuthenticationFailed, scope: str, *, has_tokens: bool) -> web.HTTPException:
    """Return the refusal of a request without a sufficient token (RFC 6750)."""
    from aiohttp import web  # imported already: it made the request

    body = json.dumps({"error": str(error)})
    kind: type[web.HTTPException] = web.HTTPUnauthorized
    challenge = f'{_REALM}, scope="{scope}"'
    if isinstance(error, NotPermitted):
        kind = web.HTTPBadRequest if error.reason == NO_HEADER else web.HTTPForbidden
        challenge += ', error="insufficient_scope"'
    elif error.reason != NO_TOKEN:
        challenge += ', error="invalid_token"'
    headers = {"WWW-Authenticate": challenge} if has_tokens else {}
    return kind(text=body, content_type="application/json", headers=headers)
