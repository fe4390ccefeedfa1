"""The UI of a running application, for what the plugin counts there."""

from __future__ import annotations

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


class Ui:
    """The UI of a running application."""

    def __init__(self, application: Application) -> None:
        answer = application.rows("ui_url").read_text(encoding="utf-8")
        self._url = str(json.loads(answer)[0])
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str) -> str:
        with self._opener.open(self._url + path, timeout=UI_TIMEOUT_SECONDS) as answer:
            text: str = answer.read().decode()
            return text

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
