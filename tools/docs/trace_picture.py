"""Make the picture of a trace in the docs, from a trace of two TaskManagers: ``make pictures``.

The TaskManagers run in this process, and send their spans to a collector over HTTP.
"""

from __future__ import annotations

import asyncio
import tempfile
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.shuffle.client.client import ShuffleClient
from sluice.shuffle.client.traced import traced
from sluice.shuffle.partition.partition_type import ResultPartitionType
from tests.support.api_clients import give_back
from tests.support.collector import PARENT_ID, TRACEPARENT, OtlpCollector, SentSpan, otlp_collector
from tests.support.copies import copying

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sluice.shuffle.client.partition_location import PartitionLocation

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "trace.svg"
SPANS = 11
"""Two map outputs, each with its commit, one with a copy and its spans; a gate and its sources."""
WIDTH, LEFT, ROW, TOP, MARGIN = 760, 250, 24, 62, 16
COLORS = (("#e4effb", "#3b78b8"), ("#e3f4e9", "#3a8a5c"))
BUFFERS, BUFFER = 128, bytes(range(256)) * 16


def main() -> None:
    """Write the picture."""
    with otlp_collector() as collector, tempfile.TemporaryDirectory() as directory:
        spans, first = asyncio.run(_traced_exchange(collector, Path(directory)))
    PICTURE.write_text(drawn(spans, first), encoding="utf-8")


async def _traced_exchange(collector: OtlpCollector, directory: Path) -> tuple[list[SentSpan], str]:
    """Write and read two map outputs; return the spans, and the id of the first TaskManager."""
    endpoint = collector.endpoint
    async with copying(directory, check=False, traces_endpoint=endpoint) as (cluster, _):
        with traced(TRACEPARENT):
            locations = [
                await _written(str(each.address), number, replicas=2 - number)
                for number, each in enumerate(cluster.environments)
            ]
            async with (
                await ShuffleClient.connect(str(cluster[0].address), "app") as client,
                client.open_gate(locations, 0) as gate,
            ):
                while (part := await gate.next_buffer_or_event()) is not None:
                    give_back(part.buffer)
        first = cluster[0].taskmanager_id
        return await asyncio.to_thread(collector.until, SPANS), first


async def _written(endpoint: str, map_attempt_id: int, replicas: int) -> PartitionLocation:
    async with (
        await ShuffleClient.connect(endpoint, "app") as client,
        client.open_result_partition(
            1,
            map_attempt_id,
            1,
            partition_type=ResultPartitionType.BLOCKING,
            replicas=replicas,
            replicas_synchronous=True,
        ) as partition,
    ):
        for _ in range(BUFFERS):
            await partition.emit_buffer(BUFFER, 0)
    return partition.location


def drawn(spans: list[SentSpan], first: str) -> str:
    """Return a picture of spans as SVG: a row for each, below its parent.

    Args:
        spans: All spans of a trace.
        first: The id of the TaskManager that has the first color.
    """
    begin = min(span.start_ns for span in spans)
    scale = (WIDTH - LEFT - 90) / (max(span.end_ns for span in spans) - begin)
    rows = list(_ordered(spans, PARENT_ID, 0))
    height = TOP + ROW * len(rows) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" aria-labelledby="title desc">',
        '<title id="title">A trace</title>',
        '<desc id="desc">The spans of two map outputs and of a gate, each below its parent, with '
        "bars that show when they lasted and at which of two TaskManagers.</desc>",
        '<style>text{font:12px system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;'
        "fill:#1f2933}.panel{fill:#fff;stroke:#d9e0e7}</style>",
        f'<rect class="panel" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="10"/>',
    ]
    for number, (fill, stroke) in enumerate(COLORS):
        left = MARGIN + 180 * number
        parts.append(
            f'<rect x="{left}" y="20" width="22" height="14" rx="3" fill="{fill}" '
            f'stroke="{stroke}"/>'
            f'<text x="{left + 30}" y="31">TaskManager {"AB"[number]}</text>'
        )
    for number, (span, depth) in enumerate(rows):
        y = TOP + ROW * number
        fill, stroke = COLORS[span.instance != first]
        x = LEFT + (span.start_ns - begin) * scale
        width = max((span.end_ns - span.start_ns) * scale, 2)
        shown = f"{(span.end_ns - span.start_ns) / 1e6:.1f} ms"
        parts.append(
            f'<text x="{MARGIN + 18 * depth}" y="{y + 12}">{escape(_label(span))}</text>'
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="16" rx="3" fill="{fill}" '
            f'stroke="{stroke}"/><text x="{x + width + 6:.1f}" y="{y + 12}">{shown}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


def _ordered(spans: list[SentSpan], parent_id: str, depth: int) -> Iterator[tuple[SentSpan, int]]:
    """Yield the spans below a parent and their depths, in the order of their starts."""
    children = [span for span in spans if span.parent_id == parent_id]
    for span in sorted(children, key=lambda span: span.start_ns):
        yield span, depth
        yield from _ordered(spans, span.span_id, depth + 1)


def _label(span: SentSpan) -> str:
    attempt = span.attributes.get("sluice.map_attempt")
    return span.name if attempt is None else f"{span.name} {attempt}"


if __name__ == "__main__":
    main()
