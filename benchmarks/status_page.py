"""bench-status-page: what the status page of a busy TaskManager costs the browser.

The page shows a thousand gates of fifty applications, and gets a new status each second. The figure
is the processor time of the page's main thread: its script, layout and painting together.
"""

import argparse
import statistics
import sys

from benchmarks.report import Report, open_console
from tests.support.browser import CHROMIUM, started_browser, visited
from tests.support.shown_status import moving, port_showing

GATES, CHANNELS, APPLICATIONS = 1000, 8, 50
WARM_UP_MILLISECONDS = 4000
RUN_MILLISECONDS = 10_000
RUNS = 3
FIGURE = "milliseconds_per_second"
AIMS = {FIGURE: "≤ 100"}


def main() -> int:
    """Measure, print a table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gates", type=int, default=GATES)
    parser.add_argument("--channels", type=int, default=CHANNELS)
    parser.add_argument("--applications", type=int, default=APPLICATIONS)
    options = parser.parse_args()
    console = open_console()
    if CHROMIUM is None:
        console.print("There is no Chromium; on Debian: apt-get install chromium")
        return 1
    source = moving(
        gates=options.gates, channels=options.channels, applications=options.applications
    )
    found = []
    with (
        port_showing(source) as port,
        started_browser() as browser,
        visited(browser, viewport={"width": 1440, "height": 900}) as seen,
    ):
        page = seen.page
        measured = page.context.new_cdp_session(page)
        measured.send("Performance.enable", {"timeDomain": "threadTicks"})

        def now() -> dict[str, float]:
            metrics = measured.send("Performance.getMetrics")["metrics"]
            return {each["name"]: each["value"] for each in metrics}

        page.goto(f"http://127.0.0.1:{port}/")
        page.wait_for_timeout(WARM_UP_MILLISECONDS)
        for _ in range(RUNS):
            before, events = now(), page.evaluate("window.events")
            page.wait_for_timeout(RUN_MILLISECONDS)
            after = now()
            seconds = after["Timestamp"] - before["Timestamp"]
            busy = after["TaskDuration"] - before["TaskDuration"]
            shown = page.evaluate("window.events") - events
            found.append({FIGURE: 1000 * busy / seconds, "statuses_per_second": shown / seconds})
    figures = {key: statistics.median(run[key] for run in found) for key in found[0]}
    spread = {key: (min(values), max(values)) for key, values in _columns(found).items()}
    report = Report("status-page", figures, found, spread)
    report.show(console, AIMS)
    console.print(f"{report.write()}")
    return 0


def _columns(runs: list[dict[str, float]]) -> dict[str, list[float]]:
    return {key: [run[key] for run in runs] for key in runs[0]}


if __name__ == "__main__":
    sys.exit(main())
