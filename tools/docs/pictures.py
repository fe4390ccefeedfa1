"""Make the pictures of the status page in the docs: ``make pictures``.

They show a TaskManager that is made up, so that they need no cluster and are the same each time,
but for the last digits of rates.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

from sluice.shuffle.taskmanager.ingest.producing_waits import MORE_SEGMENTS
from sluice.shuffle.taskmanager.serve.serving_waits import READ_THE_GATE
from sluice.shuffle.taskmanager.status.segment_waits import HELD, NOT_READ
from tests.support.browser import CHROMIUM, picture, started_browser, visited
from tests.support.shown_status import port_showing
from tests.support.statuses import StatusWithStory, busy_status, with_story

FOLDER = Path(__file__).parents[2] / "docs" / "images"
WIDTH, HEIGHT = 1240, 1120
SAMPLES, SAMPLE_SECONDS = 60, 5
SETTLING_MILLISECONDS = 5000

READER, OTHER = "app-20261129-0001", "app-20261129-0003"
GATE, PEER = "gate 6 of 10.0.0.3:51822", "10.0.0.3:51822"


def main() -> None:
    """Write all pictures.

    Raises:
        SystemExit: There is no browser.
    """
    if CHROMIUM is None:
        raise SystemExit("There is no Chromium; on Debian: apt-get install chromium")
    began = time.monotonic()

    def shown() -> StatusWithStory:
        status = busy_status(time.monotonic() - began, gates=12)
        return with_story(status, waits(), [sample(each) for each in range(SAMPLES)])

    size = {"width": WIDTH, "height": HEIGHT}
    with (
        port_showing(shown) as port,
        started_browser() as browser,
        visited(browser, viewport=size, color_scheme="light") as seen,
    ):
        seen.page.goto(f"http://127.0.0.1:{port}/")
        seen.page.wait_for_timeout(SETTLING_MILLISECONDS)
        picture(seen, FOLDER / "status-page.png", full_page=False)


def party(kind: str, name: str, application_id: str = "") -> dict[str, str]:
    """Return the JSON of what waits, or of what it waits for."""
    return {"kind": kind, "name": name, "application_id": application_id}


def waits() -> list[dict[str, object]]:
    """Return the JSON of waits: a reader that does not read holds up another application."""
    writer = party("map_output", "map output 212 of shuffle 3", OTHER)
    memory = party("network_memory", "network memory")
    holder = party("application", READER, READER)
    gate = party("gate", GATE, READER)
    reader = party("reader", PEER, READER)
    rows = [
        (writer, memory, 41.2, "A segment is needed, and none is free", MORE_SEGMENTS),
        (memory, holder, 41.2, "The application holds 4480 of 16384 segments", HELD),
        (
            holder,
            gate,
            63.5,
            "The gate holds segments, and nobody takes its data",
            NOT_READ,
        ),
        (
            gate,
            reader,
            63.5,
            "8 of 8 channels have data, and their reader grants no credit",
            READ_THE_GATE,
        ),
    ]
    names = ("waiter", "resource", "seconds", "text", "remedy")
    return [dict(zip(names, row, strict=True)) for row in rows]


def sample(number: int) -> dict[str, float]:
    """Return the JSON of a sample of the last minutes, the oldest first."""
    wave = 1 + 0.35 * math.sin(number / 4) + 0.1 * math.sin(number * 1.7)
    pressed = max(0.0, (number - 40) / 20)
    return {
        "age_seconds": (SAMPLES - number) * SAMPLE_SECONDS,
        "seconds": SAMPLE_SECONDS,
        "bytes_in": 290e6 * wave * SAMPLE_SECONDS,
        "bytes_out": 255e6 * wave * SAMPLE_SECONDS,
        "commits": 9 * wave * SAMPLE_SECONDS,
        "producer_seconds": 100.0,
        "producer_wait_seconds": 20.0 * pressed,
        "channels": 200,
        "channels_waiting_for_credit": 70 * pressed,
        "max_lag_seconds": 0.004 * wave,
        "drawn_segments": 5200 + 2200 * pressed,
    }


if __name__ == "__main__":
    main()
