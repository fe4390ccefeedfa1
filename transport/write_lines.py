"""Writes several pieces of memory to a transport so that the watermark pauses the writer.

``writelines`` of asyncio's own transports ignores the high watermark in Python 3.12.0 to 3.12.8,
3.13.0 and 3.13.1 (CVE-2024-12254), so a writer could fill the memory. On these versions the pieces
are joined and written with ``write``, as up to Python 3.11.
"""

import asyncio
import sys
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

Lines: TypeAlias = Iterable[bytes | bytearray | memoryview]

_VERSION: Final = sys.version_info[:3]


def ignores_watermark(version: tuple[int, ...] = _VERSION) -> bool:
    """Return whether a version's ``writelines`` ignores the high watermark."""
    return (3, 12) <= version < (3, 12, 9) or (3, 13) <= version < (3, 13, 2)


def lines_writer(transport: asyncio.Transport) -> Callable[[Lines], None]:
    """Return the function that writes several pieces to a transport."""
    if ignores_watermark() and type(transport).__module__ == "asyncio.selector_events":
        return lambda lines: transport.write(b"".join(lines))
    return transport.writelines
