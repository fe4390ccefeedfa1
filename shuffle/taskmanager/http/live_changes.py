"""Changes the log level and the quotas of a running TaskManager.

A change is validated by the rules of the configuration and is not written to any file: it holds
until the next start, or until SIGHUP loads the configuration again.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import web

from ....protocol.access_token import SCOPE_ADMIN
from ....protocol.errors import SluiceError
from ..bounds.quotas import QuotaConfig
from ..config.taskmanager_config import ConfigError, load
from .api_routes import JSON
from .audit_entry import note_change

if TYPE_CHECKING:
    from ..config.taskmanager_config import TaskManagerConfig
    from ..metrics.published_snapshot import PublishedSnapshot
    from .http_access import HttpAccess
    from .http_served import LiveSettings

MAX_BODY_BYTES: Final = 64 * 1024
"""Maximum size of a request: hundreds of overrides."""


class _LogLevel(msgspec.Struct, forbid_unknown_fields=True):
    level: str


class LiveChanges:
    """Answers the requests that change settings.

    Args:
        snapshot: Runs a change on the data loop.
        settings: Those of the TaskManager.
        access: Checks that a request may change something.
        body_seconds: Time in which a body must arrive.
    """

    def __init__(
        self,
        snapshot: PublishedSnapshot,
        settings: LiveSettings,
        access: HttpAccess,
        body_seconds: float,
    ) -> None:
        self._snapshot = snapshot
        self._settings = settings
        self._access = access
        self._body_seconds = body_seconds
        self._changing = asyncio.Lock()
        """Two requests must not overwrite each other's quotas."""

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.put("/api/v1/log-level", self._put_log_level),
            web.put("/api/v1/quotas", self._put_quotas),
        ]

    async def _put_log_level(self, request: web.Request) -> web.Response:
        level = (await self._body(request, _LogLevel)).level
        level = _valid({"log_level": level}).log_level
        note_change(f"log_level = {level}")
        await self._change({"log_level": level})
        return web.json_response({"level": level})

    async def _put_quotas(self, request: web.Request) -> web.Response:
        given = await self._body(request, dict[str, Any])
        unknown = [name for name in given if name not in QuotaConfig.model_fields]
        if unknown:
            known = ", ".join(QuotaConfig.model_fields)
            raise _refused(f"{unknown[0]} is not a quota: use {known}")
        note_change(", ".join(f"{name} = {value}" for name, value in given.items()))
        async with self._changing:
            values = self._settings.config().quotas.model_dump() | given
            quotas = _valid(values).quotas
            await self._change({"quotas": quotas})
        return web.json_response(quotas.model_dump(mode="json"))

    async def _body(self, request: web.Request, kind: type[Any]) -> Any:
        """Return the body of a request that may change something."""
        self._access.require(request, SCOPE_ADMIN)
        if request.content_type != JSON:
            text = f"the body is {request.content_type}: send it as Content-Type: {JSON}"
            raise _refused(text, web.HTTPUnsupportedMediaType)
        try:
            async with asyncio.timeout(self._body_seconds):
                body = await _read(request)
        except TimeoutError:
            text = f"the body did not arrive within {self._body_seconds:g} s: send it at once"
            raise _refused(text, web.HTTPRequestTimeout) from None
        try:
            return msgspec.json.decode(body, type=kind)
        except RecursionError:
            raise _refused("the body is nested too deeply: no value has a list in a list") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _refused(f"the body is not valid: {error}") from None

    async def _change(self, changes: dict[str, object]) -> None:
        """Change settings on the data loop.

        Raises:
            web.HTTPException: The change does not hold everywhere.
            DataLoopSilent: The data loop has not answered.
        """
        try:
            await self._snapshot.ask(functools.partial(self._settings.change, changes))
        except SluiceError as error:
            raise _refused(str(error), web.HTTPServiceUnavailable) from None
        finally:
            self._snapshot.forget()


def _valid(values: dict[str, Any]) -> TaskManagerConfig:
    """Return a configuration with some values that follow its rules.

    Raises:
        web.HTTPException: They do not.
    """
    given = {name: "none" if value is None else value for name, value in values.items()}
    try:
        return load(None, {}, given)
    except ConfigError as error:
        raise _refused("; ".join(each.text for each in error.problems)) from None


async def _read(request: web.Request) -> bytes:
    body = b""
    while piece := await request.content.readany():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            text = f"the body is larger than {MAX_BODY_BYTES} bytes: use patterns with *"
            raise _refused(text, functools.partial(_too_large, len(body)))
    return body


def _too_large(size_bytes: int, **given: Any) -> web.HTTPException:
    return web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES, size_bytes, **given)


def _refused(text: str, kind: Any = web.HTTPBadRequest) -> web.HTTPException:
    refused: web.HTTPException = kind(
        text=msgspec.json.encode({"error": text}).decode(), content_type=JSON
    )
    return refused
