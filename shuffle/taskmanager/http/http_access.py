"""Access rules of the HTTP port: who may see names and change the TaskManager.

With a cluster secret a request proves itself by an access token. Without one names are open, and
drain requests must come from the TaskManager's user, through the Unix socket. Where names are open,
a request must name this host: a web page can give its own name an address of this host (DNS
rebinding), so that a browser lets it read the answers.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import re
import socket
import time
from typing import TYPE_CHECKING, Final

from ....protocol.access_token import (
    NO_TOKEN,
    SCOPE_STATUS,
    check_access_token,
    parse_access_token,
)
from ....protocol.errors import AuthenticationFailed, NotPermitted
from ....transport.access import require_own_user
from ....transport.address import Address, is_loopback
from ....transport.errors import counted, one_line
from ...counters import BoundedCounts
from ..status.reasons import NOT_THE_SOCKET, OTHER_NAME
from .audit_entry import note_token

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiohttp import web

    from ....protocol.identity import ClusterSecrets
    from ..config.taskmanager_config import TaskManagerConfig

logger = logging.getLogger(__name__)

_HOST: Final = re.compile(r"\[?(.*?)\]?(:[0-9]*)?")
_SCHEME: Final = "bearer"
_REALM: Final = 'Bearer realm="sluice"'


class HttpAccess:
    """The rules of one HTTP port.

    Args:
        secrets: The cluster secrets whose tokens are accepted; None: there are no tokens.
        names_on_loopback: Whether this host may read names without a token.
        own_names: Names under which requests without a token may reach this host, beside its
            addresses and ``localhost``.
        refused: Counts refused requests, by reason.
    """

    def __init__(
        self,
        secrets: ClusterSecrets | None = None,
        *,
        names_on_loopback: bool = False,
        own_names: Iterable[str] = (),
        refused: BoundedCounts | None = None,
    ) -> None:
        self._secrets = secrets
        self._names_on_loopback = names_on_loopback
        self._own_names = {"localhost", *map(str.lower, own_names)}
        self.refused = BoundedCounts() if refused is None else refused

    @classmethod
    def of(
        cls,
        config: TaskManagerConfig,
        secrets: ClusterSecrets | None,
        advertised_host: str,
        refused: BoundedCounts,
    ) -> HttpAccess:
        """Return the rules for a TaskManager's configuration."""
        return cls(
            secrets,
            names_on_loopback=config.http.names_on_loopback,
            own_names=(
                socket.gethostname(),
                advertised_host,
                *(config.http.http_host or ()),
                *(Address.parse(each).host for each in config.auth.address_aliases),
            ),
            refused=refused,
        )

    def require(self, request: web.Request, scope: str) -> None:
        """Check that a request may use a scope.

        Raises:
            web.HTTPException: It may not; the answer has the reason as JSON.
        """
        try:
            if self._secrets is not None:
                self._require_token(request, scope, self._secrets)
            elif scope != SCOPE_STATUS:
                _require_own_socket(request)
            else:
                self._require_own_name(request)
        except AuthenticationFailed as error:
            self.refused.bump(error.reason)
            remote = request.remote or "the Unix socket"
            extra = counted(f"HTTP requests refused because of {error.reason}", f"{remote}:")
            extra["code"] = error.code.name
            logger.warning(
                "refusing %s %s: %s", remote, one_line(request.path), error.reason, extra=extra
            )
            raise _answer(error, scope, has_tokens=self._secrets is not None) from error

    def _require_token(self, request: web.Request, scope: str, secrets: ClusterSecrets) -> None:
        kind, _, text = request.headers.get("Authorization", "").partition(" ")
        token = text.strip() if kind.lower() == _SCHEME else ""
        by_choice = self._names_on_loopback and scope == SCOPE_STATUS and not token
        if by_choice and _is_on_loopback(request):
            self._require_own_name(request)
            return
        check_access_token(token, scope, secrets, time.time())
        note_token(parse_access_token(token).token_id)

    def _require_own_name(self, request: web.Request) -> None:
        """Refuse a request that names another host than this one."""
        if _unix_socket(request) is not None:  # which no web page reaches
            return
        found = _HOST.fullmatch(request.headers.get("Host", ""))
        host = "" if found is None else found[1].lower()
        if host in self._own_names or _is_address(host):
            return
        raise NotPermitted(
            "The request names another host",
            reason=OTHER_NAME,
            value=host or "no name",
            limit="an IP address, localhost, or a name of this host",
            remedy="Ask for http://ADDRESS:PORT, or give the TaskManager a cluster secret and "
            "send a token",
        )


def _require_own_socket(request: web.Request) -> None:
    sock = _unix_socket(request)
    if sock is None:
        raise NotPermitted(
            "A TaskManager without a cluster secret takes this from its Unix socket only",
            reason=NOT_THE_SOCKET,
            remedy="Set http_socket_path, and run the command with unix:PATH as its user; or "
            "give the TaskManager a cluster secret",
        )
    require_own_user(sock)


def _unix_socket(request: web.Request) -> socket.socket | None:
    """Return the Unix socket that a request came through, None if it came over TCP."""
    transport = request.transport
    sock = None if transport is None else transport.get_extra_info("socket")
    return sock if sock is not None and sock.family == socket.AF_UNIX else None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_on_loopback(request: web.Request) -> bool:
    return is_loopback(request.remote or "")


def _answer(error: AuthenticationFailed, scope: str, *, has_tokens: bool) -> web.HTTPException:
    """Return the refusal of a request without a sufficient token (RFC 6750)."""
    from aiohttp import web  # imported already: it made the request

    body = json.dumps({"error": str(error)})
    kind: type[web.HTTPException] = web.HTTPUnauthorized
    challenge = f'{_REALM}, scope="{scope}"'
    if isinstance(error, NotPermitted) or not has_tokens:
        kind = web.HTTPForbidden
        challenge += ', error="insufficient_scope"'
    elif error.reason != NO_TOKEN:
        challenge += ', error="invalid_token"'
    headers = {"WWW-Authenticate": challenge} if has_tokens else {}
    return kind(text=body, content_type="application/json", headers=headers)
