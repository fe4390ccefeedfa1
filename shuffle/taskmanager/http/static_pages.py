"""The files of the status page, with the headers that confine what a browser does with them.

They contain no data, so they need no token: the script fetches the data, with the token that the
user types. Names in the data are chosen by tenants. The script shows them as text only, and the
policy stops everything that is not a file of this port.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final, NamedTuple

from aiohttp import web

FOLDER: Final = Path(__file__).parent / "pages"

HEADERS: Final = {
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self'",
            "connect-src 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class _File(NamedTuple):
    path: str
    name: str
    content_type: str


_FILES: Final = (
    _File("/", "status.html", "text/html"),
    _File("/cluster", "cluster.html", "text/html"),
    _File("/pages/page.js", "page.js", "text/javascript"),
    _File("/pages/page.css", "page.css", "text/css"),
    _File("/pages/icon.svg", "icon.svg", "image/svg+xml"),
)


def routes() -> list[web.RouteDef]:
    """Return the routes of all files."""
    return [web.get(each.path, functools.partial(_serve, each)) for each in _FILES]


async def _serve(file: _File, _request: web.Request) -> web.Response:
    return web.Response(
        body=_content(file.name), content_type=file.content_type, charset="utf-8", headers=HEADERS
    )


@functools.cache
def _content(name: str) -> bytes:
    """Return a file, read once."""
    return (FOLDER / name).read_bytes()
