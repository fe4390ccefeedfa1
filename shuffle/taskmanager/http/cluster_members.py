"""The members of a cluster at one moment: this TaskManager asks the HTTP ports of the others.

There is no coordinator: any TaskManager can serve the page of the cluster. It sends an access
token, so it asks only members of its own configuration, and members whose data port has proved at
that address that they belong to the cluster; addresses that drivers or tenants name are never
asked. At most ``ASKED_AT_ONCE`` are asked at a time, each with a deadline, and all requests in a
short time share the answers.
"""

import asyncio
import os
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import aiohttp
import msgspec

from ....protocol.access_token import SCOPE_STATUS, make_access_token
from ....transport.address import Address, host_port
from ....transport.errors import one_line
from ....transport.member_address import parse_member
from ..status.status import TrafficStatus, WarningStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ....protocol.identity import ClusterSecrets
    from ..cluster.members_status import WatchedMemberStatus
    from ..config.taskmanager_config import TaskManagerConfig
    from ..metrics.published_snapshot import Pages, PublishedSnapshot

ANSWER_SECONDS: Final = 2.0
"""Time in which a member must have answered."""

ALL_SECONDS: Final = 10.0
"""Time after which no further member is asked."""

SHARED_SECONDS: Final = 2.0
"""Time for which the answers are shared by all requests."""

ASKED_AT_ONCE: Final = 8
"""Members asked at the same time."""

MAX_MEMBERS: Final = 256
"""Maximum number of members that are asked; ``not_asked`` counts the others."""

MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
"""Longest status of a member: far more than 20,000 channels take."""

TOKEN_SECONDS: Final = 60
"""Time for which the access token of a request is valid."""

_MAX_REASON: Final = 300


class MemberTier(msgspec.Struct, frozen=True, gc=False):
    """A storage tier of a member; the fields of the same names of its status."""

    tier: str = ""
    directory: str = ""
    capacity_bytes: int | None = None
    used_bytes: int = 0
    free_bytes: int = 0
    healthy: bool = False


class MemberPool(msgspec.Struct, frozen=True, gc=False):
    """The network memory of a member; the fields of the same names of its status."""

    total_segments: int = 0
    segment_size_bytes: int = 0
    available_segments: int = 0
    lent_segments: int = 0
    in_flight_segments: int = 0


class MemberCopies(msgspec.Struct, frozen=True, gc=False):
    """The copies of a member; the fields of the same names of its status."""

    short: int = 0
    waiting: int = 0


class MemberParty(msgspec.Struct, frozen=True, gc=False):
    """A waiter or a resource of a wait, with the fields that a member's status has for it."""

    kind: str = ""
    name: str = ""
    application_id: str = ""


class MemberWait(msgspec.Struct, frozen=True, gc=False):
    """A wait of a member; the fields of the same names of its status."""

    waiter: MemberParty = MemberParty()
    resource: MemberParty = MemberParty()
    text: str = ""
    seconds: float | None = None
    remedy: str = ""


class MemberLocation(msgspec.Struct, frozen=True, gc=False):
    """The node and zone of a member, as its status names them."""

    node: str = ""
    zone: str = ""


class MemberStatus(msgspec.Struct, frozen=True):
    """The part of a status that the page of the cluster shows.

    Everything else in the answer of a member is skipped without being decoded: its gates and
    channels may be thousands.
    """

    taskmanager_id: str = ""
    version: str = ""
    address: str = ""
    state: str = ""
    uptime_seconds: float = 0.0
    network_pool: MemberPool = MemberPool()
    storage: tuple[MemberTier, ...] = ()
    traffic: tuple[TrafficStatus, ...] = ()
    copies: MemberCopies = MemberCopies()
    cluster: MemberLocation = MemberLocation()
    warnings: tuple[WarningStatus, ...] = ()
    waits: tuple[MemberWait, ...] = ()
    applications: tuple[msgspec.Raw, ...] = ()
    gates: tuple[msgspec.Raw, ...] = ()
    connections: tuple[msgspec.Raw, ...] = ()


