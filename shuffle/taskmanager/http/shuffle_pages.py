"""``GET /api/v1/shuffles/{application}/{shuffle}``: the map outputs of a shuffle, page by page."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from aiohttp import web

from ....protocol.access_token import SCOPE_STATUS
from ....protocol.errors import SluiceError
from ..metrics.published_snapshot import REST_FOR_WORK
from ..store.shuffle_page import (
    DEFAULT_OUTPUTS,
    MAX_OUTPUTS,
    ShufflePage,
    ShuffleQuery,
    UnknownShuffle,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..metrics.published_snapshot import PublishedSnapshot
    from .http_access import HttpAccess

MAX_NUMBER: Final = (1 << 63) - 1
"""Largest number of a shuffle or a map attempt."""

TURN_SECONDS: Final = 5.0
"""Time for which a request waits for those before it."""

REST_SECONDS: Final = 0.05
"""Least rest of the data loop between two pages: many requests must not slow the data path down."""

MOST_REST_SECONDS: Final = 4.0
"""Longest rest, which a request behind it outlasts. That is :data:`REST_FOR_WORK` times the work
for a page of a million map outputs."""


def rest_after(seconds: float) -> float:
    """Return the rest after a page that took some time."""
    return max(REST_SECONDS, min(seconds * REST_FOR_WORK, MOST_REST_SECONDS))


def add_shuffles(
    app: web.Application,
    snapshot: PublishedSnapshot,
    inspect: Callable[[ShuffleQuery], Awaitable[ShufflePage]],
    access: HttpAccess,
) -> None:
    """Add the pages to a server.

    Args:
        app: The server.
        snapshot: The data loop.
        inspect: Makes a page; called on the data loop.
        access: The rules of access.
    """
    one_at_a_time = asyncio.Lock()

    async def asked(query: ShuffleQuery) -> ShufflePage:
        async with asyncio.timeout(TURN_SECONDS):
            await one_at_a_time.acquire()
        began = time.monotonic()
        try:
            return await snapshot.ask(lambda: inspect(query))
        finally:
            # The rest is not this request's: its answer is ready.
            loop = asyncio.get_running_loop()
            loop.call_later(rest_after(time.monotonic() - began), one_at_a_time.release)

    async def serve_shuffle(request: web.Request) -> web.Response:
        access.require(request, SCOPE_STATUS)
        try:
            query = _query(request)
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)
        try:
            page = await asked(query)
        except TimeoutError:
            text = f"other requests for shuffles took more than {TURN_SECONDS:g} s: try again"
            return web.json_response({"error": text}, status=503)
        except UnknownShuffle as error:
            return web.json_response({"error": str(error)}, status=404)
        except SluiceError as error:  # of a data process
            return web.json_response({"error": str(error)}, status=503)
        return web.Response(body=page.encode(), content_type="application/json")

    app.add_routes([web.get("/api/v1/shuffles/{application}/{shuffle}", serve_shuffle)])


def _query(request: web.Request) -> ShuffleQuery:
    return ShuffleQuery(
        request.match_info["application"],
        _number("shuffle", request.match_info["shuffle"], 0, MAX_NUMBER),
        _number("first", request.query.get("first", "0"), 0, MAX_NUMBER),
        _number("limit", request.query.get("limit", str(DEFAULT_OUTPUTS)), 1, MAX_OUTPUTS),
    )


def _number(name: str, text: str, least: int, most: int) -> int:
    if text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most:
        return int(text)
    shown = "".join(character if character.isprintable() else "?" for character in text[:40])
    raise ValueError(f'{name} = "{shown}" is not a whole number from {least} to {most}')
