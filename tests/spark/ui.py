"""Pages of Spark's UI, for what the plugin shows and counts there."""

from __future__ import annotations

import html
import json
import re
import time
import urllib.request
from typing import TYPE_CHECKING, Any

from tests.support.daemon import look_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.spark.applications import Application

UI_TIMEOUT_SECONDS = 60.0
REPORT_SECONDS = 3.0
"""Executors report their counters a second after a task's end, later on a busy machine."""


_CELL = re.compile(r"<td(?: class=\"[\w-]+\" sorttable_customkey=\"(-?\d+)\")?>(.*?)</td>")


def get(url: str) -> str:
    """Return a page.

    Raises:
        OSError: The server does not answer with it.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=UI_TIMEOUT_SECONDS) as answer:
        text: str = answer.read().decode()
        return text


def _table(page: str, table: str) -> tuple[str, list[str]]:
    head, _, body = page.partition(f'<table id="{table}"')[2].partition("<tbody>")
    return head, [row for row in body.partition("</tbody>")[0].split("</tr>") if row]


def rows_of(page: str, table: str) -> list[list[str]]:
    """The texts of a table of the Sluice tab, row by row."""
    return [
        [html.unescape(re.sub(r"</?a.*?>", "", text)) for _, text in _CELL.findall(row)]
        for row in _table(page, table)[1]
    ]


def numbers_of(page: str, table: str, column: str) -> list[int]:
    """The numbers by which a table of the Sluice tab is sorted by a column, row by row."""
    head, rows = _table(page, table)
    place = re.findall(r"<th>(.*?)</th>", head).index(column)
    return [int(_CELL.findall(row)[place][0]) for row in rows]


class Ui:
    """The UI of a running application."""

    def __init__(self, application: Application) -> None:
        answer = application.rows("ui_url").read_text(encoding="utf-8")
        self._url = str(json.loads(answer)[0])

    def get(self, path: str) -> str:
        return get(self._url + path)

    def metrics(self) -> dict[str, int]:
        """The plugin's metrics of the driver."""
        gauges: dict[str, dict[str, Any]] = json.loads(self.get("/metrics/json/"))["gauges"]
        found = re.compile(r"driver\.plugin\.io\.sluice\.spark\.SluicePlugin\.(\w+)$")
        return {
            match[1]: int(value["value"])
            for name, value in gauges.items()
            if (match := found.search(name))
        }

    def wait_until(self, what: Callable[[dict[str, int]], object]) -> dict[str, int]:
        """Poll the metrics until ``what`` is true of them.

        Raises:
            TimeoutError: It did not become true; the message has the last metrics.
        """
        return look_until(self.metrics, what, UI_TIMEOUT_SECONDS)

    def settled_metrics(self) -> dict[str, int]:
        """The metrics when nothing changes for longer than executors wait to report."""
        deadline = time.monotonic() + UI_TIMEOUT_SECONDS
        now = self.metrics()
        while True:
            time.sleep(REPORT_SECONDS)
            before, now = now, self.metrics()
            if now == before:
                return now
            if time.monotonic() > deadline:
                raise TimeoutError(f"no rest within {UI_TIMEOUT_SECONDS:g} s: {now}")