class Member(msgspec.Struct, frozen=True):
    """One member: its status, or the reason why there is none."""

    url: str = ""
    """Its HTTP port as configured or reported; empty for the TaskManager that answers."""
    reason: str = ""
    """Why it has not answered; empty if it has."""
    taskmanager_id: str = ""
    version: str = ""
    address: str = ""
    """``host:port`` of its data port."""
    state: str = ""
    uptime_seconds: float = 0.0
    network_pool: MemberPool = MemberPool()
    storage: tuple[MemberTier, ...] = ()
    bytes_in: int = 0
    """Bytes over its accepted connections since its start."""
    bytes_out: int = 0
    copies: MemberCopies = MemberCopies()
    warnings: tuple[WarningStatus, ...] = ()
    waits: int = 0
    """Number of its waits."""
    longest_wait: MemberWait | None = None
    applications: int = 0
    gates: int = 0
    connections: int = 0
    node: str = ""
    """The machine on which it runs."""
    zone: str = ""
    """The zone of its node; empty if it is not known."""


class ClusterStatus(msgspec.Struct, frozen=True):
    """All members; this TaskManager is the first."""

    members: tuple[Member, ...] = ()
    not_asked: int = 0
    """Members beyond the limit."""


_DECODER: Final = msgspec.json.Decoder(MemberStatus)


class ClusterMembers:
    """Asks the other members for their status.

    Args:
        urls: HTTP ports that are always asked.
        secrets: The cluster secrets, which make access tokens; None: there are none.
        derived: HTTP ports by configured data port, used until a member reports its own; None:
            only ``urls`` are asked.
        answer_seconds: Time in which a member must have answered.
        shared_seconds: Time for which answers are shared.
    """

    def __init__(
        self,
        urls: tuple[str, ...],
        secrets: "ClusterSecrets | None" = None,
        derived: "Mapping[str, str] | None" = None,
        *,
        answer_seconds: float = ANSWER_SECONDS,
        shared_seconds: float = SHARED_SECONDS,
    ) -> None:
        self._urls = urls
        self._derived = derived
        self._secrets = secrets
        self._answer_seconds = answer_seconds
        self._shared_seconds = shared_seconds
        self._lock = asyncio.Lock()
        self._answer = b""
        self._answered_at = -shared_seconds

    @classmethod
    def of(cls, config: "TaskManagerConfig", secrets: "ClusterSecrets | None") -> "ClusterMembers":
        """Return the members that a configuration names."""
        transport = config.transport
        port = transport.advertised_port or transport.data_port
        own = str(Address(transport.reachable_host(), port))
        if config.http.cluster_urls:
            return cls(tuple(dict.fromkeys(config.http.cluster_urls)), secrets)
        # This one is the first member whether or not its address leads to its own HTTP port.
        others = tuple(each for each in config.cluster.taskmanagers if each != own)
        return cls((), secrets, _derived(others, config.http.http_port))

    def urls(self, watched: "Sequence[WatchedMemberStatus]" = ()) -> tuple[str, ...]:
        """Return the HTTP ports that are asked.

        Args:
            watched: The members that this TaskManager watches.
        """
        if self._derived is None:
            return self._urls
        reported = {
            each.watched_at: _http_url(Address.parse(each.watched_at).host, each.http_port)
            for each in watched
            if each.taskmanager_id and each.http_port
        }
        return tuple(dict.fromkeys((*self._urls, *({**self._derived, **reported}).values())))

    async def encoded(self, snapshot: "PublishedSnapshot", pages: "Pages") -> bytes:
        """Return the JSON of :class:`ClusterStatus`.

        Args:
            snapshot: The data loop of this TaskManager.
            pages: Encodes its snapshot.

        Raises:
            DataLoopSilent: The data loop of this TaskManager does not answer.

        Cancellation: ends the requests of this call.
        """
        async with self._lock:
            if time.monotonic() - self._answered_at >= self._shared_seconds:
                latest = await snapshot.latest()
                page = await pages.status(latest)
                own = _member("", page.body)
                urls = self.urls(latest.status.cluster.members)
                others = await self._ask_all(urls[:MAX_MEMBERS], own.taskmanager_id)
                not_asked = max(0, len(urls) - MAX_MEMBERS)
                self._answer = msgspec.json.encode(ClusterStatus((own, *others), not_asked))
                self._answered_at = time.monotonic()
            return self._answer

    async def _ask_all(self, urls: "Sequence[str]", own_id: str) -> list[Member]:
        if not urls:
            return []
        token = self.token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(
                aiohttp.ClientSession(
                    timeout=aiohttp.ClientTimeout(total=self._answer_seconds),
                    headers=headers,
                    cookie_jar=aiohttp.DummyCookieJar(),
                )
            )
            turns = asyncio.Semaphore(ASKED_AT_ONCE)
            ends_at = time.monotonic() + ALL_SECONDS
            asked = (self._ask(session, turns, ends_at, url) for url in urls)
            answers = await asyncio.gather(*asked)
        known = {own_id}
        found = []
        for answer in answers:
            if answer.taskmanager_id not in known:  # this one may be configured too, or one twice
                found.append(answer)
            if answer.taskmanager_id:
                known.add(answer.taskmanager_id)
        return found

    async def _ask(
        self, session: aiohttp.ClientSession, turns: asyncio.Semaphore, ends_at: float, url: str
    ) -> Member:
        async with turns:
            if time.monotonic() > ends_at:
                return Member(url, "not asked: too many members before it did not answer")
            try:
                # A redirect would take the token to a server that is not configured.
                async with session.get(f"{url}/api/v1/status", allow_redirects=False) as answer:
                    if answer.status != 200:
                        return Member(url, _refusal(answer.status))
                    body = await _read(answer)
                return _member(url, body)
            except TimeoutError:
                return Member(url, f"no answer within {self._answer_seconds:g} s")
            except aiohttp.ClientConnectorError as error:
                return Member(url, one_line(f"cannot connect: {_cause(error)}")[:_MAX_REASON])
            except (aiohttp.ClientError, OSError, ValueError) as error:
                return Member(url, one_line(str(error) or type(error).__name__)[:_MAX_REASON])

    def token(self) -> str:
        """Return the access token for the other members; empty without a secret."""
        if self._secrets is None:
            return ""
        expires_at = int(time.time()) + TOKEN_SECONDS
        return make_access_token(self._secrets.proven, SCOPE_STATUS, expires_at).to_text()


