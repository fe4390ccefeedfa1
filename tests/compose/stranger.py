"""Connects to each endpoint that is named and prints how that went; runs inside of a container."""

from __future__ import annotations

import asyncio
import sys

from sluice import ShuffleClient, SluiceError


async def main() -> None:
    """Print a line for each endpoint: ``OPEN`` or the code of the refusal."""
    for endpoint in sys.argv[1:]:
        try:
            async with await ShuffleClient.connect(endpoint, "stranger"):
                print(endpoint, "OPEN")
        except SluiceError as error:
            print(endpoint, error.code.name)


asyncio.run(main())
