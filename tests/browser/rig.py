"""A proxy with a path prefix before an HTTP port."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

from tests.support.http_servers import serving

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractContextManager

PREFIX = "/sluice/tm-1"


def prefix_proxy(port: int) -> AbstractContextManager[int]:
    """Serve another server below a path prefix, as a reverse proxy does; yield the port."""

    async def start() -> tuple[int, Callable[[], Awaitable[None]]]:
        session = aiohttp.ClientSession(f"http://127.0.0.1:{port}")

        async def forward(request: web.Request) -> web.StreamResponse:
            path = request.path.removeprefix(PREFIX)
            async with session.get(path, headers={"Host": "127.0.0.1"}) as answer:
                response = web.StreamResponse(status=answer.status)
                for name in ("Content-Type", "Content-Security-Policy"):
                    if name in answer.headers:
                        response.headers[name] = answer.headers[name]
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                return response

        async def close() -> None:
            await session.close()
            await runner.cleanup()

        app = web.Application()
        app.add_routes([web.get(PREFIX + "{path:/.*}", forward)])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner.addresses[0][1], close

    return serving(start)