def _derived(taskmanagers: tuple[str, ...], http_port: int) -> dict[str, str]:
    """Return the URLs of members whose HTTP port is the same as here, by address."""
    if not http_port:  # each has a free one, which it reports
        return {}
    addresses = map(parse_member, taskmanagers)
    return {
        str(each): _http_url(each.host, http_port)
        for each in addresses
        if isinstance(each, Address)
    }


def _http_url(host: str, port: int) -> str:
    return f"http://{host_port(host, port)}"


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """Return the body.

    Raises:
        ValueError: It is too long.
    """
    pieces: list[bytes] = []
    left = MAX_ANSWER_BYTES
    async for piece in answer.content.iter_any():
        left -= len(piece)
        if left < 0:
            raise ValueError(f"its status is longer than {MAX_ANSWER_BYTES} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _cause(error: aiohttp.ClientConnectorError) -> str:
    """Return why no connection was made; errors of the name service have numbers of their own."""
    number = error.errno or 0
    return os.strerror(number) if number > 0 else str(error.strerror or error)


def _refusal(status: int) -> str:
    if status in (401, 403):
        return (
            f"it refuses this TaskManager ({status}): give both the same cluster secret, and check "
            "their clocks"
        )
    if status == 503:
        return "its data path does not answer (503)"
    return f"it answered {status}: is this the HTTP port of a TaskManager?"


def _member(url: str, body: bytes) -> Member:
    """Read the status of a member.

    Raises:
        ValueError: It is not a status.
    """
    try:
        status = _DECODER.decode(body)
    except msgspec.MsgspecError as error:
        raise ValueError(f"it does not answer as a TaskManager does: {error}") from None
    if not status.taskmanager_id:
        raise ValueError("it does not answer as a TaskManager does")
    return Member(
        url,
        "",
        status.taskmanager_id,
        status.version,
        status.address,
        status.state,
        status.uptime_seconds,
        status.network_pool,
        status.storage,
        sum(each.bytes_in for each in status.traffic),
        sum(each.bytes_out for each in status.traffic),
        status.copies,
        status.warnings,
        len(status.waits),
        max(status.waits, key=lambda each: each.seconds or 0.0, default=None),
        len(status.applications),
        len(status.gates),
        len(status.connections),
        status.cluster.node,
        status.cluster.zone,
    )
